"""What `samepath advise` found, the content of `advice.json`, and its verdict in words.

In: measurements, short runs and the model. Out: frozen dataclasses, and a verdict: a sentence on
how many workers and nodes for this machine and one for the first network, then one on batch and
rate, a line each. Guaranteed: every time says how it is known, "measured"
(with that many real workers, here) or "modelled"; nothing is claimed that was not found; "cannot be
told" is an answer. Units are in the names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from samepath.console import sentence
from samepath.study.results import MeasuredBatch
from samepath.timing.links import HERE, NetworkFacts
from samepath.timing.measured import MOST_OFF, How

Limit: TypeAlias = Literal["link", "update", "waiting", "crowding", "grains", "cores", "asked"]
"""What keeps more workers from paying: reductions that nothing hides; what every worker does alike;
waiting for the worker that is slowest or has a grain more; cores that share memory; no grain left
to give; no core left; nothing, up to the most workers asked about."""
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
    """T(n) = serial + parallel / n + doubling log2(n), fitted to the rows (Cunha et al. 2018,
    section IV; the paper leaves the base of the logarithm open)."""

    serial_seconds: float
    """What no worker can take off another."""
    parallel_seconds: float
    """What n workers share."""
    doubling_seconds: float
    """What communication costs with each doubling."""
    largest_error: float
    """The largest |fitted / given - 1| of the rows."""


@dataclass(frozen=True, kw_only=True)
class ScalingCurve:
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
    nodes: int
    """The computers that `best` workers fill."""
    limit: Limit
    """What keeps the next number in the table from it."""
    grain_size: int
    """The best for `best` workers."""
    max_workers: int | None
    """The most workers of which it is the grain size; None where it is the recipe's."""
    grain_gain: float
    """The part of the step that it saves against the recipe's; 0 where it is the recipe's."""
    gain_how: How
    """How `grain_gain` is known."""
    law: Law | None
    """None with fewer than three numbers of workers."""
    calibration: float
    """Modelled times are multiplied by it, so that the model's one worker is the measured one."""
    machine: str = ""
    """The machine whose computing was measured."""
    compute: float = 1.0
    """How many times as fast the computers of this curve are."""
    compute_from: str | None = None
    """The folder with what was measured on a computer of this curve; None: it was here."""
    model_error: float | None = None
    """How far the model is off with several real workers of that machine; None: not known."""

    @property
    def is_model_off(self) -> bool:
        """Modelled times are too far off to go by."""
        return self.model_error is not None and self.model_error > MOST_OFF

    @property
    def computers(self) -> str:
        """Name the computers that the curve is about."""
        if self.compute_from is not None:
            return f"like that of {self.compute_from} ({self.machine})"
        return "like this one" if self.compute == 1.0 else f"{self.compute:g} times as fast"

    @property
    def gain_words(self) -> str:
        """What fewer workers at most would save; empty: nothing."""
        if self.grain_gain <= 0.0:
            return ""
        step = "a step" + (f" of {self.best} workers" if self.best > 1 else " of one worker")
        return (
            f"with --max-workers {self.max_workers} {step} would take about {self.grain_gain:.0%} "
            f"less ({self.gain_how})"
        )

    def row(self, workers: int) -> Row:
        return next(row for row in self.rows if row.workers == workers)


@dataclass(frozen=True, kw_only=True)
class RateTrial:
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
    trials: tuple[RateTrial, ...]
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
    """Everything that was found."""

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
    curves: tuple[ScalingCurve, ...]
    """The first is what the verdict is about, after this machine's own ("here")."""
    rates: RangeTest
    batch: CriticalBatch
    verdict: str
    notes: tuple[str, ...]
    seconds: dict[str, float]
    """What each part took."""
    measured_batch: MeasuredBatch | None = None
    """None: not asked for."""


# ---- in words

