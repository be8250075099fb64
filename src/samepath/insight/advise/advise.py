"""Advice for a recipe: how many workers, which grain, whether a larger batch or rate has room.

In: an AdviseRequest. Out: an Advice, and the MeasuredStep it rests on. Guaranteed: bad input raises
before anything is measured; nothing is written but temporary files, which go, and the runs that
measure the critical batch where that is asked for; the other parts share the time that was given,
and each says what it could not finish; a step is "measured" only where that
many real workers ran here over this link, all others are modelled (`timing.model`), scaled so that
the model's one worker is the measured one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from samepath.console import Watcher, count
from samepath.engine.run.options import Options, Overrides, refuse_recipe, resolve
from samepath.engine.run.request import available_workers
from samepath.errors import UserError
from samepath.insight.advise.advice import (
    Advice,
    CriticalBatch,
    Law,
    Limit,
    RangeTest,
    Row,
    ScalingCurve,
    verdict,
)
from samepath.insight.advise.branches import (
    BranchRequest,
    measure_batch,
    plan_branches,
)
from samepath.insight.advise.runs import (
    LEAST_STEPS,
    MOST_STEPS,
    ShortRuns,
    ShortRunsTask,
    critical_batch,
    noise_points,
    range_test,
    short_runs,
)
from samepath.insight.folder import BRANCHES
from samepath.plan import grain_size_for
from samepath.recipe import Recipe, find_recipe
from samepath.timing.links import HERE, Cluster, check_cluster, find_cluster, in_nodes
from samepath.timing.measured import How, MeasuredStep, read_measured
from samepath.timing.model import (
    OURS,
    Simulated,
    Workload,
    grain_size_at,
    simulate,
    step_seconds,
    workload_from,
)
from samepath.timing.stopwatch import measure_step

NETWORKS = (HERE, "1GbE", "10GbE")
FLOOR = 0.8
MINUTES, QUICK_MINUTES, LEAST_MINUTES = 2.0, 1.0, 0.1
SHARES = {"step": 0.35, "rates": 0.35, "noise": 0.3}
"""Of the time, for each part."""
NEARLY = 0.9
FEWEST_GRAINS, MORE_GRAINS = 4, 8
"""With fewer grains in a batch the noise scale is measured in so many, only for that."""
LEAST_GAIN = 0.2
"""Of the time, that doubling the workers must save to be worth it; 0.5 would be perfect."""
SAME = 0.02
"""Of a step: another grain size that saves less is not worth a change."""


@dataclass(frozen=True, kw_only=True)
class AdviseRequest(Overrides):
    """What a person asked for; `steps` bounds each short run."""

    recipe: str
    data: str | None = None
    keep: str | None = None
    networks: tuple[str, ...] = NETWORKS
    floor: float = FLOOR
    price_per_worker_hour: float | None = None
    minutes: float = MINUTES
    compute: float = 1.0
    """How many times as fast as this machine the computers behind other networks are."""
    compute_from: Path | None = None
    """Instead: a folder with what was measured of the same recipe on one of those computers."""
    workers_per_node: int | None = None
    """Of other networks; None: as many as the network's preset says, one where it says nothing."""
    branches: BranchRequest | None = None
    """How the critical batch is measured; None: it is not."""
    folder: Path | None = None
    """Where the runs for that are kept."""
    command: tuple[str, ...] = ()


