"""Runs are the same only if everything is: every worker, every leg, the log, the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samepath.engine.verify.compare import Parting, RunParting, first_difference
from samepath.engine.verify.runs import Leg, Recorded
from samepath.engine.verify.trace import WorkerTrace
from samepath.engine.verify.verify import stops_of

END = {"status": "finished", "message": "", "digest": "d"}


def trace(first: int = 0, last: int = 4, end: dict[str, str] = END) -> WorkerTrace:
    steps = [{"a": str(step)} for step in range(first, last + 1)]
    return WorkerTrace(steps=steps, first_step=first, result=dict(end))


def run(*legs: list[WorkerTrace], log: list[dict[str, Any]] | None = None) -> Recorded:
    return Recorded(
        route=[Leg(len(leg), leg[0].last_step) for leg in legs],
        legs=list(legs),
        folders=[Path()] * len(legs),
        log=[{"step": 1, "train_loss": 0.5}, {"step": 2, "train_loss": 0.25}]
        if log is None
        else log,
    )


REFERENCE = run([trace()])


def test_the_same_is_the_same() -> None:
    assert first_difference(REFERENCE, REFERENCE) is None
    assert first_difference(REFERENCE, run([trace(), trace()])) is None
    assert first_difference(REFERENCE, run([trace(0, 2), trace(0, 2)], [trace(2, 4)])) is None


def test_every_worker_of_every_leg_counts() -> None:
    other = trace(0, 2)
    other.steps[1]["a"] = "another"
    found = first_difference(REFERENCE, run([trace(0, 2), other], [trace(2, 4)]))
    assert found == RunParting(0, 1, Parting(1, "a"))
    later = trace(2, 4)
    later.steps[2]["a"] = "another"
    found = first_difference(REFERENCE, run([trace(0, 2)], [trace(2, 4), later]))
    assert found == RunParting(1, 1, Parting(4, "a"))


def test_a_leg_that_ends_early_is_another_path() -> None:
    early = run([trace(0, 1)], [trace(1, 4)])
    early = Recorded(**(vars(early) | {"route": [Leg(1, 2), Leg(1, 4)]}))
    assert first_difference(REFERENCE, early) == RunParting(0, 0, Parting(2, "status"))


@pytest.mark.parametrize("name", ["status", "message", "digest"])
def test_the_end_counts_though_no_step_shows_it(name: str) -> None:
    other = run([trace(), trace(end=END | {name: "another"})])
    assert first_difference(REFERENCE, other) == RunParting(0, 1, Parting(4, name))


def test_the_log_counts_though_no_step_shows_it() -> None:
    lines = [dict(line) for line in REFERENCE.log]
    lines[1]["train_loss"] = 0.75
    found = first_difference(REFERENCE, run([trace()], log=lines))
    assert found == RunParting(0, 0, Parting(2, "logged train_loss"))
    lines[1] = REFERENCE.log[1] | {"valid_loss": 1.0}
    found = first_difference(REFERENCE, run([trace()], log=lines))
    assert found == RunParting(0, 0, Parting(2, "logged valid_loss"))
    found = first_difference(REFERENCE, run([trace()], log=REFERENCE.log[:1]))
    assert found == RunParting(0, 0, Parting(4, "logged lines"))


@pytest.mark.parametrize(
    ("steps", "per_epoch", "stops"),
    [(1, 5, []), (2, 2, [1]), (2, 1, [1]), (3, 2, [1, 2]), (20, 17, [8, 18]), (20, 6, [3, 7])],
)
def test_runs_are_saved_within_an_epoch_and_after_its_end(
    steps: int, per_epoch: int, stops: list[int]
) -> None:
    assert stops_of(steps, per_epoch) == stops
