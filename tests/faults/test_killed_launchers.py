"""Launchers that are killed with SIGKILL: what they leave goes with the next run, or by command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from braked_runs import family
from elastic_runs import (
    RECIPE,
    SAMEPATH,
    elastic,
    ended,
    left_behind,
    lines,
    num_lines,
    start,
    until,
)

from samepath.engine.elastic.ring import MEMORY
from samepath.engine.launch import leftovers

LIMIT_SECONDS = 300
EPOCHS = 6
pytestmark = pytest.mark.alone  # any other run that begins would clean up first


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The temporary folder of the processes that are started: of a short name, for sockets lie
    elsewhere if there is no room for theirs."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def semaphores(launcher: int) -> list[Path]:
    return list(MEMORY.glob(f"sem.samepath-{launcher}-*"))


def folders(scratch: Path) -> set[str]:
    """What is left there of ours: the kinds."""
    kinds = (path.name.partition("-")[0] for path in scratch.iterdir())
    return {kind for kind in kinds if kind in ("samepath", "pymp")}


def killed(out: Path, scratch: Path, workers: str) -> int:
    """A run of which every process, the one that removes semaphores too, was killed at once; its
    launcher."""
    run = start(
        "train", RECIPE, "-n", workers, "--epochs", str(EPOCHS), "--out", out, TMPDIR=str(scratch)
    )
    until(lambda: num_lines(out) > 6, run)
    assert semaphores(run.pid), "they show whose they are"
    for process in family(run.pid):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    run.communicate()
    assert semaphores(run.pid)
    assert folders(scratch) == {"samepath", "pymp"}
    return run.pid


def clean(scratch: Path, *arguments: str) -> dict[str, Any]:
    words: list[str | Path] = [SAMEPATH, "clean", "--json", *arguments]
    said = subprocess.run(
        words, env={**os.environ, "TMPDIR": str(scratch)}, capture_output=True, check=True
    )
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_by_command(unhurt: tuple[str, Any], tmp_path: Path, scratch: Path) -> None:
    out = tmp_path / "run"
    launcher = killed(out, scratch, "1:2")
    memory = left_behind(out)
    assert any("/samepath-" in file for file in memory)
    assert clean(scratch, "--dry-run")["found"]
    assert semaphores(launcher), "nothing was removed"
    clean(scratch)
    assert semaphores(launcher) == []
    assert folders(scratch) == set()
    assert left_behind(out) == memory, "it goes on from there"
    assert (elastic(RECIPE, out, 2, resume=True).digest, lines(out)) == unhurt
    assert left_behind(out) == []


def test_by_the_next_run(unhurt: tuple[str, Any], tmp_path: Path, scratch: Path) -> None:
    out = tmp_path / "run"
    launcher = killed(out, scratch, "2")
    arguments = ("train", RECIPE, "-n", "2", "--out", out, "--resume", "--json")
    resumed = start(*arguments, TMPDIR=str(scratch))
    assert (ended(resumed)["digest"], lines(out)) == unhurt
    assert semaphores(launcher) == []
    assert folders(scratch) == set()
    assert left_behind(out) == []


def test_what_a_living_run_has_stays(
    unhurt: tuple[str, Any], tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    run = start(
        "train", RECIPE, "-n", "1:2", "--epochs", str(EPOCHS), "--out", out, "--json",
        TMPDIR=str(scratch),
    )  # fmt: skip
    until(lambda: num_lines(out) > 3, run)
    there = {*semaphores(run.pid), *scratch.iterdir()}
    assert leftovers.remove(leftovers.find()) == []  # the command would take longer than the run
    assert run.poll() is None
    assert {*semaphores(run.pid), *scratch.iterdir()} >= there
    assert (ended(run)["digest"], lines(out)) == unhurt
    assert semaphores(run.pid) == []
    assert left_behind(out) == []
    assert folders(scratch) == set()