def advise(request: AdviseRequest, watcher: Watcher) -> tuple[Advice, MeasuredStep]:
    """Measure for as long as was said, and reason."""
    began = time.perf_counter()
    refuse(request)
    recipe, options, recipe_rate = _look_into(request)
    elsewhere = _measured_elsewhere(request, options)
    planned = None if request.branches is None else plan_branches(request.branches, options)
    notes: list[str] = []

    def tell(text: str) -> None:
        text = in_minutes(text)
        watcher.note(text)
        if not text.startswith("timing "):  # a doubt, not just what is going on
            notes.append(text)

    seconds = {part: 60.0 * request.minutes * share for part, share in SHARES.items()}
    took: dict[str, float] = {}
    try:
        part = (
            f"timing grains, updates and reductions: {seconds['step']:.0f} s, and starting workers"
        )
        watcher.progress(part, 0, None)
        try:
            measured = measure_step(options, seconds=seconds["step"], tell=tell)
        except UserError as error:
            raise UserError(in_minutes(str(error))) from None
        took["step_seconds"] = time.perf_counter() - began
        seconds = what_is_left(seconds, took["step_seconds"])
        task = plan_runs(request, options, measured, recipe_rate, seconds)
        watcher.end(part)
        runs_seconds = seconds["rates"] + seconds["noise"]
        watcher.progress(f"trying learning rates and training, about {runs_seconds:.0f} s", 0, None)
        found = short_runs(task)
    finally:
        watcher.close()
    measured_batch = None
    if planned is not None:
        assert request.folder is not None, "measuring the critical batch needs a folder"
        now, place = time.perf_counter(), request.folder / BRANCHES
        measured_batch = measure_batch(
            planned, recipe, options, place, measured.step_seconds["1"], watcher, request.command
        )
        took["branches_seconds"] = time.perf_counter() - now
    took |= {"rates_seconds": found.rate_seconds, "noise_seconds": found.noise_seconds}
    rates, batch = judged(request, options, task, found, grain_fixed=measured.grain_fixed)
    curves = curves_of(request, options, measured, elsewhere)
    took["all_seconds"] = time.perf_counter() - began
    return Advice(
        machine=measured.machine,
        cores=available_workers(),
        threads=options.threads,
        batch_size=options.batch_size,
        grain_size=options.grain_size,
        grain_fixed=measured.grain_fixed,
        num_examples=options.num_examples,
        epochs=options.epochs,
        steps_per_epoch=options.plan.steps_per_epoch,
        floor=request.floor,
        price_per_worker_hour=request.price_per_worker_hour,
        curves=curves,
        rates=rates,
        batch=batch,
        verdict=verdict(
            curves,
            rates,
            batch,
            batch_size=options.batch_size,
            floor=request.floor,
            measured=measured_batch,
        ),
        notes=tuple(notes),
        seconds=took,
        measured_batch=measured_batch,
    ), measured


def in_minutes(text: str) -> str:
    """What the stopwatch says about seconds, in the minutes that the user gave."""

    def minutes(found: re.Match[str]) -> str:
        seconds = found[1]
        return "--minutes" + (
            f" {math.ceil(int(seconds) / 60 / SHARES['step'])}" if seconds else ""
        )

    return re.sub(r"--seconds(?: (\d+))?", minutes, text)


def what_is_left(seconds: dict[str, float], took: float) -> dict[str, float]:
    """Seconds for the parts after the first: what it left, but not less than half of what was
    planned."""
    after = {part: planned for part, planned in seconds.items() if part != "step"}
    left = (sum(seconds.values()) - took) / sum(after.values())
    return {part: planned * max(left, 0.5) for part, planned in after.items()}


def refuse(request: AdviseRequest) -> None:
    """Refuse what can be found wrong before the recipe is looked at."""
    if not 0.0 < request.floor <= 1.0:
        raise UserError(f"--floor {request.floor:g}: give a part of 1, such as {FLOOR:g}")
    if not LEAST_MINUTES <= request.minutes < float("inf"):
        raise UserError(f"--minutes {request.minutes:g}: give at least {LEAST_MINUTES:g}")
    price = request.price_per_worker_hour
    if price is not None and not 0.0 <= price < float("inf"):
        raise UserError(f"--price {price:g}: give what a worker costs an hour, such as 0.9")
    if not 0.0 < request.compute < float("inf"):
        raise UserError(f"--compute {request.compute:g}: give a factor above 0, such as 12")
    per_node = request.workers_per_node
    if per_node is not None and per_node < 1:
        raise UserError(f"--workers-per-node {per_node}: give at least 1")
    if per_node is not None and all(map(_is_here, request.networks)):
        raise UserError(
            f"--workers-per-node {per_node}: this machine is one node; give a --network too, such "
            "as 10GbE"
        )
    if request.steps == 0:
        raise UserError("--steps 0: a short run has at least one step; leave --steps out")
    for text in request.networks:
        check_cluster(text)


