"""How many workers pay over one link, and in which grains. Pure: the model, asked well.

In: a MeasuredStep and a machine. Out: a Curve. Guaranteed: a row is "measured" only where that many
real workers ran here over this link; all others are modelled (`simulate`), scaled so that the
model's one worker is the measured one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samepath.engine.run.options import Options
from samepath.insight.advise.advice import Curve, Law, Limit, Row
from samepath.insight.advise.scaling_fit import LEAST_GAIN, fit_scaling
from samepath.timing.clock import grain_size_at
from samepath.timing.links import HERE
from samepath.timing.machines import NODE, Machine
from samepath.timing.measured import MeasuredStep
from samepath.timing.model import Simulated, simulate
from samepath.timing.policies import Static
from samepath.timing.stopwatch import workload_from
from samepath.timing.workload import Workload

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
    """So many can have a grain: of the recipe's size where that is fixed, else of one example."""
    size = measured.grain_size if measured.grain_fixed else 1
    return -(-measured.batch_size // size)


def curve(question: Question, machine: Machine, most: int, *, end: Limit, here: bool) -> Curve:
    """All numbers of workers up to a most, over one machine's links; `end` says why not more.
    `here`: it is this computer, and steps that were measured with several workers are of it."""
    measured, floor = question.measured, question.floor
    workload = workload_from(measured)
    asked = worker_counts(most)
    possible = sorted({*asked, *(2 * n for n in asked if end != "cores" or 2 * n <= most)})
    found = {
        point.workers: point for point in simulate(workload, machine, possible, policy=Static())
    }
    # with idle workers fewer would be as quick (12 for 32 examples: eleven have 3, or 2)
    counts = [n for n in asked if found[n].busy_workers == n]
    calibration = measured.step_seconds["1"] / found[1].step_seconds
    rows = _rows(question, machine, [found[n] for n in counts], calibration, here=here)
    seconds = {n: calibration * point.step_seconds for n, point in found.items()}
    seconds |= {row.workers: row.step_seconds for row in rows}
    best = max(row.workers for row in rows if row.efficiency >= floor)
    size = best_grain(question, machine, best)
    ours, other = (_seconds(measured, machine, best, s) for s in (measured.grain_size, size))
    after = [row.workers for row in rows if row.workers > best]
    return Curve(
        network=HERE if here else machine.name,
        workers_per_node=_per_node(machine),
        links=tuple(level.network for level in machine.levels),
        rows=tuple(rows),
        knee=knee(counts, seconds),
        best=best,
        limit=limit(workload, machine, found[1], found[after[0]]) if after else end,
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


def limit(workload: Workload, machine: Machine, alone: Simulated, point: Simulated) -> Limit:
    """What costs most of the time that these workers take beyond an even share of one's."""
    n = point.workers
    compute = alone.step_seconds - workload.serial_seconds
    crowding = workload.crowded(machine.side_by_side(n))
    parts: dict[Limit, float] = {
        "link": point.reduction_seconds * (1.0 - (point.hidden or 0.0)),
        "update": workload.serial_seconds * (1.0 - 1.0 / n),
        "waiting": point.waiting * point.step_seconds,
        "crowding": (crowding - 1.0) * compute / n,
    }
    return max(parts, key=lambda part: parts[part])


def best_grain(question: Question, machine: Machine, workers: int) -> int:
    """Of the sizes that were timed, the one with the shortest step for so many workers; the
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
    times = {size: _seconds(measured, machine, workers, size) for size in sizes | {own}}
    quickest = min(times, key=lambda size: times[size])
    return quickest if times[quickest] < (1.0 - SAME) * times[own] else own


def law(workers: Sequence[int], seconds: Sequence[float]) -> Law | None:
    """The paper's, where there are enough numbers for its three parts."""
    if len(workers) < 3:
        return None
    fit = fit_scaling(workers, seconds)
    return Law(
        serial_seconds=fit.serial_seconds,
        parallel_seconds=fit.parallel_seconds,
        doubling_seconds=fit.doubling_seconds,
        largest_error=max(map(abs, fit.errors)),
    )


def _rows(
    question: Question,
    machine: Machine,
    points: Sequence[Simulated],
    calibration: float,
    *,
    here: bool,
) -> list[Row]:
    measured, options = question.measured, question.options
    alone = measured.step_seconds["1"]
    per_node = _per_node(machine)
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


def _per_node(machine: Machine) -> int | None:
    """None: all workers of the machine are in one node."""
    first = machine.levels[0]
    return first.workers if first.name == NODE else 1


def _seconds(measured: MeasuredStep, machine: Machine, workers: int, grain_size: int) -> float:
    workload = workload_from(measured, grain_size=grain_size)
    (point,) = simulate(workload, machine, [workers], policy=Static())
    return point.step_seconds
