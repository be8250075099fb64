"""What `samepath advise` found: the content of `advice.json`.

In: measurements, short runs and the model. Out: frozen dataclasses. Every time says how it is
known: "measured" (with that many real workers, here) or "modelled". Units are in the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from samepath.study.results import How, NetworkFacts

Limit: TypeAlias = Literal["link", "update", "waiting", "crowding", "grains", "cores", "asked"]
"""What keeps more workers from paying: reductions that nothing hides; what every worker does alike;
waiting for whoever is slowest or has a grain more; cores that share memory; no grain left to give;
no core left; nothing, up to the most workers asked about."""
Room: TypeAlias = Literal["yes", "no", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of workers."""

    workers: int
    nodes: int
    grain_size: int
    """Of the step: finer than the recipe's where there are more workers than its grains."""
    step_seconds: float
    how: How
    modelled_seconds: float
    """The model's, also where the step was measured."""
    speedup: float
    efficiency: float
    """speedup / workers."""
    cost: float
    """Worker-seconds, in those of one worker."""
    training_seconds: float
    """Of all the recipe's epochs, without evaluation."""
    price: float | None
    """Of that, at the price of a worker-hour; None where none was given."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """T(n) = serial + parallel / n + doubling log2(n), fitted to the rows."""

    serial_seconds: float
    parallel_seconds: float
    doubling_seconds: float
    largest_error: float
    """The largest |fitted / given - 1| of the rows."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One recipe over one link or machine."""

    network: str
    workers_per_node: int | None
    """None: all workers in one computer."""
    links: tuple[NetworkFacts, ...]
    rows: tuple[Row, ...]
    knee: int | None
    """The smallest number of workers that is not worth doubling; None: beyond the table."""
    best: int
    """The largest with an efficiency above the floor; 1 where no number above 1 has it."""
    limit: Limit
    """What keeps the next number in the table from it."""
    grain_size: int
    """The best for `best` workers."""
    grain_gain: float
    """The part of the step that it saves against the recipe's; 0 where it is the recipe's."""
    law: Law | None
    """None with fewer than three numbers of workers."""
    calibration: float
    """Modelled times are multiplied by it, so that the model's one worker is the measured one."""

    def row(self, workers: int) -> Row:
        return next(row for row in self.rows if row.workers == workers)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A short run with one learning rate."""

    learning_rate: float
    converged: bool
    end_loss: float
    """Mean training loss of its last steps; infinite where it did not get there."""
    why: str
    """In words, where it did not converge."""


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The largest rate that still converges."""

    recipe_rate: float
    steps: int
    """Of each run; 0: there was no time for any."""
    start_loss: float | None
    """Of the first batch, before any update."""
    trials: tuple[Trial, ...]
    largest: float | None
    """The largest that converged; None: none did, or none was tried."""
    failing: float | None
    """The smallest above it that did not; None: none was found."""
    note: str
    """What could not be found out, and why."""

    @property
    def linear_workers(self) -> int | None:
        """The most workers for which the rate can be multiplied by their number."""
        if self.largest is None:
            return None
        return max(int(self.largest / self.recipe_rate * (1.0 + 1e-9)), 1)


@dataclass(frozen=True, kw_only=True)
class NoisePoint:
    """The gradient noise scale after a step, in examples."""

    step: int
    scale: float
    """Infinite: the mean gradient is lost in the noise."""
    low: float
    high: float
    """Infinite: no upper end can be told."""


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """How large a batch pays, from the noise scale along a short run."""

    steps: int
    part: float
    """Of the recipe's training, that the run was."""
    grain_size: int
    """Of the run, which may be finer than the recipe's."""
    points: tuple[NoisePoint, ...]
    noise_scale: float | None
    """At the end of the run; None: not determined."""
    noise_low: float | None
    noise_high: float | None
    critical_low: float | None
    """Examples; with how far published critical batches lie below noise scales."""
    critical_high: float | None
    room: Room
    """For a larger batch."""
    weak_workers_low: int | None
    """Workers, each with the recipe's batch, up to which examples are used with an efficiency
    above the floor: at least."""
    weak_workers_high: int | None
    """At most; None: no end can be told."""
    note: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Everything."""

    machine: str
    cores: int
    threads: int
    batch_size: int
    grain_size: int
    grain_fixed: bool
    num_examples: int
    epochs: int
    steps_per_epoch: int
    floor: float
    price_per_worker_hour: float | None
    curves: tuple[Curve, ...]
    """The first is what the verdict is about, after this machine's own ("here")."""
    rates: RangeTest
    batch: CriticalBatch
    verdict: str
    notes: tuple[str, ...]
    seconds: dict[str, float]
    """What each part took."""
