"""A race of strategies to a loss, from what was asked to what was found.

In: a StudyRequest. Out: a Study; in its folder, runs that are never repeated. Guaranteed: bad input
raises before anything is written; a study that was stopped or killed goes on where it was when it
is asked for again, and finds the same; strategies, workers, seeds, epochs and another target can be
added to it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Literal, TypeAlias

from samepath.console import Watcher
from samepath.engine.run.options import Options
from samepath.engine.run.request import available_workers
from samepath.engine.run.strategy_schedule import Course
from samepath.errors import UserError
from samepath.files import brief, read_object, write_atomically
from samepath.strategies import find_strategy
from samepath.study.collect import cells_of, epochs_of, run_record
from samepath.study.grid import Entry, Job, race_entries
from samepath.study.opening import Opened, StudyRequest, entered, look_into
from samepath.study.rates import largest_rate
from samepath.study.results import ClockFacts, NetworkFacts, Rate, Study, Target, read_clock
from samepath.study.runner import run_jobs, status_of
from samepath.timing.clock import Clock, measure_clock, predictions
from samepath.timing.links import HERE, parse_network

Train: TypeAlias = Callable[[Sequence[Job]], None]


def race(request: StudyRequest, watcher: Watcher) -> Study:
    """Run a study to its end."""
    for text in request.strategies:
        find_strategy(text)
    network = parse_network(request.network)
    opened = look_into(request)
    with entered(opened, request, "race"):
        return _race(request, opened, network, watcher)


def _race(
    request: StudyRequest,
    opened: Opened,
    network: NetworkFacts | Literal["here"],
    watcher: Watcher,
) -> Study:
    folder, options = opened.folder, opened.options

    seeds = tuple(range(request.seeds))
    workers = tuple(dict.fromkeys([1, *request.workers]))
    strategies = tuple(dict.fromkeys(["strong", *request.strategies]))
    clock = Clock(_clock(opened, strategies, workers, network, watcher))

    def alone_seconds(job: Job) -> float:
        plan = Course(job.options).plan(0, ())
        step_seconds, _ = clock.step_seconds(batch_size=plan.batch_size, workers=1)
        return job.options.epochs * plan.steps_per_epoch * step_seconds

    def run(jobs: Sequence[Job]) -> None:
        run_jobs(
            jobs,
            folder,
            cores=available_workers(),
            command=request.command,
            source=opened.found.source,
            watcher=watcher,
            other_hardware=request.other_hardware,
            alone_seconds=alone_seconds,
        )

    rate = _rate(request, opened, run)
    rate, target = _sequential(request, opened, rate, seeds, run)
    options = _at(options, rate, target.loss)
    entries = race_entries(options, strategies, workers, seeds)
    jobs = {entry.job.folder: entry.job for entry in entries if entry.job is not None}
    # seed after seed, and those first that are likely to take longest, so that none is left over
    run(
        sorted(
            (job for job in jobs.values() if not _is_sequential(job)),
            key=lambda job: (job.options.seed, -job.options.virtual_workers),
        )
    )
    records = [run_record(entry, folder, clock, target.loss) for entry in entries]
    return Study(
        **opened.heading(request),
        batch_size=options.batch_size,
        strategies=strategies,
        workers=workers,
        seeds=seeds,
        max_epochs=options.epochs,
        target=target,
        rate=rate,
        clock=clock.facts,
        runs=tuple(records),
        cells=tuple(cells_of(records, strategies, workers)),
        predictions=tuple(predictions(clock, batch_size=options.batch_size)),
        verdict="",
    )


def _clock(
    opened: Opened,
    strategies: Sequence[str],
    workers: Sequence[int],
    network: NetworkFacts | Literal["here"],
    watcher: Watcher,
) -> ClockFacts:
    """What was timed here before, or is now."""
    entries = race_entries(opened.options, strategies, workers, (0,))
    steps = {
        (_first_batch(entry), entry.workers)
        for entry in entries
        if entry.job is not None and entry.workers <= available_workers()
    }
    file = opened.folder / "clock.json"
    try:
        content = read_object(file)
        if {tuple(step) for step in content["steps"]} >= steps:
            facts = read_clock(content["facts"])
            return replace(facts, network=facts.local if network == HERE else network)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        watcher.note(f"{file} cannot be read ({brief(error)}); timing steps again")
    facts = measure_clock(
        opened.options,
        steps=sorted(steps),
        network=network,
        tell=watcher.note,
    )
    content = {"steps": sorted(steps), "facts": asdict(facts)}
    write_atomically(file, json.dumps(content, indent=2) + "\n")
    return facts


def _first_batch(entry: Entry) -> int:
    return Course(entry.options).plan(0, ()).batch_size


def _rate(request: StudyRequest, opened: Opened, run: Train) -> Rate:
    if request.learning_rate is None:
        return Rate(value=opened.recipe_rate, how="recipe")
    if request.learning_rate == "largest":
        return largest_rate(opened.options, opened.recipe_rate, opened.folder, run)
    return Rate(value=request.learning_rate, how="given")


def _at(options: Options, rate: Rate, target: float | None) -> Options:
    value = None if rate.how == "recipe" else rate.value
    return replace(options, learning_rate=value, target=target)


def _sequential(
    request: StudyRequest, opened: Opened, rate: Rate, seeds: Sequence[int], run: Train
) -> tuple[Rate, Target]:
    """Train the sequential runs, and settle what everybody races to. A rate that the range test
    found is lowered if the whole run does not converge with it after all."""
    while True:
        target = _target(request, opened, rate, seeds, run)
        if isinstance(target, Target):
            return rate, target
        lower = [
            t.learning_rate for t in rate.tried if t.converged and t.learning_rate < rate.value
        ]
        if not lower:
            raise UserError(target)
        rate = replace(rate, value=max(lower))


def _target(
    request: StudyRequest, opened: Opened, rate: Rate, seeds: Sequence[int], run: Train
) -> Target | str:
    """The target, or why the sequential runs do not reach any."""
    given = opened.found.recipe.target if request.target is None else request.target
    loss = None if given == "auto" or given is None else float(given)
    options = _at(opened.options, rate, loss)
    jobs = [entry.job for entry in race_entries(options, (), (1,), seeds) if entry.job is not None]
    run(jobs)
    curves = [
        [e["valid_loss"] for e in epochs_of(opened.folder, job, options.num_examples)]
        for job in jobs
    ]
    best = [min(filter(math.isfinite, curve), default=math.nan) for curve in curves]
    middle = statistics.median(best)
    if loss is not None:
        how: Literal["given", "recipe"] = "given" if request.target is not None else "recipe"
        if any(reached <= loss for reached in best):
            return Target(loss=loss, how=how, fraction=None, sequential_best=middle)
        return (
            f"--target {loss:g}: the sequential run did not reach it in {options.epochs} epochs; "
            f"the lowest it reached is {min(best):.4g}; give a higher target or more --max-epochs"
        )
    needed = math.ceil(request.fraction * options.epochs)
    if any(len(curve) < needed for curve in curves):
        ends = ", ".join(str(status_of(opened.folder, job)) for job in jobs)
        return (
            f"--target auto: the sequential run ended early ({ends}), before {needed} of "
            f"{options.epochs} epochs; give a lower --learning-rate or a target"
        )
    # the highest of the seeds, so that each has reached it by then
    loss = max(min(curve[:needed]) for curve in curves)
    return Target(loss=loss, how="auto", fraction=request.fraction, sequential_best=middle)


def _is_sequential(job: Job) -> bool:
    return job.options.strategy == "strong"
