"""Models of every kind that must come out the same at every worker count.

Each case is a function that makes a trainer and its data from a session. 44 examples in batches of
14 make 7 grains of 2 (no power of two) and a last batch of 2: one grain, so most workers are idle.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from samepath import Draws
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.state import digest, state_of

NUM_EXAMPLES = 44


@dataclass
class Case:
    """What `run` needs."""

    trainer: Trainer
    data: Any
    epochs: int = 2
    before_step: Callable[[int], None] | None = None


CASES: dict[str, Callable[[Session], Case]] = {}


def case(make: Callable[[Session], Case]) -> Callable[[Session], Case]:
    CASES[make.__name__] = make
    return make


def run(make: Callable[[Session], Case], session: Session) -> dict[str, Any]:
    """Train a case; everything about it that must not depend on the worker count."""
    torch.manual_seed(5)
    made = make(session)
    losses, digests = [], []
    for epoch in range(made.epochs):
        for share in made.trainer.batches(made.data, epoch):
            if made.before_step is not None:
                made.before_step(made.trainer.step_number)
            result = made.trainer.step(share)
            losses.append(result.loss.hex())
            losses.extend(value.hex() for value in result.grain_losses)
            losses.append(f"noise={result.noise}")
            digests.append(digest(state_of(made.trainer)))
        metrics = made.trainer.evaluate(made.data)
        made.trainer.end_epoch(metrics["loss"])
        losses.extend(f"{name}={value.hex()}" for name, value in metrics.items())
    return {"digests": digests, "losses": losses, "learned": losses[0] != losses[-1]}


def images(channels: int = 1, size: int = 6) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    return (
        torch.randn(NUM_EXAMPLES, channels, size, size, generator=made),
        torch.randint(0, 4, (NUM_EXAMPLES,), generator=made),
    )


def tokens(length: int = 5) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(2)
    words = torch.randint(0, 12, (NUM_EXAMPLES, length), generator=made)
    return words, words.sum(1) % 4


def vectors(width: int = 8) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(3)
    return (
        torch.randn(NUM_EXAMPLES, width, generator=made),
        torch.randint(0, 4, (NUM_EXAMPLES,), generator=made),
    )


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs).float(), labels)


def made(
    session: Session, model: nn.Module, data: Any, *, lr: float = 0.05, **settings: Any
) -> Case:
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9, weight_decay=0.01
    )
    loss = settings.pop("loss", classify)
    schedule = settings.pop("make_schedule", lambda _: None)(optimizer)
    trainer = session.prepare(
        model, optimizer, loss, batch_size=14, grain_size=2, schedule=schedule, **settings
    )
    return Case(trainer, data)


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(6 * 16, 4),
    )  # fmt: skip


@case
def batch_norm_and_dropout(session: Session) -> Case:
    return made(session, small_cnn(), images())


@case
def augmentation(session: Session) -> Case:
    def noisy(batch: tuple[Tensor, Tensor], draws: Draws) -> tuple[Tensor, Tensor]:
        flip = torch.from_numpy(draws.coin())[:, :, None, None]
        noise = torch.from_numpy(draws.normal(36)).view(-1, 1, 6, 6)
        return torch.where(flip, batch[0].flip(3), batch[0]) + 0.1 * noise, batch[1]

    return made(session, small_cnn(), images(), augment=noisy)


@case
def cumulative_batch_norm(session: Session) -> Case:
    """momentum=None makes the running mean depend on the counter num_batches_tracked."""
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 4))
    return made(session, model, vectors())


@case
def lstm(session: Session) -> Case:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 6)
            self.lstm = nn.LSTM(6, 7, num_layers=2, batch_first=True, dropout=0.2)
            self.head = nn.Linear(7, 4)

        def forward(self, words: Tensor) -> Tensor:
            scores: Tensor = self.head(self.lstm(self.embed(words))[0][:, -1])
            return scores

    return made(session, Reader(), tokens())


@case
def attention(session: Session) -> Case:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 8)
            self.register_buffer("place", torch.randn(5, 8), persistent=False)  # never changes
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            self.head = nn.Linear(8, 4)

        def forward(self, words: Tensor) -> Tensor:
            scores: Tensor = self.head(self.layer(self.embed(words) + self.place).mean(1))
            return scores

    return made(session, Reader(), tokens())


@case
def frozen_parameters(session: Session) -> Case:
    model = small_cnn()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return made(session, model, images())


@case
def unfreezing_on_the_way(session: Session) -> Case:
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model[0].requires_grad_(False)
    trainer = session.prepare(model, optimizer, classify, batch_size=14, grain_size=2)

    def thaw(step: int) -> None:
        model[0].requires_grad_(step >= 3)

    return Case(trainer, vectors(), before_step=thaw)


class Branches(nn.Module):
    """A branch that only some grains take, one no grain takes, one only some steps take."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 6)
        self.sometimes = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.never = nn.Linear(6, 6)
        self.some_steps = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4)
        self.calls = 0
        self.open = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.trunk(inputs)
        if inputs[0, 0] > 0.3:
            hidden = self.sometimes(hidden)
        if self.open:
            hidden = self.some_steps(hidden)
        scores: Tensor = self.head(hidden.relu())
        return scores


