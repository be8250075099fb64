"""What a trainer is told: once, before every step; and what it says after one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from samepath.data import Draws
from samepath.engine.noise import NoiseSample
from samepath.plan import Batch
from samepath.strategies import Adversarial


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is trained, apart from its data."""

    batch_size: int
    """Examples of one step."""
    grain_size: int
    """Examples computed at once."""
    seed: int = 0
    """Decides order, dropout and augmentation."""
    exact: bool = True
    """Same bits at every worker count; otherwise each worker computes its whole share at once and
    the path is the same up to rounding."""
    clip_norm: float | None = None
    """Clip gradients to this global norm."""
    weight: Callable[[Any], float] | None = None
    """What a grain counts for, when not its number of examples."""
    augment: Callable[[Any, Draws], Any] | None = None
    """Changes training examples with numbers keyed by (seed, epoch, example)."""
    metrics: Callable[[nn.Module, Any], Mapping[str, Tensor]] | None = None
    """Means by name for validation; the loss alone when not given."""
    autocast: torch.dtype | None = None
    """Run forward passes under torch.autocast with this dtype."""
    schedule_every: Literal["step", "epoch"] = "epoch"
    """When the schedule advances."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a Dataset's items."""
    loader_workers: int = 0
    """Loader processes, for Datasets."""
    follow_speed: bool = True
    """A slow worker gets fewer grains, which changes no bits (with `exact`; without it, shares stay
    even)."""


@dataclass(frozen=True)
class Share:
    """A batch, and this worker's grains of it as they are needed."""

    batch: Batch
    grains: Iterator[Any]
    """Those of an even assignment; or a Feed, which has whichever are asked for."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step was like; the same on every worker."""

    step: int
    epoch: int
    loss: float
    grain_losses: tuple[float, ...]
    gradient_norm: float
    """Of the whole batch's gradient, before clipping."""
    noise: NoiseSample | None
    """What it says of the gradient noise scale; None where the batch is one grain."""
    learning_rate: float
    num_examples: int
    weight: float
    """What the loss counts for in the epoch's: the examples, or what weight() says of them."""
    stop: bool
    """Some worker was asked to stop."""
    staleness: int
    """Updates made between the weights the gradient was computed with and this update."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How one step is taken; a strategy chooses it."""

    lag: int = 0
    """Steps that a gradient waits before it is applied."""
    learning_rate: float = 1.0
    """Times what the optimizer and its schedule have."""
    schedule_steps: int = 1
    """How far a schedule that goes by steps advances: the recipe's steps it stands for."""
    adversarial: Adversarial | None = None
