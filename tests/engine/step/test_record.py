"""Losses and metrics that have no sum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import samepath
from samepath.engine.step.record import exact_sum
from samepath.errors import Diverged


def test_exact_sum() -> None:
    assert exact_sum([1e16, 1.0, -1e16]) == 1.0
    assert exact_sum([math.inf, 1.0]) == math.inf
    assert math.isnan(exact_sum([math.inf, -math.inf]))
    assert math.isnan(exact_sum([1e308] * 20))


def test_grains_that_diverge_both_ways() -> None:
    """A likelihood's may: it is a run that has diverged, not a fault of the program."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        found: Tensor = model(batch) / 0.0
        return found.mean()

    with samepath.start() as session:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = session.prepare(
            model, optimizer, loss, batch_size=2, grain_size=1,
            metrics=lambda model, batch: {"loss": (batch / 0.0).mean()},
            weight=lambda batch: 1.0,
        )  # fmt: skip
        both = torch.tensor([[1.0], [-1.0]])
        assert math.isnan(trainer.evaluate(both)["loss"])
        with pytest.raises(Diverged, match="the loss became nan at step 0"):
            trainer.step(next(trainer.batches(both, 0)))


def test_nothing_that_counts_has_no_mean() -> None:
    with samepath.start() as session:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = session.prepare(
            model, optimizer, lambda model, batch: model(batch).mean(), batch_size=2, grain_size=1,
            weight=lambda batch: 0.0,
        )  # fmt: skip
        assert math.isnan(trainer.evaluate(torch.ones(4, 1))["loss"])
