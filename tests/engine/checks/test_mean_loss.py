"""Losses that are no mean over examples: which are noticed, and what is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samepath
from samepath.engine.run.trainer import Trainer
from samepath.errors import UserError

Batch = tuple[Tensor, Tensor]


def data(dtype: torch.dtype = torch.float32) -> Batch:
    made = torch.Generator().manual_seed(1)
    return torch.randn(64, 8, generator=made).to(dtype), torch.arange(64) % 4


def cross_entropy(model: Any, batch: Batch, **more: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1], **more)


def summed(model: Any, batch: Batch) -> Tensor:
    return cross_entropy(model, batch, reduction="sum")


def begin(
    session: Any, loss: Callable[..., Any], model: nn.Module | None = None, **settings: Any
) -> Trainer:
    torch.manual_seed(0)
    made = model or nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    given = {"batch_size": 32, "grain_size": 8, "name": "", **settings}
    found: Trainer = session.prepare(made, optimizer, loss, **given)
    return found


def step(trainer: Trainer, examples: Batch | None = None) -> None:
    trainer.step(next(trainer.batches(examples or data(), 0)))


def test_what_is_noticed_and_silenced() -> None:
    with samepath.start(seed=1) as session:
        with pytest.raises(UserError, match=r"sum over examples.*--i-know, or i_know=True"):
            step(begin(session, summed))
        step(begin(session, summed, i_know=True))
        step(begin(session, summed, grain_size=32))  # a grain is the batch


def test_it_is_looked_for_once_in_a_run() -> None:
    """A run that goes on was let through, or silenced, when it began."""
    with samepath.start(seed=1) as session:
        trainer = begin(session, summed)
        _, second, *_ = trainer.batches(data(), 0)
        trainer.step(second)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_means_of_any_precision_pass(dtype: torch.dtype, offset: float) -> None:
    """Also where large numbers cancel."""

    def loss(model: Any, batch: Batch) -> Tensor:
        scores: Tensor = model(batch[0])
        return cross_entropy(model, batch) + (scores + offset).mean() - offset

    with samepath.start(seed=1) as session:
        step(begin(session, loss, nn.Linear(8, 4).to(dtype)), data(dtype))


def test_a_mean_passes_where_the_model_has_no_loss_in_evaluation_mode() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))

        def forward(self, inputs: Tensor) -> Any:
            return self.layers(inputs) if self.training else ["boxes"]

    with samepath.start(seed=1) as session:
        step(begin(session, cross_entropy, Detector()))
        with pytest.raises(UserError, match="reduction='mean'"):
            step(begin(session, summed, Detector()))


def test_what_cannot_be_judged_passes() -> None:
    def noisy(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch) * (1 + torch.rand(()))

    def ragged(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch)

    def pad(items: list[Any]) -> Any:
        """As long as its longest, which differs between grains."""
        width = 8 + int(items[0][1])
        inputs = torch.stack([item[0] for item in items])
        return (
            F.pad(inputs, (0, width - 8))[:, :8].contiguous(),
            torch.tensor([int(item[1]) for item in items]),
            torch.zeros(len(items), width),
        )

    with samepath.start(seed=1) as session:
        step(begin(session, noisy))
        items = list(zip(*data(), strict=True))
        trainer = begin(session, ragged, collate=pad)
        trainer.step(next(trainer.batches(items, 0)))


def test_generators_and_the_model_are_left_alone() -> None:
    seen = []

    def loss(model: Any, batch: Batch) -> Tensor:
        model.count += 1  # of the copy
        seen.append((torch.rand(()), np.random.rand(), random.random()))
        return cross_entropy(model, batch)

    class Counting(nn.Sequential):
        count: Tensor

        def __init__(self) -> None:
            super().__init__(nn.Linear(8, 4))
            self.register_buffer("count", torch.zeros(()))

    with samepath.start(seed=1) as session:
        found = []
        for i_know in (False, True):
            seen.clear()
            torch.manual_seed(2)
            trainer = begin(session, loss, Counting(), i_know=i_know)
            step(trainer)
            found.append((trainer.digest(), seen[-4:]))  # of the step's four grains
        assert len(seen) == 4
        assert found[0] == found[1]


def test_weights_of_classes() -> None:
    weight = torch.tensor([1.0, 5.0, 2.0, 9.0])

    def loss(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch, weight=weight)

    made = torch.Generator().manual_seed(4)
    examples = data()[0], torch.randint(0, 4, (64,), generator=made)
    with samepath.start(seed=1) as session:
        with pytest.raises(UserError, match="give weight="):
            step(begin(session, loss), examples)
        step(begin(session, loss, weight=lambda batch: float(weight[batch[1]].sum())), examples)


def test_weights_of_classes_that_the_first_grains_do_not_show() -> None:
    """A rare class is in no grain of the first batch, or in its fourth alone."""
    weight = torch.tensor([1.0, 5.0, 5.0, 5.0])

    def loss(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch, weight=weight)

    def own(model: Any, batch: Batch) -> Tensor:
        each = cross_entropy(model, batch, reduction="none") * weight[batch[1]]
        return each.sum() / weight[batch[1]].sum()

    def by_example(model: Any, batch: Batch) -> Tensor:
        pairs = zip(model(batch[0]), batch[1], strict=True)
        each = [F.cross_entropy(out[None], label[None], weight=weight) for out, label in pairs]
        return torch.stack(each).mean()

    def divided(model: Any, batch: Batch) -> Tensor:
        return loss(model, batch) * weight[batch[1]].mean()

    inputs, common = data()[0], torch.zeros(64, dtype=torch.long)
    with samepath.start(seed=1) as session:
        with pytest.raises(UserError, match=r"cross entropy with class weights.*give weight="):
            step(begin(session, loss), (inputs, common))
        step(begin(session, loss, weight=lambda batch: float(len(batch[1]))), (inputs, common))
        step(begin(session, loss, i_know=True), (inputs, common))
        step(begin(session, by_example), (inputs, common))
        first = next(begin(session, own).batches((inputs, common), 0)).batch
        rare = common.index_fill(0, torch.tensor(first.grain(3)[:2]), 2)
        with pytest.raises(UserError, match="examples count differently"):
            step(begin(session, own), (inputs, rare))
        step(begin(session, divided), (inputs, rare))
