"""The question a strategy is asked and its answer. Pure: no torch, no state.

A strategy is a function of k, the number of workers it is for, and the moment of the run. It
answers with factors of what the recipe says, so that the same rule serves every recipe. The batch
is asked for at the start of every epoch, the rest before every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

Measure: TypeAlias = Literal["curvature", "noise"]
"""Quantities that a strategy can ask for at the end of every epoch."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Position of a run: epoch, batch, and what was measured so far."""

    epoch: int = 0
    """Epochs done."""
    fraction: float = 0.0
    """Part of the current epoch that was seen before this step."""
    batch_size: int = 1
    """The recipe's batch size."""
    most_batch: float = math.inf
    """Size of the whole data, in batches of the recipe; a larger batch is cut to it."""
    history: tuple[Mapping[str, float], ...] = ()
    """Numbers measured at the end of each epoch, by name."""

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.epoch + self.fraction


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """How long after its weights a gradient is applied."""

    kind: Literal["synchronous", "stale", "asynchronous"] = "synchronous"
    lag: int = 0
    """Updates that are made between the weights a gradient is computed with and its own update."""

    def __post_init__(self) -> None:
        if self.lag < 0:
            raise ValueError(f"lag is {self.lag}; it must be at least 0")
        if self.kind == "synchronous" and self.lag:
            raise ValueError(f"lag is {self.lag}, but synchronous updates have none")


@dataclass(frozen=True, kw_only=True)
class OtherOptimizer:
    """An optimizer in place of the recipe's. It is the same for the whole run."""

    name: Literal["lars", "lamb"]
    learning_rate: float | None = None
    """Its rate before factors; the recipe's when not given."""


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """Train on examples moved a little in the direction that raises their loss."""

    epsilon: float
    """How far each input value is moved."""
    share: float
    """Part of a grain's examples that is moved."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy's answer, as factors of what the recipe says."""

    batch: float = 1.0
    """Factor of the recipe's batch size."""
    learning_rate: float = 1.0
    """Factor of the recipe's learning rate (as its schedule has it at this moment)."""
    synchronisation: Synchronisation = Synchronisation()
    optimizer: OtherOptimizer | None = None
    adversarial: Adversarial | None = None
    schedule_steps: int = 1
    """How far a schedule that goes by steps advances: the recipe's steps that the step stands for.
    The run fills it in, whatever a strategy answers."""

    @property
    def lag(self) -> int:
        """Steps that a gradient waits before it is applied."""
        return self.synchronisation.lag


class Strategy(Protocol):
    """How batch, learning rate and synchronisation change with k workers."""

    def __call__(self, k: int, moment: Moment, /) -> Choice: ...
