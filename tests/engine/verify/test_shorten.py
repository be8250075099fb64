"""A shorter epoch ends like the whole one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from samepath.engine.verify.shorten import Shortened, num_valid, shorten
from samepath.plan import Plan
from samepath.recipe import Recipe


def plan(examples: int, batch: int = 12, grain: int = 5) -> Plan:
    return Plan(num_examples=examples, batch_size=batch, grain_size=grain, seed=0)


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 5000), st.integers(1, 60),
    st.integers(1, 9), st.integers(1, 4000),
)  # fmt: skip
def test_an_epoch_ends_within_the_steps_and_as_short(
    batch: int, grain: int, more: int, steps: int, workers: int, valid: int
) -> None:
    whole = plan(batch + more, batch, min(grain, batch))
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
    found = shorten(plan(50_000, 128, 16), None, 20, 5)
    assert found == Shortened(num_train=16 * 128 + 50_000 % 128, num_valid=None)


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
    assert same.train is recipe.train
    assert same.valid is recipe.valid
