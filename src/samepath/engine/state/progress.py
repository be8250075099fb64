"""Progress of a run, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from samepath.engine.noise_scale import NoiseScale
from samepath.engine.step.settings import StepResult
from samepath.errors import UserError
from samepath.recipe import parse_monitor

STUCK = 0.01
"""A loss that stays within this part of itself has not moved."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run."""

    status: str
    """finished, target, early, diverged, stuck or interrupted"""
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
    """Seconds of training, over all starts of the run."""
    message: str = ""
    staleness_mean: float | None = None
    """Over all updates, where they go through a parameter server."""
    staleness_max: int | None = None
    noise_scale: float | None = None
    """The gradient's, at the end: about the batch above which larger ones hardly save steps."""
    noise_low: float | None = None
    noise_high: float | None = None
    """Where it lies with 95%; without an upper end where the gradient is lost in the noise."""
    train_metrics: dict[str, float] = field(default_factory=dict)
    """What loss() returned beside the loss: means over the last epoch's steps so far."""
    best_epoch: int | None = None
    """Epochs after which the best weights were kept; None where none are."""
    best: float | None = None
    """The lowest validation loss, or the best of the metric that is monitored in its place."""
    batch_size: int | None = None
    """The batch size of its last steps: a strategy may make it larger than the recipe's."""
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
    epoch_metrics: dict[str, float] = field(default_factory=dict)
    """Sums over the epoch's steps of what loss() returned beside the loss."""
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_step: int = -1
    best_loss: float | None = None
    """The lowest validation loss so far; or the best of the metric that is monitored in its
    place."""
    since_best: int = 0
    """Epochs since then."""
    is_stopped: bool = False
    """after_step() or after_epoch() has ended the training."""
    skipped: int = 0
    """Updates left out because their gradient was not finite (float16)."""
    recent: list[float] = field(default_factory=list)
    """The last validation losses, as many as its patience and its target's hold look at."""
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

    def begin_epoch(self) -> None:
        """Begin the means of an epoch anew."""
        self.epoch_loss, self.epoch_weight, self.epoch_metrics = 0.0, 0.0, {}

    def add(self, result: StepResult) -> None:
        self.epoch_loss += result.loss * result.weight
        self.epoch_weight += result.weight
        for name, value in result.metrics.items():
            self.epoch_metrics[name] = self.epoch_metrics.get(name, 0.0) + value * result.weight
        self.updates += 1
        self.skipped += result.skipped
        if result.noise is not None:
            scale = self.noise_scale
            scale.add(result.noise)
            self.noise = scale.state()
        self.staleness_sum += result.staleness
        self.staleness_max = max(self.staleness_max, result.staleness)

    def note_best(self, monitor: str) -> bool:
        """Note an epoch's metrics; whether the monitored one is the best so far. NaN never is."""
        name, highest = parse_monitor(monitor)
        if name not in self.metrics:
            if name == "loss":
                return False  # there is no validation
            known = ", ".join(self.metrics) or "none"
            raise UserError(f"monitor is {monitor!r}, and the validation metrics are: {known}")
        value, best = self.metrics[name], self.best_loss
        is_best = not math.isnan(value) and (
            best is None or math.isnan(best) or (value > best if highest else value < best)
        )
        self.since_best = 0 if is_best else self.since_best + 1
        self.best_loss = value if is_best else best
        return is_best

    def has_not_moved(self, patience: int | None) -> bool:
        """The validation loss, over so many epochs."""
        if patience is None or len(self.recent) <= patience:
            return False
        recent = self.recent[-patience - 1 :]
        return max(recent) - min(recent) <= STUCK * abs(min(recent))

    def stays_within(self, target: float, hold: int) -> bool:
        """Whether the last `hold` validation losses are all within the target."""
        recent = self.recent[-hold:]
        return len(recent) == hold and all(loss <= target for loss in recent)

    @property
    def noise_scale(self) -> NoiseScale:
        return NoiseScale(**self.noise)

    @property
    def train_loss(self) -> float | None:
        return self.epoch_loss / self.epoch_weight if self.epoch_weight else None

    @property
    def train_metrics(self) -> dict[str, float]:
        """Means over the epoch's steps so far of what loss() returned beside the loss."""
        if not self.epoch_weight:
            return {}
        return {name: value / self.epoch_weight for name, value in self.epoch_metrics.items()}

    @property
    def staleness_mean(self) -> float:
        return self.staleness_sum / max(1, self.updates)