@case
def unused_parameters(session: Session) -> Case:
    model = Branches()
    ready = made(session, model, vectors())

    def turn(step: int) -> None:
        model.open = step % 3 == 1

    ready.before_step = turn
    return ready


@case
def tied_weights(session: Session) -> Case:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 6)
            self.out = nn.Linear(6, 12, bias=False)
            self.out.weight = self.embed.weight
            self.head = nn.Linear(12, 4)

        def forward(self, words: Tensor) -> Tensor:
            scores: Tensor = self.head(self.out(self.embed(words).mean(1)))
            return scores

    return made(session, Tied(), tokens())


@case
def clipping(session: Session) -> Case:
    return made(session, small_cnn(), images(), clip_norm=0.05)


@case
def schedule_per_step(session: Session) -> Case:
    def cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

    return made(session, small_cnn(), images(), make_schedule=cycle, schedule_every="step")


@case
def schedule_on_plateau(session: Session) -> Case:
    def plateau(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)

    return made(session, small_cnn(), images(), make_schedule=plateau)


@case
def bfloat16_autocast(session: Session) -> Case:
    return made(session, small_cnn(), images(), autocast=torch.bfloat16)


@case
def float64(session: Session) -> Case:
    inputs, labels = vectors()
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)).double()
    return made(session, model, (inputs.double(), labels))


@case
def mixed_types_and_layouts(session: Session) -> Case:
    """Channels-last weights, and bfloat16 parameters beside float32 ones."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3)
            self.conv.weight.data = self.conv.weight.data.contiguous(
                memory_format=torch.channels_last
            )
            self.head = nn.Linear(5 * 16, 4).bfloat16()

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.conv(inputs.contiguous(memory_format=torch.channels_last))
            scores: Tensor = self.head(hidden.relu().flatten(1).bfloat16())
            return scores

    return made(session, Mixed(), images(3))


@case
def weighted_by_valid_labels(session: Session) -> Case:
    """Labels of -1 do not count; some grains have none that do."""
    inputs, labels = vectors()
    labels[::3] = -1
    labels[:9] = -1

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], ignore_index=-1)

    return made(
        session,
        nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)),
        (inputs, labels),
        loss=loss,
        weight=lambda batch: float((batch[1] >= 0).sum()),
    )


@dataclass
class NoisyDataset(Dataset[tuple[Tensor, Tensor]]):
    """Augments with every generator there is."""

    inputs: Tensor = field(default_factory=lambda: vectors()[0])
    labels: Tensor = field(default_factory=lambda: vectors()[1])

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(8) + random.random() + np.random.rand()
        return self.inputs[index] + 0.1 * noise, self.labels[index]


def _dense() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


@case
def dataset(session: Session) -> Case:
    return made(session, _dense(), NoisyDataset(), loader_workers=0)


@case
def dataset_with_loader_processes(session: Session) -> Case:
    return made(session, _dense(), NoisyDataset(), loader_workers=2)


@case
def randomness_from_python_and_numpy(session: Session) -> Case:
    class Jitter(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * (1 + 0.1 * random.random()) + 0.1 * float(np.random.rand())

    return made(session, nn.Sequential(Jitter(), *_dense().children()), vectors())


@case
def buffer_that_changes_late_and_is_replaced(session: Session) -> Case:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(8, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.mean: Tensor
            self.open = False

        def forward(self, inputs: Tensor) -> Tensor:
            scores: Tensor = self.dense(inputs)
            if self.open and self.training:
                self.mean = 0.9 * self.mean + 0.1 * scores.detach().mean(0)
            return scores - self.mean

    model = Late()
    ready = made(session, model, vectors())

    def turn(step: int) -> None:
        model.open = step in (2, 5)

    ready.before_step = turn
    return ready


@case
def activation_checkpointing(session: Session) -> Case:
    class Saver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU())
            self.head = nn.Linear(8, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = checkpoint(self.inner, inputs, use_reentrant=False)
            scores: Tensor = self.head(hidden)
            return scores

    return made(session, Saver(), vectors())


@case
def many_buckets(session: Session) -> Case:
    """Three megabytes a layer: several buckets under way at once."""
    model = nn.Sequential(nn.Linear(8, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(),
                          nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(),
                          nn.Linear(900, 4))  # fmt: skip
    ready = made(session, model, vectors())
    ready.epochs = 1
    return ready
