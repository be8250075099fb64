"""What a study found: the content of `study.json`, whose schema is `study.schema.json`.

In: what the runs and the stopwatch found. Out: the same as frozen dataclasses, to JSON and back.
Every time says how it is known: "measured" (with that many real workers, here) or "modelled".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from samepath.files import read_as
from samepath.keys import key
from samepath.timing.measured import ClockFacts, How

Ended = Literal["target", "diverged", "stuck", "epochs", "impossible", "unfinished"]
"""target reached; NaN or infinity; a loss that no longer moves; the epoch limit; a batch larger
than the data; not run to its end yet."""
FORMAT = 1
RESAMPLES = 10_000
"""The samples of a bootstrap."""


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
    """The folder of the run, inside the study's folder. Runs on the same path share one."""
    batch_size: int
    """The batch size of the first epoch."""
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
    """Seconds of a step of the first epoch's batch size, at this number of workers."""
    curve: tuple[Epoch, ...]
    study: int = 0
    """Which of the repeated studies it belongs to."""
    tuned: bool = False
    """Whether it has the values of the chosen trial, and not those that the strategy prescribes."""

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
    """A median over seeds, and the lowest and highest; or a median over studies, and where it lies
    with 95%."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        return cls(median=statistics.median(values), low=min(values), high=max(values))

    @classmethod
    def bootstrapped(cls, values: Sequence[float]) -> Interval:
        """A percentile bootstrap of the median, the same every time. Infinite values (a target that
        was not reached) are the highest, and ends may be infinite: nothing is interpolated."""
        random = np.random.default_rng(key("bootstrap", len(values)))
        picked = np.sort(random.choice(np.asarray(values, float), (RESAMPLES, len(values))), axis=1)
        middle = len(values) // 2
        medians = np.sort((picked[:, middle] + picked[:, (len(values) - 1) // 2]) / 2)
        low, high = (float(medians[round(q * (RESAMPLES - 1))]) for q in (0.025, 0.975))
        return cls(median=statistics.median(values), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All seeds of one strategy at one number of workers; all studies, where there are several."""

    strategy: str
    workers: int
    reached: int
    """Seeds (or studies) that came to the target."""
    seeds: int
    """How many there are."""
    how: How
    seconds: Interval | None
    """Time to target over the seeds that reached it; None unless more than half did. In a study
    that tunes or is repeated: over all, where those that did not reach it count as infinite."""
    epochs: Interval | None
    efficiency: Interval | None
    """T1 / (n Tn), as a fraction; T1 is the sequential run's with the same seed."""
    ended: dict[str, int]
    """How many runs ended in which way."""
    tuned: bool = False
    """True for the chosen trials, and not of what the strategy prescribes."""


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
    how: Literal["given", "auto", "recipe", "tuned"]
    fraction: float | None
    """auto: the loss after this fraction of the sequential run's epochs; tuned: the lowest loss of
    the best sequential trial by then, median over further seeds."""
    sequential_best: float
    """The lowest validation loss of the sequential run (median over seeds)."""
    hold: int = 1
    """Evaluations in a row that are within it before it counts as reached."""


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
class Range:
    """What trials draw a setting from, evenly on a logarithmic scale."""

    setting: str
    low: float
    high: float
    factor: bool
    """Whether the ends are factors of the strategy's own value, and not values."""


@dataclass(frozen=True, kw_only=True)
class TuningTrial:
    """One choice of settings, on the seeds that trials are chosen with."""

    strategy: str
    """The strategy with the trial's parameters."""
    learning_rate: float
    """The rate of one worker, before the strategy's factor."""
    reached: int
    """Seeds that came to the target."""
    seconds: float
    """Time to target, median over seeds; infinite where it is not reached."""
    loss: float
    """Lowest validation loss, median over seeds; NaN where there is none."""
    epochs: int = 0
    """Most that it was given: fewer than others where it could come to the target only later than
    one tried before. 0: not known (a study of an older samepath)."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials of a strategy at a number of workers in one study."""

    study: int
    strategy: str
    workers: int
    tried: tuple[TuningTrial, ...]
    """What the strategy prescribes first."""
    chosen: int
    """Place of the one that reached the target soonest, or has the lowest loss if none did."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How strategies were tuned: all with as many trials."""

    num_trials: int
    ranges: tuple[Range, ...]
    seeds: tuple[int, ...]
    """Seeds of the trials; none of them is reported."""
    trials: tuple[Trials, ...]


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One run from the base run's state, with one batch size and one order of the data."""

    batch_size: int
    seed: int
    rate_factor: float
    """What the recipe's learning rate is multiplied by."""
    ended: str
    """finished, or what ended it early: diverged, early, target, stuck."""
    loss: float | None
    """Smoothed training loss after as many examples as are compared; None: it did not get there."""
    examples: float | None
    """Until the smoothed loss is the one that the base's own batch comes to; None: it never is."""
    ratio: float | None
    """Those examples over what the base's own batch takes to the same loss."""
    curve: tuple[tuple[float, float], ...]
    """Examples since the branch began, and the smoothed loss there."""


@dataclass(frozen=True, kw_only=True)
class MeasuredBatch:
    """The critical batch, measured by branches of one run (Merrill et al. 2025)."""

    base_batch: int
    base_epochs: int
    base_steps: int
    """Where the branches begin."""
    epochs: int
    """After which losses are compared."""
    most_epochs: int
    """That a branch is given to come to the base's loss."""
    window: int
    """Examples over which losses are averaged."""
    tolerance: float
    """A batch is within it that takes at most this part more examples than the base's."""
    rule: str
    """The strategy by which the learning rate grows with the batch."""
    seeds: tuple[int, ...]
    branches: tuple[Branch, ...]
    critical: int
    """The largest batch that the median order keeps within the tolerance, and all smaller ones."""
    low: int
    """The largest that every order keeps within it, and all smaller ones."""
    high: int | None
    """The smallest that no order keeps within it; None: none that was tried."""
    fitted: float | None
    """B_crit of E = E_min (1 + B / B_crit), the median of orders; infinite: no batch takes more
    examples; None: too few batches come to the loss."""
    fitted_low: float | None
    fitted_high: float | None
    """The smallest and the largest that single orders give."""
    noise_scale: float | None
    """Of the base run, where the branches begin; None: not known."""
    noise_low: float | None
    """The critical batch that the noise scale's interval leads to."""
    noise_high: float | None

    @property
    def batch_sizes(self) -> list[int]:
        return sorted({branch.batch_size for branch in self.branches})

    def of(self, batch_size: int) -> list[Branch]:
        return [branch for branch in self.branches if branch.batch_size == batch_size]


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
    studies: int = 1
    """Times that it was repeated, each with seeds and trials of its own."""
    tuning: Tuning | None = None
    measured_batch: MeasuredBatch | None = None
    """The critical batch, by branches of the sequential run; None: it was not asked for."""

    @property
    def is_fair(self) -> bool:
        """Whether cells are medians in which a target that is not reached counts as infinite."""
        return self.tuning is not None or self.studies > 1

    @property
    def counted(self) -> str:
        """What a cell has several of."""
        return "studies" if self.studies > 1 else "seeds"

    def only(self, *, tuned: bool) -> Study:
        """The study without its tuned runs, or with nothing else."""
        return replace(
            self,
            runs=tuple(run for run in self.runs if run.tuned == tuned),
            cells=tuple(cell for cell in self.cells if cell.tuned == tuned),
        )


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
