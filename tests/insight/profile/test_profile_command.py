"""What `samepath profile` refuses, before it measures anything; and what its tables say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from samepath.cli import main
from samepath.insight.profile import profile as profile_module
from samepath.insight.profile.engines_horovod import reductions
from samepath.insight.profile.timeline import Event
from samepath.insight.profile.worker import TURN, WARM_UP, turns


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def launch(*_: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(profile_module, "launch", launch)
    monkeypatch.setitem(sys.modules, "horovod", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "samepath,deepspeed"], "there is no such engine; use samepath, ddp, queue"),
        (["--engine", ","], "names nothing"),
        (["--engine", "samepath,ddp,queue,horovod"], "Horovod cannot be used here"),
        (["--engine", "horovod", "--json"], "--engine queue"),
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
    assert says in err
    assert err.startswith("samepath: ")
    assert err.count("\n") == 1, "one line"
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


def test_horovods_own_timeline_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are processes in it; those of two that were fused overlap."""
    monkeypatch.setattr("time.time", lambda: 5000.0)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    facts = {"start_time_since_epoch_in_micros": 4990e6}
    rows: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": facts}]
    rows += [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"allreduce.{name}"}}
        for pid, name in ((1, "a.weight"), (2, "a.bias"), (3, "b"))
    ]
    for pid, began, ended in ((1, 2.0e6, 3.0e6), (2, 2.1e6, 3.5e6), (3, 5.0e6, 6.0e6)):
        rows += [
            {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": pid, "ts": began - 1e6},
            {"ph": "E", "pid": pid, "ts": began - 0.5e6},
            {"ph": "B", "name": "ALLREDUCE", "pid": pid, "ts": began},
            {"ph": "B", "name": "GLOO_ALLREDUCE", "pid": pid, "ts": began + 0.1e6},
            {"ph": "E", "pid": pid, "ts": ended - 0.1e6},
            {"ph": "E", "pid": pid, "ts": ended},
        ]
    sizes = {"a.weight": 400, "a.bias": 40, "b": 4}
    step = Event(worker=1, step=0, phase="step", name="", begin=91.0, end=94.0)
    found = reductions(rows, sizes, [step], worker=1, num_workers=2)
    (event,) = found  # b was reduced in no step that is timed
    assert (event.begin, event.end) == pytest.approx((92.0, 93.5))
    assert (event.worker, event.step, event.phase) == (1, 0, "reduction")
    assert event.bytes_sent == 440
