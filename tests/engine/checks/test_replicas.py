"""What a step leaves alone, and what is the same on every worker between two steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samepath
from samepath.engine.checks.replicas import EVERY, LeftAlone, is_due, refuse_drift
from samepath.engine.comm.tensors import same_bits, tensor_sums
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.progress import Progress
from samepath.engine.state.state import digest, state_of
from samepath.engine.step.buffers import written_in_part
from samepath.engine.step.settings import StepResult
from samepath.errors import ReplicasDiffer, UserError


@pytest.fixture
def session() -> Iterator[Session]:
    with samepath.start(seed=3) as session:
        yield session


INPUTS = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(24) % 3


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=-1)


def prepare(session: Session, model: nn.Module, **settings: Any) -> Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    given = {"batch_size": 8, "grain_size": 2, "name": "", **settings}
    made: Trainer = session.prepare(model, optimizer, loss, **given)
    return made


def test_a_batch_of_no_weight_changes_nothing(session: Session) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    trainer = prepare(session, model, weight=lambda batch: float((batch[1] >= 0).sum()))
    data = INPUTS, torch.full_like(LABELS, -1)
    before = digest(state_of(trainer))
    for share in trainer.batches(data, 0):
        result = trainer.step(share)
        assert result.weight == 0
        assert digest(state_of(trainer)) == before
    assert trainer.step_number == 3
    assert float(model[1].running_var.min()) == 1.0  # type: ignore[operator]


def test_the_epochs_loss_goes_by_weight() -> None:
    """A batch of two labels that count is not worth as much as one of eight."""
    progress = Progress()
    for value, weight in ((1.0, 8.0), (2.0, 2.0), (0.0, 0.0)):
        result = StepResult(
            step=0, epoch=0, loss=value, grain_losses=(), gradient_norm=1.0, noise=None,
            learning_rate=0.1, num_examples=8, weight=weight, stop=False, staleness=0,
        )  # fmt: skip
        progress.add(result)
    assert progress.train_loss == pytest.approx(1.2)


def test_between_steps_every_generator_is_the_steps(session: Session) -> None:
    def draws(consumed: int) -> list[float]:
        trainer = prepare(session, nn.Linear(6, 3))
        found = []
        for share in trainer.batches((INPUTS, LABELS), 0):
            torch.rand(consumed)
            np.random.rand(consumed)
            trainer.step(share)
            found += [float(torch.rand(())), float(np.random.rand()), random.random()]
        trainer.evaluate((INPUTS, LABELS))
        return [*found, float(torch.rand(()))]

    first = draws(1)
    assert first == draws(7)
    assert len(set(first)) >= 9, "steps differ"


def test_evaluation_leaves_weights_and_buffers_alone(session: Session) -> None:
    class Moves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)
            self.register_buffer("asked", torch.zeros(()))
            self.register_buffer("unset", None)
            self.asked: Tensor
            self.unset: Tensor | None

        def forward(self, inputs: Tensor) -> Tensor:
            if not self.training:
                self.asked = self.asked + 1
                self.unset = inputs
                self.inner.weight.data.mul_(1.01)
            scores: Tensor = self.inner(inputs)
            return scores

    model = Moves()
    trainer, told = prepare(session, model), list[str]()
    trainer.warn = told.append
    before = digest(state_of(trainer))
    first = trainer.evaluate((INPUTS, LABELS))
    assert trainer.evaluate((INPUTS, LABELS)) == first
    assert digest(state_of(trainer)) == before
    assert model.unset is None
    assert told == [
        "evaluation changes 'asked' of the model, which is put back: only training changes it"
    ]


def test_a_gradient_that_is_only_looked_at(session: Session) -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            for parameter in self.inner.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            scores: Tensor = self.inner(inputs)
            return scores

    trainer = prepare(session, Clamped())
    source = trainer.source((INPUTS, LABELS))
    before = digest(state_of(trainer))
    trainer.gradient(source, trainer.plan(source).batch(0))
    assert digest(state_of(trainer)) == before


def test_one_grain_may_change_weights_as_it_likes(session: Session) -> None:
    """Nothing is refused that a plain loop would do in the same way."""
    model = nn.Linear(6, 3)

    def wanders(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        model.bias.data.add_(batch[0].mean())
        return loss(model, batch)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = session.prepare(model, optimizer, wanders, batch_size=8, grain_size=8)
    whole.step(next(whole.batches((INPUTS, LABELS), 0)))
    halves = session.prepare(model, optimizer, wanders, batch_size=8, grain_size=4)
    with pytest.raises(UserError, match=r"'bias' is changed by forward\(\) or loss\(\)"):
        halves.step(next(halves.batches((INPUTS, LABELS), 0)))


def test_weights_that_begin_to_wander_late_are_found(session: Session) -> None:
    """Not at once, but within as many steps as lie between two comparisons."""
    model = nn.Linear(6, 3)
    steps = 0

    def wanders(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        if steps > 5:
            model.bias.data.mul_(1.001)
        return loss(model, batch)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = session.prepare(model, optimizer, wanders, batch_size=8, grain_size=4)
    source = trainer.source((INPUTS, LABELS))
    first = next(step for step in range(6, EVERY + 1) if is_due(step))
    for share in trainer.stream(source, 0, first):
        trainer.step(share)
        steps += 1
    with pytest.raises(UserError, match="'bias' is changed"):
        trainer.step(next(trainer.stream(source, first, first + 1)))


def test_drift_is_named() -> None:
    rows = np.array([[1, 2, 3], [1, 2, 3], [1, 9, 3]])
    with pytest.raises(ReplicasDiffer, match="'b' of worker 2 differs from worker 0's now"):
        refuse_drift(["a", "b", "c"], rows, "now")
    refuse_drift(["a", "b", "c"], rows[:2], "now")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool])
def test_one_bit_changes_a_sum(dtype: torch.dtype) -> None:
    tensor = (torch.arange(7 * 5) % 2).to(dtype).view(7, 5)
    before = tensor_sums([tensor, tensor.t(), tensor[:, :3], tensor[:0]])
    assert before[1] == before[0]
    changed = tensor.clone()
    changed[3, 2] = 1 - int(changed[3, 2])
    after = tensor_sums([changed, changed.t(), changed[:, :3], changed[:0]])
    assert (after != before).tolist() == [True, True, True, False]


def test_same_bits() -> None:
    zero = torch.zeros(3)
    assert not same_bits(zero, -zero)
    assert torch.equal(zero, -zero)
    nan = torch.full((3,), torch.nan)
    assert same_bits(nan, nan.clone())
    wave = torch.zeros(3, dtype=torch.complex64)
    assert same_bits(wave, wave.clone())
    assert not same_bits(wave, wave + 1j)


def test_queues_and_averages_are_told_apart() -> None:
    queue = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    wrote = queue.clone()
    wrote[:, 2:5] = 7.0
    assert written_in_part(queue, wrote, [])
    assert written_in_part(queue.T, wrote.T, [])
    assert not written_in_part(queue, 0.9 * queue, [])
    resting = queue.clone()
    resting[1, 3] = resting[2, 5] = 0.5
    assert not written_in_part(queue, resting, []), "single values of an average"
    line = torch.zeros(9)
    told = line.clone()
    told[7:] = told[:1] = 3.0
    assert not written_in_part(line, told, [])
    assert written_in_part(line, told, [(7, 10)])
    assert written_in_part(line, told, [(7, 1)])
    assert not written_in_part(line, told, [(3, 4)])
    dead = torch.zeros(5, 5)
    dead[:3, :3] = 1.0
    assert not written_in_part(dead, 0.5 * dead, []), "features that are always zero"


def test_left_alone_names_what_it_puts_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    held = LeftAlone(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model[0].weight.add_(1)  # type: ignore[operator]
    model(torch.randn(4, 2))
    held.put_back(all_of_it=False)
    assert held.changed == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    held.put_back()
    assert held.changed >= {"0.weight"}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
