"""Weighted sampling: the right distribution, from (seed, epoch) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from samepath import WeightedSampler
from samepath.errors import UserError

WEIGHTS = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])


def test_draws_are_in_proportion_to_weights() -> None:
    drawn = WeightedSampler(WEIGHTS, 40_000).order(seed=0, epoch=0)
    shares = np.bincount(drawn, minlength=6) / len(drawn)
    assert shares[WEIGHTS == 0].tolist() == [0, 0, 0]
    assert shares == pytest.approx(WEIGHTS / 8, abs=0.01)


def test_without_replacement_no_example_comes_twice_and_heavy_ones_come_first() -> None:
    sampler = WeightedSampler(torch.tensor(WEIGHTS), replacement=False)
    assert sampler.num_examples == 3, "those that can be drawn"
    orders = [sampler.order(seed=1, epoch=epoch) for epoch in range(4000)]
    assert all(sorted(order) == [1, 2, 4] for order in orders)
    firsts = np.bincount([order[0] for order in orders], minlength=6) / len(orders)
    assert firsts == pytest.approx(WEIGHTS / 8, abs=0.03)
    pair = WeightedSampler(WEIGHTS, 2, replacement=False).order(1, 0)
    assert pair.tolist() == orders[0][:2].tolist()


def test_only_seed_epoch_and_weights_decide() -> None:
    sampler = WeightedSampler([1, 2, 3])
    assert sampler.num_examples == 3
    many = sampler.of_length(50)
    orders = {(s, e): many.order(s, e).tolist() for s in (0, 1) for e in (0, 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    assert WeightedSampler((1.0, 2.0, 3.0), 50).order(0, 1).tolist() == orders[0, 1]
    assert many.describe() == WeightedSampler(np.array([1, 2, 3]), 50).describe()
    assert many.describe() != WeightedSampler([1, 2, 4], 50).describe()


def test_only_some_examples() -> None:
    rows = np.array([4, 1, 0])
    cut = WeightedSampler(WEIGHTS, 60).only(rows)
    assert np.asarray(cut.weights).tolist() == [5, 1, 0]
    assert cut.num_examples == 30
    assert WeightedSampler(WEIGHTS, 3, replacement=False).only(rows).num_examples == 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "longer than the data": (
        {"weights": [1, 1], "num_examples": 3, "replacement": False},
        "num_examples is 3, and 2 examples have a weight above 0; draw at most",
    ),
    "longer than what has a weight": (
        {"weights": WEIGHTS, "num_examples": 4, "replacement": False},
        "3 examples have a weight above 0",
    ),
    "negative": ({"weights": [1.0, -2.0]}, "weight of example 1 is -2, negative; give 0"),
    "not finite": ({"weights": [1.0, float("nan")]}, "weight of example 1 is nan, not a number"),
    "all 0": ({"weights": [0, 0]}, "all weights are 0"),
    "none": ({"weights": []}, r"the shape \(0,\)"),
    "a matrix": ({"weights": np.ones((2, 2))}, r"the shape \(2, 2\); give one number for each"),
    "words": ({"weights": ["a"]}, "weights are not numbers"),
    "no draws": ({"weights": [1], "num_examples": 0}, "num_examples is 0; it must be a whole"),
    "half a draw": ({"weights": [1], "num_examples": 1.5}, "num_examples is 1.5"),
    "replacement": ({"weights": [1], "replacement": "no"}, "replacement is 'no'; use True"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_samplers(what: str) -> None:
    given, says = BAD[what]
    with pytest.raises(UserError, match=f"^sampler: .*{says}") as error:
        WeightedSampler(**given)
    assert "\n" not in str(error.value)


def test_weights_of_other_data() -> None:
    with pytest.raises(UserError, match="2 weights for 5 training examples; give one for each"):
        WeightedSampler([1, 1]).refuse_other_data(5)
