"""What one step asks of its workers, and how long they take for it this time and the next.

In: what was measured with one worker (Workload). Out: for any number of workers, drawn times:
when each is done with all but its last grain, and how long that one takes.
Guaranteed: a draw is keyed by (seed, trial, grain) or (seed, trial, worker), so that a grain
takes as long whoever computes it, and more trials or workers leave the draws of the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from samepath.errors import UserError
from samepath.keys import UInt64s, key, keys_for
from samepath.plan import assign
from samepath.study.results import ClockFacts
from samepath.timing.clock import grain_size_at

Floats: TypeAlias = NDArray[np.float64]
Scaling: TypeAlias = Literal["strong", "weak"]
"""All workers share one batch; each has a batch of its own."""

FORWARD = 1.0 / 3.0
"""Of a grain's time, where nothing was measured: a backward pass does two products for each one of
the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much the times of equal grains differ."""

    factors: tuple[float, ...] = ()
    """Measured: the time of a grain / their median. Nothing slower than the slowest is drawn."""
    grain: float = 0.0
    """Without factors: the standard deviation of a grain's logarithm (lognormal, median 1)."""
    worker: float = 0.0
    """The same of a worker's slowness, which all its grains of a step share."""

    def __post_init__(self) -> None:
        assert not (self.factors and self.grain), "measured factors or a stated spread, not both"
        assert all(factor > 0.0 for factor in self.factors)
        assert self.grain >= 0.0
        assert self.worker >= 0.0

    def of_grains(self, uniform: Floats) -> Floats:
        if not self.factors:
            return np.asarray(np.exp(self.grain * ndtri(uniform)))
        places = (np.arange(len(self.factors)) + 0.5) / len(self.factors)
        return np.asarray(np.interp(uniform, places, np.sort(self.factors)))

    def of_workers(self, uniform: Floats) -> Floats:
        return np.asarray(np.exp(self.worker * ndtri(uniform)))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One step of a recipe, as one worker was measured to do it."""

    name: str
    batch_size: int
    """Examples of a step (strong scaling) or of each worker's step (weak)."""
    grain_size: int
    grain_fixed: bool
    """The model normalises over a grain: more workers cannot mean finer grains."""
    grain_seconds: dict[int, float]
    """Median seconds of a grain, forward and backward, by its size."""
    serial_seconds: float
    """Of a step: what comes after the reduction and does not shrink (the update)."""
    tensor_bytes: tuple[int, ...]
    """Gradients, in the order in which backward finds them."""
    tensor_ready: tuple[float, ...]
    """When each is there, as a part of the last grain's time: rising, at most 1."""
    buffer_bytes: int = 0
    """Of buffers that a step changes (batch norm's), which are merged like gradients."""
    spread: Spread = Spread()
    crowding: dict[int, float] = field(default_factory=dict)
    """By how many workers compute side by side in one node: a grain's time / its time alone."""

    def __post_init__(self) -> None:
        ready = [0.0, *self.tensor_ready, 1.0]
        assert len(self.tensor_bytes) == len(self.tensor_ready) > 0
        assert ready == sorted(ready), "gradients come in order, within the grain"
        assert self.grain_seconds
        assert 1 <= self.grain_size <= self.batch_size

    @property
    def gradient_bytes(self) -> int:
        return sum(self.tensor_bytes)

    def seconds_of(self, sizes: NDArray[np.int64]) -> Floats:
        """Of grains of these sizes: on the line between measured ones, as `study.clock` does; as
        long for each example as in the largest beyond it."""
        known = sorted(self.grain_seconds)
        seconds = np.interp(sizes, known, [self.grain_seconds[size] for size in known])
        return seconds * np.maximum(sizes / known[-1], 1.0)

    def crowded(self, side_by_side: int) -> float:
        """The factor for so many workers in a node: on the line between measured ones."""
        known = sorted({1: 1.0, **self.crowding}.items())
        counts, factors = zip(*known, strict=True)
        return float(np.interp(side_by_side, counts, factors))


