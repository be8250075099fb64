"""What a study found: the content of `study.json`.

In: what the runs and the stopwatch found. Out: the same as frozen dataclasses, to JSON and back.
Every time says how it is known: "measured" (with that many real workers, here) or "modelled".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from samepath.files import read_as
from samepath.timing.measured import ClockFacts, How

Ended = Literal["target", "diverged", "stuck", "epochs", "impossible", "unfinished"]
"""target reached; NaN or infinity; a loss that no longer moves; the epoch limit; a batch larger
than the data; not run to its end yet."""
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The end of one epoch of a run."""

    epoch: int
    """Epochs done, from 1."""
    steps: int
    """Updates so far."""
    examples: int
    """Examples seen so far."""
    seconds: float
    """Training time so far with the run's number of workers (evaluation is not counted)."""
    batch_size: int
    learning_rate: float
    """The rate of the epoch's last step."""
    train_loss: float | None
    valid_loss: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    """What else the recipe evaluates ("accuracy", ...), on the validation data."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One strategy at one number of workers with one seed."""

    strategy: str
    workers: int
    """k: the workers the strategy is for. How many really ran does not change the path."""
    seed: int
    folder: str
    """Of the run, inside the study's folder. Runs on the same path share one."""
    batch_size: int
    """Of the first epoch."""
    learning_rate: float
    """The highest it came to."""
    lag: int
    """Updates a gradient waits before it is applied; its staleness."""
    ended: Ended
    why: str
    """The end in words, where there is more to say."""
    how: How
    """How `seconds` are known."""
    step_seconds: float | None
    """Of a step of the first epoch's batch size, at this number of workers."""
    curve: tuple[Epoch, ...]

    @property
    def reached(self) -> bool:
        return self.ended == "target"

    @property
    def last(self) -> Epoch | None:
        return self.curve[-1] if self.curve else None

    @property
    def best_loss(self) -> float:
        """The lowest validation loss; NaN where there is none."""
        losses = [e.valid_loss for e in self.curve if e.valid_loss is not None]
        return min((loss for loss in losses if math.isfinite(loss)), default=math.nan)

    @property
    def seconds_to_target(self) -> float | None:
        """Training time to the target; None where it was not reached."""
        return self.last.seconds if self.reached and self.last else None


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median over seeds, and the lowest and highest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All seeds of one strategy at one number of workers."""

    strategy: str
    workers: int
    reached: int
    """Seeds that came to the target."""
    seeds: int
    how: How
    seconds: Interval | None
    """Time to target over the seeds that reached it; None unless more than half did."""
    epochs: Interval | None
    efficiency: Interval | None
    """T1 / (n Tn), as a fraction; T1 is the sequential run's with the same seed."""
    ended: dict[str, int]
    """How many seeds ended in which way."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model against a measurement."""

    strategy: str
    workers: int
    measured_efficiency: float
    modelled_efficiency: float


@dataclass(frozen=True, kw_only=True)
class Target:
    """The loss that all runs race to."""

    loss: float
    how: Literal["given", "auto", "recipe"]
    fraction: float | None
    """auto: the loss after this fraction of the sequential run's epochs."""
    sequential_best: float
    """The lowest validation loss of the sequential run (median over seeds)."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One rate of the range test."""

    learning_rate: float
    converged: bool
    loss: float
    """Validation loss at the end of the short run."""
    why: str


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The learning rate of the sequential run."""

    value: float
    how: Literal["recipe", "largest", "given"]
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AnyStudy:
    """What every kind of study begins with."""

    format: int
    command: tuple[str, ...]
    versions: dict[str, str]
    recipe: str
    num_examples: int
    num_valid: int
    grain_size: int
    optimizer: str


@dataclass(frozen=True, kw_only=True)
class Study(AnyStudy):
    """All of a race."""

    batch_size: int
    strategies: tuple[str, ...]
    workers: tuple[int, ...]
    seeds: tuple[int, ...]
    max_epochs: int
    target: Target
    rate: Rate
    clock: ClockFacts
    runs: tuple[RunRecord, ...]
    cells: tuple[Cell, ...]
    predictions: tuple[Prediction, ...]
    verdict: str

    def cell(self, strategy: str, workers: int) -> Cell:
        for cell in self.cells:
            if (cell.strategy, cell.workers) == (strategy, workers):
                return cell
        raise KeyError((strategy, workers))


@dataclass(frozen=True, kw_only=True)
class BatchRun:
    """A run with one batch size and one seed, of as many epochs as all others of its study."""

    batch_size: int
    seed: int
    folder: str
    ended: Ended
    why: str
    curve: tuple[Epoch, ...]


@dataclass(frozen=True, kw_only=True)
class BatchStudy(AnyStudy):
    """What every study of batch sizes has beside its runs."""

    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    epochs: int
    metric: str
    """What a run is judged by at its end: "accuracy" where the recipe evaluates it, else "loss"."""
    verdict: str


@dataclass(frozen=True, kw_only=True)
class GridRun(BatchRun):
    """One batch size at one learning rate with one seed."""

    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class GridStudy(BatchStudy):
    """All of a grid of batch sizes and learning rates (Gahlot et al. 2020, figures 4 and 5)."""

    learning_rates: tuple[float, ...]
    runs: tuple[GridRun, ...]


def to_json(study: Study | GridStudy) -> dict[str, Any]:
    """Plain values; NaN and infinities become text where it is written."""
    kind = "race" if isinstance(study, Study) else "grid"
    return {"kind": kind, **asdict(study)}


def from_json(content: Mapping[str, Any]) -> Study | GridStudy:
    """The study that `to_json` was given."""
    rest = {name: value for name, value in content.items() if name != "kind"}
    return read_as(Study if content["kind"] == "race" else GridStudy, rest)  # type: ignore[no-any-return]
