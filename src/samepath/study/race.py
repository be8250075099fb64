"""A race of strategies to a loss, from what was asked to what was found.

In: a StudyRequest. Out: a Study; in its folder, runs that are never repeated. Guaranteed: bad input
raises before anything is written; a study that was stopped or killed goes on where it was when it
is asked for again, and finds the same; strategies, workers, seeds, epochs and another target can be
added to it; entries on one path share one run: all strong runs of a seed are one, and so is every
strategy that does at some k what strong does.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from samepath.console import Watcher
from samepath.engine.run.options import Options
from samepath.engine.run.request import available_workers
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.errors import UserError
from samepath.files import brief, read_as, read_object, write_atomically
from samepath.strategies import BUILT_IN, Choice, Moment, find_strategy
from samepath.study.opening import Opened, StudyRequest, entered, look_into
from samepath.study.rates import largest_rate
from samepath.study.results import (
    Cell,
    Epoch,
    Interval,
    Prediction,
    Rate,
    RunRecord,
    Study,
    Target,
)
from samepath.study.runner import PlannedRun, end_of, epochs_of, status_of, train_runs
from samepath.timing.links import HERE, NetworkFacts, parse_network
from samepath.timing.measured import ClockFacts, How, step_key
from samepath.timing.model import Clock
from samepath.timing.stopwatch import measure_clock

Train: TypeAlias = Callable[[Sequence[PlannedRun]], None]
_FRACTIONS = (0.0, 0.25, 0.5, 0.75)
"""Of an epoch, at which strategies are asked what they do."""


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

    def alone_seconds(run: PlannedRun) -> float:
        plan = StrategySchedule(run.options).plan(0, ())
        step_seconds, _ = clock.step_seconds(batch_size=plan.batch_size, workers=1)
        return run.options.epochs * plan.steps_per_epoch * step_seconds

    def train(runs: Sequence[PlannedRun]) -> None:
        train_runs(runs, opened, request, watcher, alone_seconds)

    rate = _rate(request, opened, train)
    rate, target = _sequential(request, opened, rate, seeds, train)
    options = _at(options, rate, target.loss)
    entries = race_entries(options, strategies, workers, seeds)
    runs = {entry.run.folder: entry.run for entry in entries if entry.run is not None}
    # seed after seed, and those first that are likely to take longest, so that none is left over
    train(
        sorted(
            (run for run in runs.values() if run.options.strategy != "strong"),
            key=lambda run: (run.options.seed, -run.options.virtual_workers),
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
        if entry.run is not None and entry.workers <= available_workers()
    }
    file = opened.folder / "clock.json"
    try:
        content = read_object(file)
        if {tuple(step) for step in content["steps"]} >= steps:
            facts: ClockFacts = read_as(ClockFacts, content["facts"])
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
    return StrategySchedule(entry.options).plan(0, ()).batch_size


def _rate(request: StudyRequest, opened: Opened, train: Train) -> Rate:
    if request.learning_rate is None:
        return Rate(value=opened.recipe_rate, how="recipe")
    if request.learning_rate == "largest":
        return largest_rate(opened.options, opened.recipe_rate, opened.folder, train)
    return Rate(value=request.learning_rate, how="given")


def _at(options: Options, rate: Rate, target: float | None) -> Options:
    value = None if rate.how == "recipe" else rate.value
    return replace(options, learning_rate=value, target=target)


def _sequential(
    request: StudyRequest, opened: Opened, rate: Rate, seeds: Sequence[int], train: Train
) -> tuple[Rate, Target]:
    """Train the sequential runs, and choose the loss that all runs race to. A rate that the range
    test found is lowered if the whole run does not converge with it after all."""
    while True:
        target = _target(request, opened, rate, seeds, train)
        if isinstance(target, Target):
            return rate, target
        lower = [
            t.learning_rate for t in rate.tried if t.converged and t.learning_rate < rate.value
        ]
        if not lower:
            raise UserError(target)
        rate = replace(rate, value=max(lower))


def _target(
    request: StudyRequest, opened: Opened, rate: Rate, seeds: Sequence[int], train: Train
) -> Target | str:
    """The target, or why the sequential runs do not reach any."""
    given = opened.recipe.target if request.target is None else request.target
    loss = None if given == "auto" or given is None else float(given)
    options = _at(opened.options, rate, loss)
    runs = [entry.run for entry in race_entries(options, (), (1,), seeds) if entry.run is not None]
    train(runs)
    curves = [
        [math.nan if (found := end.epoch.valid_loss) is None else found for end in epochs]
        for epochs in (epochs_of(opened.folder, run) for run in runs)
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
        ends = ", ".join(str(status_of(opened.folder, run)) for run in runs)
        return (
            f"--target auto: the sequential run ended early ({ends}), before {needed} of "
            f"{options.epochs} epochs; give a lower --learning-rate or a target"
        )
    # the highest of the seeds, so that each has reached it by then
    loss = max(min(curve[:needed]) for curve in curves)
    return Target(loss=loss, how="auto", fraction=request.fraction, sequential_best=middle)


# ---- which runs it needs


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One strategy at one number of workers with one seed."""

    strategy: str
    workers: int
    seed: int
    options: Options
    """Of its path."""
    run: PlannedRun | None
    """None where there is nothing to train."""
    why: str = ""
    """Why there is not."""