def workload_of(
    facts: ClockFacts,
    *,
    name: str,
    batch_size: int,
    tensor_bytes: Sequence[int],
    tensor_ready: Sequence[float] = (),
    spread: Spread | None = None,
    crowding: Mapping[int, float] | None = None,
) -> Workload:
    """From what the clock measured. Without ready times they are assumed (`assumed_ready`)."""
    if sum(tensor_bytes) != facts.gradient_bytes:
        raise UserError(
            f"{name}: gradients of {sum(tensor_bytes):,} bytes, but {facts.gradient_bytes:,} were "
            "measured: that is another recipe's profile; measure this one again"
        )
    return Workload(
        name=name,
        batch_size=batch_size,
        grain_size=min(facts.grain_size, batch_size),
        grain_fixed=facts.grain_fixed,
        grain_seconds={int(size): time for size, time in facts.grain_seconds.items()},
        serial_seconds=facts.serial_seconds,
        tensor_bytes=tuple(tensor_bytes),
        tensor_ready=tuple(tensor_ready) or assumed_ready(len(tensor_bytes)),
        spread=spread or Spread(),
        crowding=dict(crowding or {}),
    )


def assumed_ready(num_tensors: int, forward: float = FORWARD) -> tuple[float, ...]:
    """Evenly over the backward pass."""
    return tuple(forward + (1.0 - forward) * (i + 1) / num_tensors for i in range(num_tensors))


def measured_spread(grain_times: Mapping[int, Sequence[float]]) -> Spread:
    """Factors from the times of grains, by size: each against the median of its size."""
    factors = [
        time / float(np.median(times)) for times in grain_times.values() for time in sorted(times)
    ]
    if len(factors) < 2:
        raise UserError(f"{len(factors)} grain times say nothing of their spread; time at least 2")
    return Spread(factors=tuple(factors))


class Shares(NamedTuple):
    """Who computes what; the same in every trial."""

    starts: NDArray[np.int64]
    """The first grain of each busy worker."""
    seconds: Floats
    """Of each grain, without spread."""
    num_examples: int


def share_out(workload: Workload, workers: int, scaling: Scaling) -> Shares:
    """Grains as the plan cuts and gives them; with more workers than grains some are idle."""
    size = grain_size_at(
        batch_size=workload.batch_size,
        workers=workers if scaling == "strong" else 1,
        grain_size=workload.grain_size,
        grain_fixed=workload.grain_fixed,
    )
    num_grains = -(-workload.batch_size // size)
    sizes = np.full(num_grains, size, np.int64)
    sizes[-1] = workload.batch_size - (num_grains - 1) * size
    if scaling == "weak":
        starts = np.arange(workers, dtype=np.int64) * num_grains
        seconds = np.tile(workload.seconds_of(sizes), workers)
        return Shares(starts, seconds, workload.batch_size * workers)
    runs = assign(num_grains, min(workers, num_grains))
    starts = np.array([run.start for run in runs], np.int64)
    return Shares(starts, workload.seconds_of(sizes), workload.batch_size)


class Drawn(NamedTuple):
    """Times of one step for each trial (rows) and busy worker (columns)."""

    before: Floats
    """Until the last grain begins."""
    last: Floats
    """Of the last grain."""

    @property
    def done(self) -> Floats:
        return self.before + self.last


def draw(
    workload: Workload, shares: Shares, *, seed: int, trials: range, side_by_side: int = 1
) -> Drawn:
    """How long everybody takes, trial by trial, with so many workers in a node."""
    grains, workers = len(shares.seconds), len(shares.starts)
    times = shares.seconds * workload.spread.of_grains(_uniforms(seed, "grain", trials, grains))
    slowness = workload.crowded(side_by_side) * workload.spread.of_workers(
        _uniforms(seed, "worker", trials, workers)
    )
    stops = np.append(shares.starts[1:], grains)
    last = times[:, stops - 1]
    total = np.add.reduceat(times, shares.starts, axis=1)
    return Drawn((total - last) * slowness, last * slowness)


def _uniforms(seed: int, what: str, trials: range, number: int) -> Floats:
    numbers = np.arange(number, dtype=np.int64)
    keys = [keys_for(key(seed, "simulate", what, trial), numbers) for trial in trials]
    return uniform(np.stack(keys))


def uniform(keys: UInt64s) -> Floats:
    """Strictly between 0 and 1: 52 of a key's bits, and a half."""
    return ((keys >> np.uint64(12)).astype(np.float64) + 0.5) * math.ldexp(1.0, -52)
