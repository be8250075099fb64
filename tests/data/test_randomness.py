"""What an example draws: its own numbers, whoever is beside it, and good ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samepath.data import Draws, seed_everything

Array = np.ndarray[Any, Any]
KINDS: dict[str, Callable[[Draws], Array]] = {
    "uniform": lambda draws: draws.uniform(3),
    "uniform in a range": lambda draws: draws.uniform(3, -2.0, 5.0),
    "normal": lambda draws: draws.normal(3),
    "integers": lambda draws: draws.integers(-5, 1000, 3),
    "coin": lambda draws: draws.coin(0.5, 40),
}


def draws_of(examples: list[int], *, seed: int = 1, epoch: int = 2) -> Draws:
    return Draws(seed=seed, epoch=epoch, examples=np.array(examples, np.int64))


@pytest.mark.parametrize("kind", KINDS)
@given(
    examples=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    others=st.lists(st.integers(0, 10**6), max_size=20),
)
def test_rows_do_not_depend_on_neighbours(
    kind: str, examples: list[int], others: list[int]
) -> None:
    together = KINDS[kind](draws_of([*others, *examples]))
    assert len(together) == len(examples) + len(others)
    for example, row in zip(examples, together[len(others) :], strict=True):
        np.testing.assert_array_equal(row, KINDS[kind](draws_of([example]))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_depend_on_seed_epoch_and_example(kind: str) -> None:
    """(1, 2, 3) and every permutation and change of it."""
    words = [(1, 2, 3), (2, 1, 3), (3, 2, 1), (1, 3, 2), (2, 2, 3), (1, 2, 4), (0, 2, 3)]
    rows = [KINDS[kind](draws_of([e], seed=s, epoch=p)).tobytes() for s, p, e in words]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_independent(kind: str) -> None:
    draws = draws_of([7])
    assert KINDS[kind](draws).tobytes() != KINDS[kind](draws).tobytes()
    draws = draws_of([1, 2])
    one_by_one = np.concatenate([draws.uniform(), draws.uniform()], axis=1)
    np.testing.assert_array_equal(draws_of([1, 2]).uniform(2), one_by_one)


MANY = list(range(20_000))


def test_uniform() -> None:
    values = draws_of(MANY).uniform(5)
    assert values.dtype == np.float32
    assert values.shape == (len(MANY), 5)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts = np.histogram(values, bins=10, range=(0, 1))[0]
    assert abs(counts - 10_000).max() < 5 * np.sqrt(10_000 * 0.9)
    assert abs(np.corrcoef(values.T) - np.eye(5)).max() < 0.03
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.03
    ranged = draws_of(MANY).uniform(2, 0.8, 1.2)
    assert 0.8 <= ranged.min() < 0.801
    assert 1.199 < ranged.max() <= 1.2
    assert abs(ranged.mean() - 1.0) < 0.003


def test_normal() -> None:
    values = draws_of(MANY).normal(4).astype(np.float64)
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.015
    assert abs(values.std() - 1) < 0.01
    assert abs((values**3).mean()) < 0.05
    assert abs((values**4).mean() - 3) < 0.1
    assert abs((np.abs(values) < 1.0).mean() - 0.6827) < 0.01


def test_integers() -> None:
    values = draws_of(MANY).integers(-2, 3, 5)
    assert values.dtype == np.int64
    found, counts = np.unique(values, return_counts=True)
    assert found.tolist() == [-2, -1, 0, 1, 2]
    assert abs(counts - 20_000).max() < 5 * np.sqrt(20_000 * 0.8)
    assert (draws_of(MANY).integers(4, 5) == 4).all()
    with pytest.raises(ValueError, match="high must be above low"):
        draws_of([1]).integers(3, 3)


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.5, 1.0])
def test_coin(probability: float) -> None:
    values = draws_of(MANY).coin(probability, 3)
    assert values.dtype == np.bool_
    assert abs(values.mean() - probability) < 0.01 * (0 < probability < 1) + 1e-12


def test_seed_everything_sets_every_generator() -> None:
    def numbers(word: int) -> tuple[float, float, float, float]:
        seed_everything(word)
        return (
            float(torch.rand(())),
            float(torch.nn.functional.dropout(torch.ones(64)).sum()),
            float(np.random.rand()),
            random.random(),
        )

    first, again, other = numbers(2**64 - 5), numbers(2**64 - 5), numbers(9)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    seed_everything(12345)
    ours = torch.rand(5)
    torch.manual_seed(12345)
    assert torch.equal(ours, torch.rand(5)), "torch's own seeding"