def same_as_strong(text: str, k: int, epochs: int) -> bool:
    """Whether a strategy for k workers does what strong does, in every epoch."""
    strategy = find_strategy(text)
    if text.split(":")[0] not in BUILT_IN or strategy.measures(k):
        return False  # what it will do is not known beforehand
    moments = (Moment(epoch=e, fraction=f) for e in range(epochs) for f in _FRACTIONS)
    return all(strategy(k, moment) == Choice() for moment in moments)


def race_entries(
    options: Options, strategies: Sequence[str], workers: Iterable[int], seeds: Iterable[int]
) -> list[Entry]:
    """Every cell of the tables; the sequential runs first."""
    runs: dict[str, PlannedRun] = {}
    entries = []
    for seed in seeds:
        for text in dict.fromkeys(["strong", *strategies]):
            for k in dict.fromkeys([1, *workers]):
                entry = _entry(replace(options, seed=seed), text, k)
                if entry.run is not None:  # one object for one path
                    entry = replace(entry, run=runs.setdefault(entry.run.folder, entry.run))
                entries.append(entry)
    return entries


def _entry(options: Options, text: str, k: int) -> Entry:
    sequential = same_as_strong(text, k, options.epochs)
    own = replace(
        options,
        strategy="strong" if sequential else text,
        strategy_identity="strong" if sequential else find_strategy(text).identity,
        virtual_workers=1 if sequential else k,
    )
    try:
        StrategySchedule(own)
    except UserError as error:
        return Entry(strategy=text, workers=k, seed=own.seed, options=own, run=None, why=str(error))
    name = "strong" if sequential else f"{file_name(text)}-k{k}"
    if own.learning_rate is not None:
        name += f"-rate{own.learning_rate:.6g}"
    label = "sequential" if sequential else f"{text} k={k}"
    run = PlannedRun(
        folder=f"runs/{name}-seed{own.seed}", label=f"{label} seed {own.seed}", options=own
    )
    return Entry(strategy=text, workers=k, seed=own.seed, options=own, run=run)


