"""What `samepath profile` refuses, before it measures anything; its turns; its clocks."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import error_line

from samepath.cli import main
from samepath.engine.comm.collective import Alone, Record
from samepath.insight.profile import profile as profile_module
from samepath.insight.profile.profile import ONE_CLOCK, TURN, WARM_UP, set_clock, turns


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def call_workers(*_: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(profile_module, "call_workers", call_workers)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "samepath,deepspeed"], "there is no such engine; use samepath, ddp, queue"),
        (["--engine", ","], "names nothing"),
        (["--engine", "queue,horovod", "--json"], "--engine horovod: there is no such engine"),
        (["--engine", "samepath,ddp", "-n", "1"], "-n 1 --engine ddp: one worker has nothing"),
        (["--steps", "0"], "--steps 0: it must be at least 1"),
        (["--cycle-ms", "0"], "--cycle-ms 0: give more than 0"),
        (["--fusion-mib", "-1"], "--fusion-mib -1: give 0"),
        (["-n", "9"], "9 workers, but a batch of"),
        (["-n", "two"], "-n two: give a whole number"),
        (["--out", "full"], "--out full is not empty; give a new folder"),
        (["--batch-size", "100000"], "larger than the data"),
    ],
)
def test_refused(
    arguments: list[str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(["profile", "digits", *arguments])
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert says in error_line(err)
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before, "nothing written"


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_turns_have_every_step_once_and_drop_the_first(steps: int) -> None:
    assert turns(steps, several=False) == [[*[None] * WARM_UP, *range(steps)]]
    found = turns(steps, several=True)
    assert [step for turn in found for step in turn if step is not None] == list(range(steps))
    assert found[0][:WARM_UP] == [None] * WARM_UP
    for turn in found:
        assert turn[0] is None
        assert sum(step is not None for step in turn) <= TURN


class Threads(Alone):
    """Workers that are threads of this process."""

    def __init__(self, worker: int, barrier: threading.Barrier, table: list[Record]) -> None:
        super().__init__(torch.device("cpu"))
        self.worker, self.num_workers = worker, barrier.parties
        self._barrier, self._table = barrier, table

    def gather(self, record: Record) -> list[Record]:
        self._table[self.worker] = record.copy()
        self._barrier.wait()
        records = list(self._table)
        self._barrier.wait()
        return records


@pytest.mark.parametrize("machines", [1, 3])
def test_clocks_of_several_machines_are_set(machines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = [0.0, 1234.5, -60.0]
    barrier = threading.Barrier(3, timeout=20.0)
    table = [np.zeros(0, np.uint8)] * 3
    here = threading.local()
    monkeypatch.setattr(profile_module, "machine_name", lambda: f"host {here.worker % machines}")

    def worker(number: int) -> tuple[float, str]:
        here.worker = number
        clock = ahead[number]
        return set_clock(Threads(number, barrier, table), lambda: time.perf_counter() + clock)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(worker, range(3)))
    if machines == 1:
        assert found == [(0.0, ONE_CLOCK)] * 3
        return
    assert [offset for offset, _ in found] == pytest.approx(ahead, abs=0.05)
    assert all(words.startswith("3 machines: clocks set by") for _, words in found)
