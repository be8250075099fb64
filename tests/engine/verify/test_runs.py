"""A short run ends like a long one; and runs are the same only if everything is: every worker,
every leg, the log, the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samepath.engine.verify.compare import Parting, RunParting, first_difference
from samepath.engine.verify.runs import Leg, Recorded, Shortened, num_valid, shorten
from samepath.engine.verify.trace import WorkerTrace
from samepath.engine.verify.verify import stops_of
from samepath.plan import Plan
from samepath.recipe import Recipe

# ---- fewer examples


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 5000), st.integers(1, 60),
    st.integers(1, 9), st.integers(1, 4000),
)  # fmt: skip
def test_an_epoch_ends_within_the_steps_and_as_short(
    batch: int, grain: int, more: int, steps: int, workers: int, valid: int
) -> None:
    whole = Plan(num_examples=batch + more, batch_size=batch, grain_size=min(grain, batch), seed=0)
    found = shorten(whole, valid, steps, workers)
    short = replace(whole, num_examples=found.num_train)
    assert found.num_train <= whole.num_examples
    last, of_whole = (p.batch(p.steps_per_epoch - 1) for p in (short, whole))
    assert len(last.examples) == len(of_whole.examples)
    assert short.steps_per_epoch <= max(steps, 2)
    if whole.steps_per_epoch <= steps - min(3, steps // 5):
        assert found.num_train == whole.num_examples, "small data stay whole"
    assert found.num_valid is not None
    assert found.num_valid <= valid
    assert found.num_valid % whole.grain_size == valid % whole.grain_size
    assert found.num_valid == valid or found.num_valid > workers * whole.grain_size


def test_the_usual_length_reaches_into_the_next_epoch() -> None:
    plan = Plan(num_examples=50_000, batch_size=128, grain_size=16, seed=0)
    assert shorten(plan, None, 20, 5) == Shortened(
        num_train=16 * 128 + 50_000 % 128, num_valid=None
    )


def test_examples_are_chosen_evenly() -> None:
    recipe = Recipe(
        model=lambda: torch.nn.Linear(1, 1),
        train=(torch.arange(100), torch.arange(100) * 2),
        valid=torch.arange(50),
        train_facts={"place": np.arange(100)},
        valid_facts={"place": np.arange(50)},
        loss=lambda model, batch: model(batch).sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters),
        batch_size=2,
        grain_size=1,
        epochs=1,
    )
    short = Shortened(num_train=8, num_valid=5)(recipe)
    rows = [0, 12, 25, 37, 50, 62, 75, 87]
    assert isinstance(short.train, tuple)
    assert [part.tolist() for part in short.train] == [rows, [2 * row for row in rows]]
    assert short.train_facts["place"].tolist() == rows
    assert isinstance(short.valid, torch.Tensor)
    assert short.valid.tolist() == short.valid_facts["place"].tolist() == [0, 10, 20, 30, 40]
    assert num_valid(short) == 5
    same = Shortened(num_train=100, num_valid=50)(recipe)
    assert (same.train, same.valid) == (recipe.train, recipe.valid)


@pytest.mark.parametrize(
    ("steps", "per_epoch", "stops"),
    [(1, 5, []), (2, 2, [1]), (2, 1, [1]), (3, 2, [1, 2]), (20, 17, [8, 18]), (20, 6, [3, 7])],
)
def test_runs_are_saved_within_an_epoch_and_after_its_end(
    steps: int, per_epoch: int, stops: list[int]
) -> None:
    assert stops_of(steps, per_epoch) == stops


# ---- differences between runs

END = {"status": "finished", "message": "", "digest": "d"}
LOG = [{"step": 1, "train_loss": 0.5}, {"step": 2, "train_loss": 0.25}]


def trace(first: int = 0, last: int = 4, end: dict[str, str] = END) -> WorkerTrace:
    steps = [{"a": str(step)} for step in range(first, last + 1)]
    return WorkerTrace(steps=steps, first_step=first, result=dict(end))


def run(*legs: list[WorkerTrace], log: list[dict[str, Any]] = LOG) -> Recorded:
    route = [Leg(len(leg), leg[0].last_step) for leg in legs]
    return Recorded(route=route, legs=list(legs), folders=[Path()] * len(legs), log=log)


REFERENCE = run([trace()])


def test_the_same_is_the_same() -> None:
    assert first_difference(REFERENCE, REFERENCE) is None
    assert first_difference(REFERENCE, run([trace(), trace()])) is None
    assert first_difference(REFERENCE, run([trace(0, 2), trace(0, 2)], [trace(2, 4)])) is None


def test_every_worker_of_every_leg_counts() -> None:
    other, later = trace(0, 2), trace(2, 4)
    other.steps[1]["a"] = later.steps[2]["a"] = "another"
    found = first_difference(REFERENCE, run([trace(0, 2), other], [trace(2, 4)]))
    assert found == RunParting(0, 1, Parting(1, "a"))
    found = first_difference(REFERENCE, run([trace(0, 2)], [trace(2, 4), later]))
    assert found == RunParting(1, 1, Parting(4, "a"))


def test_a_leg_that_ends_early_is_another_path() -> None:
    early = replace(run([trace(0, 1)], [trace(1, 4)]), route=[Leg(1, 2), Leg(1, 4)])
    assert first_difference(REFERENCE, early) == RunParting(0, 0, Parting(2, "status"))


@pytest.mark.parametrize("name", ["status", "message", "digest"])
def test_the_end_counts_though_no_step_shows_it(name: str) -> None:
    other = run([trace(), trace(end=END | {name: "another"})])
    assert first_difference(REFERENCE, other) == RunParting(0, 1, Parting(4, name))


@pytest.mark.parametrize(
    ("log", "parting"),
    [
        ([LOG[0], LOG[1] | {"train_loss": 0.75}], Parting(2, "logged train_loss")),
        ([LOG[0], LOG[1] | {"valid_loss": 1.0}], Parting(2, "logged valid_loss")),
        (LOG[:1], Parting(4, "logged lines")),
    ],
)
def test_the_log_counts_though_no_step_shows_it(log: Any, parting: Parting) -> None:
    assert first_difference(REFERENCE, run([trace()], log=log)) == RunParting(0, 0, parting)