def file_name(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-")


# ---- what they found

ADVERSARIAL_COST = 2
"""Steps with adversarial examples compute every grain twice."""


def run_record(entry: Entry, study: Path, clock: Clock, target: float) -> RunRecord:
    """What became of an entry. Its curve ends where it first reached the target, also if its run
    went on."""
    options, run = entry.options, entry.run
    moment = Moment(batch_size=options.batch_size)
    wanted = find_strategy(options.strategy)(entry.workers, moment).batch * options.batch_size
    record = RunRecord(
        strategy=entry.strategy,
        workers=entry.workers,
        seed=entry.seed,
        folder="",
        batch_size=round(wanted),
        learning_rate=math.nan,
        lag=0,
        ended="impossible",
        why=entry.why,
        how="modelled",
        step_seconds=None,
        curve=(),
    )
    if run is None:
        return record
    strategy = StrategySchedule(options)
    first, batch_size = strategy.choice(0, ()), strategy.plan(0, ()).batch_size
    step_seconds, how = _step_seconds(clock, first, batch_size, entry.workers)
    curve: list[Epoch] = []
    ended, why = end_of(study, run)
    seconds = highest = 0.0
    history: list[dict[str, float]] = []
    for epoch, steps, highest_rate, measured in epochs_of(study, run):
        if epoch.epoch > options.epochs:  # an earlier study in this folder had a higher limit
            ended, why = "epochs", ""
            break
        choice = strategy.choice(epoch.epoch - 1, history)
        each, known = _step_seconds(clock, choice, epoch.batch_size, entry.workers)
        seconds += each * steps
        how = how if known == how else "modelled"
        highest = max(highest, highest_rate)
        curve.append(replace(epoch, seconds=seconds))
        if epoch.valid_loss is not None and epoch.valid_loss <= target:
            ended, why = "target", ""
            break
        if measured is not None:  # its cost comes before the next epoch
            history.append(measured)
            for name in strategy.measures:
                size = int(measured[f"{name}_gradient_examples"])
                gradient = clock.modelled(batch_size=size, workers=entry.workers)
                seconds, how = seconds + measured[f"{name}_gradients"] * gradient, "modelled"
    return replace(
        record,
        folder=run.folder,
        batch_size=batch_size,
        learning_rate=highest,
        lag=first.synchronisation.lag,
        ended=ended,
        why=why,
        how=how,
        step_seconds=step_seconds,
        curve=tuple(curve),
    )


def _step_seconds(clock: Clock, choice: Choice, batch_size: int, workers: int) -> tuple[float, How]:
    mode = choice.synchronisation.kind
    seconds, how = clock.step_seconds(batch_size=batch_size, workers=workers, mode=mode)
    if choice.adversarial is None:
        return seconds, how
    return ADVERSARIAL_COST * seconds, "modelled"


def cells_of(
    records: Sequence[RunRecord], strategies: Sequence[str], workers: Sequence[int]
) -> list[Cell]:
    """All seeds of each strategy at each number of workers."""
    sequential = {
        record.seed: record.seconds_to_target
        for record in records
        if record.strategy == "strong" and record.workers == 1
    }
    return [
        _cell([r for r in records if (r.strategy, r.workers) == (strategy, k)], sequential)
        for strategy in strategies
        for k in workers
    ]


def _cell(records: Sequence[RunRecord], sequential: dict[int, float | None]) -> Cell:
    reached = [record for record in records if record.reached]
    most = 2 * len(reached) > len(records)
    efficiencies = [
        one / (record.workers * seconds)
        for record in reached
        if (one := sequential[record.seed]) is not None
        and (seconds := record.seconds_to_target) is not None
    ]
    ended: dict[str, int] = {}
    for record in records:
        ended[record.ended] = ended.get(record.ended, 0) + 1
    return Cell(
        strategy=records[0].strategy,
        workers=records[0].workers,
        reached=len(reached),
        seeds=len(records),
        how="measured" if all(r.how == "measured" for r in records) else "modelled",
        seconds=interval([r.seconds_to_target or 0.0 for r in reached]) if most else None,
        epochs=interval([float(len(r.curve)) for r in reached]) if most else None,
        efficiency=interval(efficiencies) if most and efficiencies else None,
        ended=ended,
    )


def interval(values: Sequence[float]) -> Interval:
    return Interval(median=statistics.median(values), low=min(values), high=max(values))


def predictions(clock: Clock, *, batch_size: int) -> list[Prediction]:
    """The model against the measurement, wherever k > 1 real workers ran here.

    Efficiency is T1 / (k Tk) for the same work. Strong: k workers share the batch of one, so T is a
    step's. Weak: they take k batches a step, so T is an example's, and k Tk / k batches is Tk.
    """
    clock = Clock(replace(clock.facts, network=clock.facts.local))  # what the workers talked over
    measured = clock.facts.measured_step_seconds
    alone = measured.get(step_key(batch_size, 1))
    if alone is None:
        return []
    model_alone = clock.modelled(batch_size=batch_size, workers=1)
    steps = sorted((tuple(map(int, key.split("x"))) for key in measured), key=lambda step: step[1])
    found = []
    for strategy in ("strong", "weak"):
        for batch, workers in steps:
            per_step = batch_size if strategy == "strong" else batch_size * workers
            if workers == 1 or batch != per_step:
                continue
            work = batch / batch_size / workers  # of one worker's step, in steps of one alone
            modelled = clock.modelled(batch_size=batch, workers=workers)
            found.append(
                Prediction(
                    strategy=strategy,
                    workers=workers,
                    measured_efficiency=work * alone / measured[step_key(batch, workers)],
                    modelled_efficiency=work * model_alone / modelled,
                )
            )
    return found
