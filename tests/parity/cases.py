"""Models of every kind that must come out the same at every worker count, after every step.

Each case makes a training as the constructs do: 7 grains of 2 (no power of two) in a batch, and a
last batch of one grain, so that most workers are idle.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from constructs import (
    NUM_EXAMPLES,
    Batch,
    Model,
    Training,
    classify_valid,
    dense,
    num_valid,
    sgd,
    tokens,
    training,
    vectors,
    with_batch_norm,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from samepath import Draws
from samepath.engine.run.session import Session

CASES: dict[str, Callable[[], Training]] = {}


def case(make: Callable[[], Training]) -> Callable[[], Training]:
    CASES[make.__name__] = make
    return make


def run(make: Callable[[], Training], session: Session) -> dict[str, Any]:
    """Train a case; everything about it that must not depend on the worker count."""
    torch.manual_seed(5)
    made = make()
    trainer = made.prepare(session)
    losses, digests = [], []
    for epoch in range(made.epochs):
        for share in trainer.batches(made.data, epoch):
            made.before_step(trainer.step_number)
            result = trainer.step(share)
            losses += [result.loss.hex(), *(value.hex() for value in result.grain_losses)]
            losses.append(f"noise={result.noise}")
            digests.append(trainer.digest())
        metrics = trainer.evaluate(made.data)
        trainer.end_epoch(metrics["loss"])
        losses.extend(f"{name}={value.hex()}" for name, value in metrics.items())
    return {"digests": digests, "losses": losses, "learned": losses[0] != losses[-1]}


def images(channels: int = 1, size: int = 6) -> Batch:
    made = torch.Generator().manual_seed(1)
    return (
        torch.randn(NUM_EXAMPLES, channels, size, size, generator=made),
        torch.randint(0, 4, (NUM_EXAMPLES,), generator=made),
    )


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(6 * 16, 4),
    )  # fmt: skip


@case
def batch_norm_and_dropout() -> Training:
    return training(small_cnn(), data=images())


@case
def augmentation() -> Training:
    def noisy(batch: Batch, draws: Draws) -> Batch:
        flip = torch.from_numpy(draws.coin())[:, :, None, None]
        noise = torch.from_numpy(draws.normal(36)).view(-1, 1, 6, 6)
        return torch.where(flip, batch[0].flip(3), batch[0]) + 0.1 * noise, batch[1]

    return training(small_cnn(), data=images(), augment=noisy)


@case
def cumulative_batch_norm() -> Training:
    """momentum=None makes the running mean depend on the counter num_batches_tracked."""
    return training(with_batch_norm(momentum=None))


@case
def lstm() -> Training:
    def forward(model: Any, words: Tensor) -> Any:
        return model.head(model.lstm(model.embed(words))[0][:, -1])

    embed, reads = nn.Embedding(12, 6), nn.LSTM(6, 7, num_layers=2, batch_first=True, dropout=0.2)
    return training(Model(forward, embed=embed, lstm=reads, head=nn.Linear(7, 4)), data=tokens())


@case
def attention() -> Training:
    def forward(model: Any, words: Tensor) -> Any:
        return model.head(model.layer(model.embed(words) + model.place).mean(1))

    model = Model(forward, embed=nn.Embedding(12, 8))
    model.register_buffer("place", torch.randn(5, 8), persistent=False)  # never changes
    model.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model.head = nn.Linear(8, 4)
    return training(model, data=tokens())


@case
def frozen_parameters() -> Training:
    model = small_cnn()
    model[0].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    return training(model, data=images(), optimizer=lambda _: sgd(trained))


@case
def unfreezing_on_the_way() -> Training:
    model = dense()
    model[0].requires_grad_(False)
    return training(
        model,
        optimizer=partial(torch.optim.Adam, lr=0.01),
        before_step=lambda step: model[0].requires_grad_(step >= 3),
    )


@case
def unused_parameters() -> Training:
    """A branch that only some grains take, one no grain takes, one only some steps take."""
    steps = [0]

    def forward(model: Any, inputs: Tensor) -> Any:
        hidden = model.trunk(inputs)
        if inputs[0, 0] > 0.3:
            hidden = model.sometimes(hidden)
        if steps[-1] % 3 == 1:
            hidden = model.some_steps(hidden)
        return model.head(hidden.relu())

    model = Model(
        forward,
        trunk=nn.Linear(8, 6),
        sometimes=nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)),
        never=nn.Linear(6, 6),
        some_steps=nn.Linear(6, 6),
        head=nn.Linear(6, 4),
    )
    return training(model, before_step=steps.append)


@case
def tied_weights() -> Training:
    def forward(model: Any, words: Tensor) -> Any:
        return model.head(model.out(model.embed(words).mean(1)))

    embed, out = nn.Embedding(12, 6), nn.Linear(6, 12, bias=False)
    out.weight = embed.weight
    return training(Model(forward, embed=embed, out=out, head=nn.Linear(12, 4)), data=tokens())


@case
def clipping() -> Training:
    return training(small_cnn(), data=images(), clip_norm=0.05)


@case
def schedule_per_step() -> Training:
    return training(
        small_cnn(),
        data=images(),
        schedule=partial(OneCycleLR, max_lr=0.1, total_steps=20),
        schedule_every="step",
    )


@case
def schedule_on_plateau() -> Training:
    plateau = partial(ReduceLROnPlateau, patience=0, threshold=10.0)
    return training(small_cnn(), data=images(), schedule=plateau)


@case
def bfloat16_autocast() -> Training:
    return training(small_cnn(), data=images(), autocast=torch.bfloat16)


@case
def float64() -> Training:
    inputs, labels = vectors()
    return training(with_batch_norm().double(), data=(inputs.double(), labels))


@case
def mixed_types_and_layouts() -> Training:
    """Channels-last weights, and bfloat16 parameters beside float32 ones."""

    def forward(model: Any, inputs: Tensor) -> Any:
        hidden = model.conv(inputs.contiguous(memory_format=torch.channels_last))
        return model.head(hidden.relu().flatten(1).bfloat16())

    conv = nn.Conv2d(3, 5, 3)
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    return training(Model(forward, conv=conv, head=nn.Linear(80, 4).bfloat16()), data=images(3))


@case
def weighted_by_valid_labels() -> Training:
    """Labels of -1 do not count; some grains have none that do."""
    inputs, labels = vectors()
    labels[::3] = -1
    labels[:9] = -1
    return training(data=(inputs, labels), loss=classify_valid, weight=num_valid)


class NoisyDataset(Dataset[Batch]):
    """Augments with every generator there is."""

    def __init__(self) -> None:
        self.inputs, self.labels = vectors()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Batch:
        noise = torch.randn(8) + random.random() + np.random.rand()
        return self.inputs[index] + 0.1 * noise, self.labels[index]


@case
def dataset() -> Training:
    return training(data=NoisyDataset(), loader_workers=0)


@case
def dataset_with_loader_processes() -> Training:
    return training(data=NoisyDataset(), loader_workers=2)


class Jitter(nn.Module):
    """Noise from generators that are not torch's."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (1 + 0.1 * random.random()) + 0.1 * float(np.random.rand())


@case
def randomness_from_python_and_numpy() -> Training:
    return training(nn.Sequential(Jitter(), *dense()))


@case
def buffer_that_changes_late_and_is_replaced() -> Training:
    steps = [0]

    def forward(model: Any, inputs: Tensor) -> Any:
        scores = model.dense(inputs)
        if steps[-1] in (2, 5) and model.training:
            model.mean = 0.9 * model.mean + 0.1 * scores.detach().mean(0)
        return scores - model.mean

    model = Model(forward, dense=nn.Linear(8, 4), mean=torch.zeros(4))
    return training(model, before_step=steps.append)


@case
def activation_checkpointing() -> Training:
    def forward(model: Any, inputs: Tensor) -> Any:
        return model.head(checkpoint(model.inner, inputs, use_reentrant=False))

    inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU())
    return training(Model(forward, inner=inner, head=nn.Linear(8, 4)))


@case
def many_buckets() -> Training:
    """Three megabytes a layer: several buckets under way at once."""
    widths = pairwise((8, 900, 900, 900, 900, 4))
    layers = [layer for few, many in widths for layer in (nn.Linear(few, many), nn.ReLU())]
    return training(nn.Sequential(*layers[:-1]), epochs=1)
