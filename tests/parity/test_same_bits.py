"""The promise, with real processes: 1, 2, 3 and 5 workers, over shared memory and over the network.

One launch per worker count runs every case; each case is then a test of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import golden
import pytest
from cases import CASES, run
from launches import Everything, launch_at

from samepath.engine.run.session import Link, start

SETTINGS: list[tuple[int, Link]] = [
    (1, "auto"),
    (2, "auto"),
    (3, "auto"),
    (5, "auto"),
    (2, "network"),
    (3, "network"),
    (5, "network"),
]


def run_all_cases(link: Link, folder: str) -> None:
    """The body of every worker."""
    with start(seed=7, link=link) as session:
        kind = type(session.collective).__name__
        found = {name: run(make, session) | {"kind": kind} for name, make in CASES.items()}
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return launch_at(SETTINGS, run_all_cases, tmp_path_factory)


@pytest.mark.parametrize("name", CASES)
def test_same_bits_at_every_worker_count(name: str, found: Everything) -> None:
    (alone,) = found[1, "auto"]
    expected = alone[name]
    assert expected["learned"], "the case trains"
    assert len(set(expected["digests"])) == len(expected["digests"]), "every step changes the state"
    for (num_workers, link), workers in found.items():
        for worker in workers:
            where = f"{num_workers} workers, {link}"
            assert worker[name]["digests"] == expected["digests"], where
            assert worker[name]["losses"] == expected["losses"], where


def test_links_are_what_they_say(found: Everything) -> None:
    kinds = {key: workers[0]["dataset"]["kind"] for key, workers in found.items()}
    assert kinds.pop((1, "auto")) == "Alone"
    for (_, link), kind in kinds.items():
        assert kind == ("SharedMemory" if link == "auto" else "Network")


def test_loader_processes_do_not_change_bits(found: Everything) -> None:
    (alone,) = found[1, "auto"]
    assert alone["dataset"]["digests"] == alone["dataset_with_loader_processes"]["digests"]


@pytest.mark.parametrize("name", CASES)
def test_no_bit_has_moved(name: str, found: Everything) -> None:
    """As recorded before the last change that was not to change anything."""
    recorded = json.loads(golden.GOLDEN.read_text())
    if recorded["machine"] != golden.machine():
        pytest.skip("golden.json was recorded on another kind of machine")
    (alone,) = found[1, "auto"]
    plain = {part: value for part, value in alone[name].items() if part != "kind"}
    assert golden.sha(plain) == recorded["found"][f"case {name} -n 1"], (
        "if that was meant: python tests/parity/golden.py record, in a commit that says why"
    )
