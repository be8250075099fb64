"""Records by which workers tell each other about a step.

In: this worker's losses, flags, times and buffers. Out: all workers', put together in the order of
grains. One small gather per step: it travels while the last bucket does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from samepath.engine.comm.collective import Record
from samepath.engine.noise_scale import GrainNorms, average, is_measured
from samepath.engine.step.balance import WorkerTimes
from samepath.plan.shares import Division

ROWS = 3
"""Numbers a grain has in a record: its loss, what it counts for, and a squared norm (those of the
measured grains, one after another). Metrics that loss() returned follow."""


@dataclass(frozen=True)
class StepFacts:
    """Facts that all workers know after a step's grains."""

    loss: float
    """The batch's mean loss: grain losses by their share. fsum rounds once, so it has no order."""
    grain_losses: tuple[float, ...]
    grain_norms: GrainNorms | None
    """Norms of the grains whose norm was taken; None where there are none."""
    stop: bool
    """Some worker was asked to stop."""
    used: list[bool]
    """Which parameters some grain used."""
    buffers: list[Record]
    """Each worker's word on its buffers."""
    replicas: list[Record] = field(default_factory=list)
    """Each worker's word on its model."""
    times: tuple[WorkerTimes, ...] = ()
    """Each worker's word on its times; nothing where the step was others'."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The batch's means of what loss() returned beside the loss."""


def pack(
    division: Division,
    losses: Sequence[float],
    scales: Sequence[float],
    squared_norms: Sequence[float],
    used: Sequence[bool],
    buffers: Record,
    replicas: Record,
    times: WorkerTimes,
    *,
    stop: bool,
    metrics: Sequence[Mapping[str, float]] = (),
    names: Sequence[str] = (),
) -> Record:
    """Make this worker's record; it has the same length on every worker."""
    numbers = np.zeros((ROWS + len(names), division.most_grains))
    for row, name in enumerate(names, start=ROWS):
        numbers[row, : len(metrics)] = [grain[name] for grain in metrics]
    numbers[0, : len(losses)] = losses
    numbers[1, : len(scales)] = scales
    numbers[2, : len(squared_norms)] = squared_norms
    flags = np.array([stop, *used], np.uint8)
    words = np.array(times, np.float64).view(np.uint8)
    return np.concatenate([numbers.view(np.uint8).ravel(), words, flags, buffers, replicas])


def exact_sum(values: Iterable[float]) -> float:
    """Add with one rounding, so that order does not matter; NaN where there is none (infinities
    of both signs, or too large)."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        return math.nan


def unpack(
    division: Division,
    records: Sequence[Record],
    num_parameters: int,
    buffers_bytes: int,
    names: Sequence[str] = (),
    *,
    whole: bool = False,
) -> StepFacts:
    """Put all workers' records together. `whole`: every grain says the loss of the whole batch,
    and its gradient is no sample of the batch's."""
    most, rows = division.most_grains, ROWS + len(names)
    sizes = [8 * rows * most, 8 * len(WorkerTimes._fields), 1 + num_parameters, buffers_bytes]
    split = np.cumsum(sizes)
    numbers, times, flags, buffers, replicas = zip(
        *(np.split(record, split) for record in records), strict=True
    )
    pairs: list[tuple[float, float]] = []
    norms: list[tuple[float, float]] = []
    told: list[list[tuple[float, float]]] = [[] for _ in names]
    for worker, run in zip(numbers, division.reduction.runs, strict=True):
        losses, scales, squared, *more = worker.view(np.float64).reshape(rows, most).tolist()
        pairs += zip(losses[: len(run)], scales, strict=False)
        for of_name, values in zip(told, more, strict=True):
            of_name += zip(values[: len(run)], scales, strict=False)
        measured = [
            scale
            for number, scale in zip(run, scales, strict=False)
            if is_measured(number, division.num_grains)
        ]
        norms += zip(squared, measured, strict=False)
    anyone = np.bitwise_or.reduce(flags)
    loss = _mean(pairs)
    if whole and any(scale for _, scale in pairs):
        said = {loss for loss, _ in pairs}
        loss = said.pop() if len(said) == 1 else math.nan
    return StepFacts(
        loss=loss,
        grain_losses=tuple(loss for loss, _ in pairs),
        grain_norms=None if whole else average(norms),
        stop=bool(anyone[0]),
        used=anyone[1:].astype(bool).tolist(),
        buffers=list(buffers),
        replicas=[record.copy() for record in replicas],  # aligned: they are numbers
        times=tuple(WorkerTimes(*worker.view(np.float64).tolist()) for worker in times),
        metrics={name: _mean(of_name) for name, of_name in zip(names, told, strict=True)},
    )


def _mean(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean of grains' values by their share. A grain that counts for nothing may have no value to
    speak of (0 / 0)."""
    return exact_sum(value * scale for value, scale in pairs if scale)