def _look_into(request: AdviseRequest) -> tuple[Recipe, Options, float]:
    """The recipe, its options, without an end before its epochs', and its learning rate."""
    recipe = find_recipe(request.recipe, request.data, request.keep, threads=request.threads or 1)
    options = resolve(recipe, replace(request, steps=None))
    refuse_recipe(recipe, options, 1)
    model = recipe.model()
    optimizer = recipe.optimizer(p for p in model.parameters() if p.requires_grad)
    options = replace(options, target=None, patience=None, stop_patience=None)
    return recipe, options, float(optimizer.param_groups[0]["lr"])


def _measured_elsewhere(request: AdviseRequest, options: Options) -> MeasuredStep | None:
    """The step that was measured on another computer, if one was given; of the same batches."""
    if request.compute_from is None:
        return None
    found = read_measured(request.compute_from)
    if found.identity != options.identity:
        raise UserError(
            f"--compute {request.compute_from} is of another recipe ({found.recipe}) or of another "
            f"version of {request.recipe}; measure this one on that machine"
        )
    for name, flag in (("batch_size", "--batch-size"), ("grain_size", "--grain")):
        there, asked = getattr(found, name), getattr(options, name)
        if there != asked:
            raise UserError(
                f"--compute {request.compute_from} was measured with {flag} {there}, and here it "
                f"is {asked}; add {flag} {there}"
            )
    return found


def plan_runs(
    request: AdviseRequest,
    options: Options,
    measured: MeasuredStep,
    recipe_rate: float,
    seconds: dict[str, float],
) -> ShortRunsTask:
    """What fits the time."""
    training = options.epochs * options.plan.steps_per_epoch
    most = min(training, request.steps or training)
    grain = noise_grain(options, fixed=measured.grain_fixed)
    noise = replace(options, grain_size=grain, steps=most)
    workers = min(available_workers(), noise.plan.num_grains)
    crowding = max([1.0, *measured.crowding.values()]) if workers > 1 else 1.0
    least_seconds = LEAST_STEPS * crowding * measured.step_seconds["1"]
    tries = recipe_rate > 0.0 and least_seconds < seconds["rates"]
    return ShortRunsTask(
        options=options,
        workers=workers,
        recipe_rate=recipe_rate,
        most_rate_steps=min(MOST_STEPS, most) if tries else 0,
        rate_seconds=seconds["rates"],
        noise_options=noise if noise.plan.num_grains > 1 else replace(noise, steps=0),
        noise_seconds=seconds["noise"],
    )


