"""Progress of a run, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from samepath.engine.noise_scale import NoiseScale
from samepath.engine.step.settings import StepResult

STUCK = 0.01
"""A loss that stays within this part of itself has not moved."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run."""

    status: str
    """finished, target, diverged, stuck or interrupted"""
    steps: int
    """Completed steps."""
    epochs: float
    train_loss: float | None
    """Mean over the last epoch's steps so far."""
    valid_loss: float | None
    metrics: dict[str, float]
    """Everything the last evaluation found."""
    digest: str
    num_workers: int
    step_seconds: float | None
    """Median over the last thousand steps of this process, without its first."""
    examples_per_second: float | None
    seconds: float
    message: str = ""
    staleness_mean: float | None = None
    """Over all updates, where they go through a parameter server."""
    staleness_max: int | None = None
    noise_scale: float | None = None
    """The gradient's, at the end: about the batch above which larger ones hardly save steps."""
    noise_low: float | None = None
    noise_high: float | None = None
    """Where it lies with 95%; without an upper end where the gradient is lost in the noise."""
    signal: int | None = None
    """Which signal interrupted it, where this process was told."""


@dataclass
class Progress:
    """Progress of a run: part of the state, so that a resumed epoch ends the same."""

    epoch: int = 0
    """Epochs done."""
    epoch_began: int = 0
    """The step at which the epoch under way began."""
    epoch_loss: float = 0.0
    epoch_weight: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_step: int = -1
    best_loss: float | None = None
    """The lowest validation loss so far."""
    recent: list[float] = field(default_factory=list)
    """The last validation losses, as many as the run has patience for."""
    history: list[dict[str, float]] = field(default_factory=list)
    """What the strategy had measured at the end of each epoch."""
    noise: dict[str, float] = field(default_factory=dict)
    """State of the NoiseScale: what it has averaged."""
    lines: int = 0
    """Lines of metrics logged."""
    best_epochs: int = 0
    """Epochs after which the best loss was reached; 0 where no weights are kept as the best."""
    updates: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0

    def add(self, result: StepResult) -> None:
        self.epoch_loss += result.loss * result.weight
        self.epoch_weight += result.weight
        self.updates += 1
        if result.noise is not None:
            scale = self.noise_scale
            scale.add(result.noise)
            self.noise = scale.state()
        self.staleness_sum += result.staleness
        self.staleness_max = max(self.staleness_max, result.staleness)

    def is_best(self) -> bool:
        """Whether the last validation loss is the lowest so far. NaN never is."""
        loss, best = self.metrics.get("loss"), self.best_loss
        if loss is None or math.isnan(loss):
            return False
        return best is None or math.isnan(best) or loss < best

    def has_not_moved(self, patience: int | None) -> bool:
        """The validation loss, over so many epochs."""
        recent = self.recent
        if patience is None or len(recent) <= patience:
            return False
        return max(recent) - min(recent) <= STUCK * abs(min(recent))

    @property
    def noise_scale(self) -> NoiseScale:
        return NoiseScale(**self.noise)

    @property
    def train_loss(self) -> float | None:
        return self.epoch_loss / self.epoch_weight if self.epoch_weight else None

    @property
    def staleness_mean(self) -> float:
        return self.staleness_sum / max(1, self.updates)