_COSTS: dict[Limit, str] = {
    "link": "the link takes the time",
    "update": "the update, which every worker does alike, takes the time",
    "waiting": "workers wait for each other",
    "crowding": "workers of one computer slow each other down",
}
_NO_MORE: dict[Limit, tuple[str, str]] = {
    "grains": ("a batch has no more to share", "a batch is a single grain"),
    "cores": ("it has no more", "it has a single core or GPU"),
    "asked": ("more were not asked about", "more were not asked about"),
}
"""Beyond several workers; beyond one."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def verdict(
    curves: Sequence[ScalingCurve],
    rates: RangeTest,
    batch: CriticalBatch,
    *,
    batch_size: int,
    floor: float,
    measured: MeasuredBatch | None = None,
) -> str:
    """The advice in lines: how many workers and nodes, for this machine and for the first network;
    the last on batch and rate, with the critical batch where it was measured."""
    scaling = [f"{sentence(_of_curve(curve, floor))}." for curve in _main(curves)]
    last = f"{sentence(_of_batch(batch, batch_size, floor))}; {_of_rate(rates)}."
    last += "" if measured is None else f" {sentence(of_measured(measured))}."
    return "\n".join([*scaling, last])


def _main(curves: Sequence[ScalingCurve]) -> list[ScalingCurve]:
    """This machine, and the first of the others."""
    here = [curve for curve in curves if curve.network == HERE]
    others = [curve for curve in curves if curve.network != HERE]
    return here[:1] + others[:1]


def _of_curve(curve: ScalingCurve, floor: float) -> str:
    is_here = curve.network == HERE
    place = f"on this machine ({curve.machine})" if is_here else f"over {curve.network}"
    more = [row for row in curve.rows if row.workers > 1]
    if not more:
        return f"{place} there is only one worker to be had: {_NO_MORE[curve.limit][1]}"
    row, alone = curve.row(curve.best), curve.row(1)
    said = row if row.workers > 1 else more[0]
    source = _source(curve, said)
    if said.how == "modelled" and curve.is_model_off:
        return f"{place} nothing can be said of several workers: {source}, too far to go by"
    if row is alone:
        kept, least = _apart(said.efficiency, floor)
        return (
            f"{place} stay with one worker: {in_nodes(said)} would keep {kept} efficiency, below "
            f"{least}, because {_COSTS[curve.limit]}; {source}"
        )
    return (
        f"{place} take {in_nodes(row)}: {row.speedup:.1f} times as fast as one, "
        f"{row.efficiency:.0%} efficient (training {span(row.training_seconds)}, alone "
        f"{span(alone.training_seconds)}); {_beyond(curve)}; {source}"
    )


def in_nodes(row: Row) -> str:
    """ "4 workers (2 nodes of 2)"."""
    workers = "1 worker" if row.workers == 1 else f"{row.workers} workers"
    if row.nodes == 1:
        return f"{workers} (1 node)"
    each = -(-row.workers // row.nodes)
    most = "" if row.workers == each * row.nodes else "at most "
    return f"{workers} ({row.nodes} nodes of {most}{each})"


def _source(curve: ScalingCurve, row: Row) -> str:
    """Whose computing was measured, and how good the model is where it was used."""
    error = curve.model_error
    checked = (
        "model not checked" if error is None else f"model {error:.0%} off where it can be checked"
    )
    if curve.network == HERE:
        return "measured" if row.how == "measured" else f"modelled ({checked})"
    how = "" if curve.compute == 1.0 else f", taken {curve.compute:g} times as fast"
    if curve.compute_from is not None:
        how = f" ({curve.compute_from})"
    return f"computing measured on {curve.machine}{how}, network modelled ({checked})"


def _beyond(curve: ScalingCurve) -> str:
    """What more workers would bring, as far as the table goes."""
    if curve.limit in _NO_MORE:
        return _NO_MORE[curve.limit][0]
    seconds = {row.workers: row.step_seconds for row in curve.rows if row.workers >= curve.best}
    saved = [1.0 - seconds[2 * n] / taken for n, taken in seconds.items() if 2 * n in seconds]
    because = _COSTS[curve.limit]
    if not saved:
        return f"beyond that {because}"
    if max(saved) <= 0.0:
        return f"doubling them saves nothing, because {because}"
    return (
        f"beyond that a doubling saves at most {math.ceil(100.0 * max(saved))}% of the time, "
        f"because {because}"
    )


def _apart(value: float, limit: float) -> tuple[str, str]:
    """Two percentages with as many digits as tell them apart: "79.9%" and "80.0%"."""
    for digits in range(4):
        texts = f"{value:.{digits}%}", f"{limit:.{digits}%}"
        if texts[0] != texts[1]:
            break
    return texts


def _of_batch(batch: CriticalBatch, batch_size: int, floor: float) -> str:
    if batch.critical_low is None or batch.critical_high is None:
        return f"whether a larger batch pays cannot be told ({batch.note})"
    low, high = examples(batch.critical_low), examples(batch.critical_high)
    if batch.room == "yes":
        number = batch.weak_workers_low
        workers = "any number of" if number is None else f"up to {number:,}"
        return (
            f"a larger batch has room: the critical batch is at least {low} against {batch_size:,},"
            f" so {workers} workers with such a batch each waste at most {1.0 - floor:.0%} of the "
            "examples"
        )
    if batch.room == "no":
        return (
            f"keep the batch of {batch_size:,} and share it: the critical batch is at most {high}, "
            f"so doubling the batch wastes over {1.0 - floor:.0%} of the examples"
        )
    if example_efficiency(batch.critical_high, batch_size, 2) < floor:
        return (
            f"a larger batch has no room at the start, where the critical batch is at most {high} "
            f"against {batch_size:,}, and for later it cannot be told yet"
        )
    between = f"at least {low}" if math.isinf(batch.critical_high) else f"between {low} and {high}"
    return (
        f"whether a larger batch than {batch_size:,} pays cannot be told yet: the critical batch "
        f"is {between}"
    )


def of_measured(found: MeasuredBatch) -> str:
    """The measured critical batch, and whether the noise scale says the same."""
    orders = f"{len(found.seeds)} orders of the data" if len(found.seeds) > 1 else "one order"
    end = "with no end found" if found.high is None else f"below {found.high:,}"
    said = f"{found.critical:,} (at least {found.low:,}, {end})"
    if found.low == found.batch_sizes[-1]:
        said = f"{found.low:,} or more, the largest that was tried"
    return (
        f"branches after epoch {found.base_epochs} ({orders}) put the critical batch at {said}; "
        f"{_against_noise(found)}"
    )


def _against_noise(found: MeasuredBatch) -> str:
    if found.noise_low is None or found.noise_high is None:
        return "there is no noise scale there to compare with"
    noise = f"between {examples(found.noise_low)} and {examples(found.noise_high)}"
    if math.isinf(found.noise_high):
        noise = f"at least {examples(found.noise_low)}"
    said = f"the noise scale there would put it {noise}, "
    if found.low > found.base_batch and found.noise_high < found.low:
        return said + "which is too low"
    if found.high is not None and found.noise_low >= found.high:
        return said + "which is too high"
    return said + "which does not contradict it"


def _of_rate(rates: RangeTest) -> str:
    most = rates.linear_workers
    if most is None:
        return f"the largest learning rate is not known ({rates.note or 'none was tried'})"
    if rates.largest is not None and rates.largest < rates.recipe_rate:
        return (
            f"the recipe's learning rate of {rates.recipe_rate:.3g} is too high already: "
            f"{rates.largest:.3g} is the largest that converged"
        )
    if rates.failing is None:
        best = min(rates.trials, key=lambda trial: trial.end_loss).learning_rate
        return (
            f"learning rates up to {most}x the recipe's did not diverge in {rates.steps} steps; "
            f"{best / rates.recipe_rate:.3g}x ended lowest"
        )
    if most < 2:
        return (
            "multiplying the learning rate by the number of workers cannot work, as already "
            f"{rates.failing:.3g} does not converge (the recipe has {rates.recipe_rate:.3g})"
        )
    return (
        f"multiplying the learning rate by the number of workers can work for up to {most} "
        f"({rates.failing:.3g} no longer converges; the recipe has {rates.recipe_rate:.3g})"
    )


def example_efficiency(critical: float, batch_size: int, workers: float) -> float:
    """Efficiency of examples with so many workers that have a batch each."""
    c = critical / batch_size
    return 1.0 if math.isinf(c) else (1.0 + c) / (workers + c)


def span(seconds: float) -> str:
    """A duration: "5 d 3 h", "17 h", "4 min 10 s": two units at most, the second only beside a
    small first."""
    if seconds < 10.0:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for (unit, length), (finer, part) in itertools.pairwise(_UNITS):
        if whole >= 10 * length:
            return f"{round(whole / length)} {unit}"
        if whole >= length:
            first, rest = divmod(round(whole / part), length // part)
            return f"{first} {unit}" + (f" {rest} {finer}" if rest else "")
    return f"{whole} s"


def examples(number: float) -> str:
    """A number of examples, with two digits: as much as is known."""
    if math.isinf(number):
        return "no end"
    digits = 0 if number < 1.0 else max(0, int(math.log10(number)) - 1)
    return f"{round(number, -digits):,.0f}" if number >= 1.0 else f"{number:.2g}"
