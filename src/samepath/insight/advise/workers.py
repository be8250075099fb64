"""How many workers pay over one link, and in which grains. Pure: the model, asked well.

In: a MeasuredStep and a cluster. Out: a ScalingCurve. Guaranteed: a row is "measured" only where
that many real workers ran here over this link; all others are modelled (`simulate`), scaled so that
the model's one worker is the measured one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samepath.engine.run.options import Options
from samepath.insight.advise.advice import Law, Limit, Row, ScalingCurve
from samepath.timing.links import HERE, Cluster
from samepath.timing.measured import MeasuredStep
from samepath.timing.model import (
    Buckets,
    Simulated,
    Workload,
    grain_size_at,
    simulate,
    workload_from,
)

LEAST_GAIN = 0.2
"""Of the time, that doubling the workers must save to be worth it; 0.5 would be perfect."""
SAME = 0.02
"""Of a step: another grain size that saves less is not worth a change."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of every link."""

    measured: MeasuredStep
    options: Options
    floor: float
    price_per_worker_hour: float | None = None

    @property
    def training_steps(self) -> int:
        return self.options.epochs * self.options.plan.steps_per_epoch


def worker_counts(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... and the last."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({n for p in powers for n in (p, p + p // 2) if n <= most} | {most})


def most_workers(measured: MeasuredStep) -> int:
    """The most workers that can have a grain: of the recipe's size where that is fixed, else of
    one example."""
    size = measured.grain_size if measured.grain_fixed else 1
    return -(-measured.batch_size // size)


def curve(
    question: Question, cluster: Cluster, most: int, *, end: Limit, here: bool
) -> ScalingCurve:
    """All numbers of workers up to a most, over one cluster's links; `end` says why not more.
    `here`: it is this computer, and steps that were measured with several workers are of it."""
    measured, floor = question.measured, question.floor
    workload = workload_from(measured)
    asked = worker_counts(most)
    possible = sorted({*asked, *(2 * n for n in asked if end != "cores" or 2 * n <= most)})
    found = {
        point.workers: point for point in simulate(workload, cluster, possible, policy=Buckets())
    }
    # with idle workers fewer would be as quick (12 for 32 examples: eleven have 3, or 2)
    counts = [n for n in asked if found[n].busy_workers == n]
    calibration = measured.step_seconds["1"] / found[1].step_seconds
    rows = _rows(question, cluster, [found[n] for n in counts], calibration, here=here)
    seconds = {n: calibration * point.step_seconds for n, point in found.items()}
    seconds |= {row.workers: row.step_seconds for row in rows}
    best = max(row.workers for row in rows if row.efficiency >= floor)
    size = best_grain(question, cluster, best)
    ours, other = (_seconds(measured, cluster, best, s) for s in (measured.grain_size, size))
    after = [row.workers for row in rows if row.workers > best]
    return ScalingCurve(
        network=HERE if here else cluster.name,
        workers_per_node=cluster.workers_per_node,
        links=tuple(level.network for level in cluster.levels),
        rows=tuple(rows),
        knee=knee(counts, seconds),
        best=best,
        limit=limit(workload, cluster, found[1], found[after[0]]) if after else end,
        grain_size=size,
        grain_gain=1.0 - other / ours,
        law=law([row.workers for row in rows], [row.step_seconds for row in rows]),
        calibration=calibration,
    )


def knee(
    counts: Sequence[int], seconds: Mapping[int, float], least_gain: float = LEAST_GAIN
) -> int | None:
    """The smallest number of workers that is not worth doubling, from seconds by number; None: all
    are that can be."""

    def is_worth_it(n: int) -> bool:
        return 2 * n not in seconds or seconds[2 * n] <= (1.0 - least_gain) * seconds[n]

    return next((n for n in counts if not is_worth_it(n)), None)


def limit(workload: Workload, cluster: Cluster, alone: Simulated, point: Simulated) -> Limit:
    """What costs most of the time that these workers take beyond an even share of one's."""
    n = point.workers
    compute = alone.step_seconds - workload.serial_seconds
    crowding = workload.crowded(cluster.side_by_side(n))
    parts: dict[Limit, float] = {
        "link": point.reduction_seconds * (1.0 - (point.hidden or 0.0)),
        "update": workload.serial_seconds * (1.0 - 1.0 / n),
        "waiting": point.waiting * point.step_seconds,
        "crowding": (crowding - 1.0) * compute / n,
    }
    return max(parts, key=lambda part: parts[part])


def best_grain(question: Question, cluster: Cluster, workers: int) -> int:
    """Choose, of the sizes that were timed, the one with the shortest step for so many workers; the
    recipe's own unless another saves something."""
    measured = question.measured
    if measured.grain_fixed:
        return measured.grain_size
    own = grain_size_at(
        batch_size=measured.batch_size,
        workers=workers,
        grain_size=measured.grain_size,
        grain_fixed=False,
    )
    sizes = {
        size
        for size in map(int, measured.grain_times)
        if -(-measured.batch_size // size) >= workers
    }
    times = {size: _seconds(measured, cluster, workers, size) for size in sizes | {own}}
    quickest = min(times, key=lambda size: times[size])
    return quickest if times[quickest] < (1.0 - SAME) * times[own] else own


def law(workers: Sequence[int], seconds: Sequence[float]) -> Law | None:
    """The paper's law through these times; None with fewer numbers of workers than its three parts.

    No part is negative; errors count relative to each time, so that the short times of many workers
    count as much as the long one of one. With a logarithm to the base 2, `doubling` is what each
    doubling adds."""
    from scipy.optimize import nnls

    if len(set(workers)) < 3:
        return None
    n, times = np.array(workers, np.float64), np.array(seconds, np.float64)
    parts = np.stack([np.ones_like(n), 1.0 / n, np.log2(n)], axis=1)
    fitted, _ = nnls(parts / times[:, None], np.ones_like(times))
    return Law(
        serial_seconds=float(fitted[0]),
        parallel_seconds=float(fitted[1]),
        doubling_seconds=float(fitted[2]),
        largest_error=float(np.abs(parts @ fitted / times - 1.0).max()),
    )


def _rows(
    question: Question,
    cluster: Cluster,
    points: Sequence[Simulated],
    calibration: float,
    *,
    here: bool,
) -> list[Row]:
    measured, options = question.measured, question.options
    alone = measured.step_seconds["1"]
    per_node = cluster.workers_per_node
    rows = []
    for point in points:
        n = point.workers
        modelled = calibration * point.step_seconds
        known = measured.step_seconds.get(str(n)) if here or n == 1 else None
        seconds = modelled if known is None else known
        training = question.training_steps * seconds
        price = question.price_per_worker_hour
        rows.append(
            Row(
                workers=n,
                nodes=1 if per_node is None else -(-n // per_node),
                grain_size=grain_size_at(
                    batch_size=options.batch_size,
                    workers=n,
                    grain_size=measured.grain_size,
                    grain_fixed=measured.grain_fixed,
                ),
                step_seconds=seconds,
                how="modelled" if known is None else "measured",
                modelled_seconds=modelled,
                speedup=alone / seconds,
                efficiency=alone / seconds / n,
                cost=n * seconds / alone,
                training_seconds=training,
                price=None if price is None else price * n * training / 3600.0,
            )
        )
    return rows


def _seconds(measured: MeasuredStep, cluster: Cluster, workers: int, grain_size: int) -> float:
    workload = workload_from(measured, grain_size=grain_size)
    (point,) = simulate(workload, cluster, [workers], policy=Buckets())
    return point.step_seconds