def noise_grain(options: Options, *, fixed: bool) -> int:
    """The recipe's, or a finer one where a batch has few. A model that normalises over a grain
    cannot do so over a single example."""
    batch, own = options.batch_size, options.grain_size
    if options.plan.num_grains >= FEWEST_GRAINS:
        return own
    finer = range(max(batch // MORE_GRAINS, 2 if fixed else 1), own)
    lasts = (batch, options.num_examples % batch)
    return next((size for size in finer if not fixed or all(n % size != 1 for n in lasts)), own)


def judged(
    request: AdviseRequest,
    options: Options,
    task: ShortRunsTask,
    found: ShortRuns,
    *,
    grain_fixed: bool,
) -> tuple[RangeTest, CriticalBatch]:
    """What the short runs say."""
    rates_notes = [found.rates_note if task.recipe_rate > 0.0 else "the recipe's rate is 0"]
    used = [line["learning_rate"] for line in found.lines if "learning_rate" in line]
    reached = max(used[: found.rate_steps], default=task.recipe_rate)
    if reached < NEARLY * task.recipe_rate:
        part = reached / task.recipe_rate
        rates_notes.append(f"in so few steps the schedule goes up to only {part:.0%} of a rate")
    rates = range_test(
        task.recipe_rate, found.losses, found.rate_steps, "; ".join(filter(None, rates_notes))
    )
    points = noise_points(found.lines)
    notes = []
    if not task.noise_options.steps:
        notes.append("a batch of a single grain has no noise scale")
    elif not points:
        notes.append(f"a run of {count(found.noise_steps, 'step')} is too short for a noise scale")
    if found.noise_status == "diverged":
        notes.append(f"the run diverged after {count(found.noise_steps, 'step')}")
    if task.noise_options.grain_size != options.grain_size:
        another = ", over which the model then normalises" * grain_fixed
        notes.append(f"measured in grains of {task.noise_options.grain_size}{another}")
    batch = critical_batch(
        points,
        batch_size=options.batch_size,
        floor=request.floor,
        steps=found.noise_steps,
        part=found.noise_steps / (options.epochs * options.plan.steps_per_epoch),
        grain_size=task.noise_options.grain_size,
        note="; ".join(notes),
    )
    return rates, batch


# ---- how many workers pay over one link, and in which grains


def curves_of(
    request: AdviseRequest,
    options: Options,
    measured: MeasuredStep,
    elsewhere: MeasuredStep | None = None,
) -> tuple[ScalingCurve, ...]:
    """One for each network; this machine has only as many workers as it has cores or GPUs. The
    computers behind other networks compute as it does, times a factor, or as was measured
    `elsewhere`."""
    found = []
    for text in dict.fromkeys(request.networks):
        here = _is_here(text)
        ends: list[tuple[int, Limit]] = [(most_workers(measured), "grains")]
        ends += [(available_workers(), "cores")] if here else []
        ends += [(request.max_workers, "asked")] if request.max_workers else []
        most, end = min(ends, key=lambda each: each[0])
        cluster = find_cluster(text, here=measured.local)
        compute = 1.0 if here else request.compute
        theirs = measured if here or elsewhere is None else elsewhere
        if request.workers_per_node is not None and not here:
            cluster = in_nodes(cluster, request.workers_per_node, theirs.local)
            if compute != 1.0:  # how other computers' workers share memory is not known
                cluster = replace(cluster, is_like_here=False)
        taken = faster(theirs, compute)
        found.append(
            replace(
                curve(request, options, taken, cluster, most, end=end, here=here),
                machine=theirs.machine,
                compute=compute,
                compute_from=None if theirs is measured else str(request.compute_from),
                model_error=model_error(request, options, theirs),
            )
        )
    return tuple(found)


def _is_here(network: str) -> bool:
    return network.strip().lower() == HERE


def faster(measured: MeasuredStep, factor: float) -> MeasuredStep:
    """The step on a computer that is so many times as fast, over the same links."""
    if factor == 1.0:
        return measured
    return replace(
        measured,
        grain_times={
            size: tuple(time / factor for time in times)
            for size, times in measured.grain_times.items()
        },
        update_seconds=measured.update_seconds / factor,
        step_seconds={n: time / factor for n, time in measured.step_seconds.items() if n == "1"},
        coarsest_step_seconds=None,
    )


def model_error(request: AdviseRequest, options: Options, measured: MeasuredStep) -> float | None:
    """How far the model is off at most where several real workers were timed; None: none were."""
    cluster = find_cluster(HERE, here=measured.local)
    most = min(max(map(int, measured.step_seconds)), most_workers(measured))
    rows = curve(request, options, measured, cluster, most, end="cores", here=True).rows
    return max(
        (
            abs(row.modelled_seconds / row.step_seconds - 1.0)
            for row in rows
            if row.how == "measured" and row.workers > 1
        ),
        default=None,
    )


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
    request: AdviseRequest,
    options: Options,
    measured: MeasuredStep,
    cluster: Cluster,
    most: int,
    *,
    end: Limit,
    here: bool,
) -> ScalingCurve:
    """All numbers of workers up to a most, over one cluster's links; `end` says why not more.
    `here`: it is this computer, and steps that were measured with several workers are of it."""
    workload = workload_from(measured)
    asked = worker_counts(most)
    possible = sorted({*asked, *(2 * n for n in asked if end != "cores" or 2 * n <= most)})
    found = {point.workers: point for point in simulate(workload, cluster, possible, policy=OURS)}
    alone = measured.step_seconds["1"]
    calibration = alone / found[1].step_seconds
    seconds = {n: calibration * point.step_seconds for n, point in found.items()}
    training_steps = options.epochs * options.plan.steps_per_epoch
    per_node, price = cluster.workers_per_node, request.price_per_worker_hour
    rows: list[Row] = []
    for n in asked:
        if found[n].busy_workers < n:
            continue  # fewer would be as quick (12 for 32 examples: eleven have 3, or 2)
        modelled = seconds[n]
        known = measured.step_seconds.get(str(n)) if here or n == 1 else None
        seconds[n] = taken = modelled if known is None else known
        rows.append(
            Row(
                workers=n,
                nodes=1 if per_node is None else -(-n // per_node),
                grain_size=_grain_size(measured, n),
                step_seconds=taken,
                how="modelled" if known is None else "measured",
                modelled_seconds=modelled,
                speedup=alone / taken,
                efficiency=alone / taken / n,
                cost=n * taken / alone,
                training_seconds=training_steps * taken,
                price=None if price is None else price * n * training_steps * taken / 3600.0,
            )
        )
    counts = [row.workers for row in rows]
    best = max(row.workers for row in rows if row.efficiency >= request.floor)
    fewer, gain, gain_how = best_grain(measured, cluster, best, here=here)
    after = [n for n in counts if n > best]
    return ScalingCurve(
        network=HERE if here else cluster.name,
        workers_per_node=per_node,
        links=tuple(level.network for level in cluster.levels),
        rows=tuple(rows),
        knee=knee(counts, seconds),
        best=best,
        nodes=next(row.nodes for row in rows if row.workers == best),
        limit=limit(workload, cluster, found[1], found[after[0]]) if after else end,
        grain_size=grain_size_for(measured.batch_size, fewer) if fewer else measured.grain_size,
        max_workers=fewer,
        grain_gain=gain,
        gain_how=gain_how,
        law=law(counts, [row.step_seconds for row in rows]),
        calibration=calibration,
    )


def _grain_size(measured: MeasuredStep, workers: int) -> int:
    return grain_size_at(
        batch_size=measured.batch_size,
        workers=workers,
        grain_size=measured.grain_size,
        grain_fixed=measured.grain_fixed,
    )


def _seconds(measured: MeasuredStep, cluster: Cluster, workers: int, grain_size: int) -> float:
    return step_seconds(workload_from(measured, grain_size=grain_size), cluster, workers)


def knee(counts: Sequence[int], seconds: Mapping[int, float]) -> int | None:
    """The smallest number of workers that is not worth doubling, from seconds by number; None: all
    are that can be."""

    def is_worth_it(n: int) -> bool:
        return 2 * n not in seconds or seconds[2 * n] <= (1.0 - LEAST_GAIN) * seconds[n]

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


def best_grain(
    measured: MeasuredStep, cluster: Cluster, workers: int, *, here: bool
) -> tuple[int | None, float, How]:
    """The most workers with whose grains so many have the shortest step, the part of it that is
    saved, and how that is known; None: the recipe's own grains are as good. (With more workers than
    those, they need a most of their own, and nothing is saved.)"""
    batch, own = measured.batch_size, measured.grain_size
    if measured.grain_fixed:
        return None, 0.0, "modelled"
    if -(-batch // own) < workers:
        return workers, 0.0, "modelled"
    known = measured.step_seconds.get(str(workers)) if here else None
    coarsest = (measured.coarsest_step_seconds or {}).get(str(workers))
    how: How = "modelled" if known is None or coarsest is None else "measured"
    if known is not None and coarsest is not None:
        gains = {workers: 1.0 - coarsest / known}
    else:
        ours = _seconds(measured, cluster, workers, own)
        largest = max(map(int, measured.grain_times))
        sizes = {most: grain_size_for(batch, most) for most in worker_counts(-(-batch // own))}
        gains = {
            most: 1.0 - _seconds(measured, cluster, workers, size) / ours
            for most, size in sizes.items()
            if most >= workers and own < size <= largest
        }
    best = max(gains, key=gains.__getitem__, default=workers)
    return (best, gains[best], how) if gains.get(best, 0.0) > SAME else (None, 0.0, how)


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
