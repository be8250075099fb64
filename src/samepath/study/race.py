"""A race of strategies to a loss, from what was asked to what was found.

In: a StudyRequest. Out: a Study; in its folder, runs that are never repeated. Guaranteed: bad input
raises before anything is written; a study that was stopped or killed goes on where it was when it
is asked for again, and finds the same; strategies, workers, seeds, epochs and another target can be
added to it; entries on one path share one run: all strong runs of a seed are one, and so is every
strategy that does at some k what strong does.

A study that tunes trains every strategy's trials at every k first, on seeds of their own, and
reports the chosen ones beside what the strategy prescribes, on the same seeds.
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
from samepath.study.opening import MOST_SEEDS, Opened, StudyRequest, entered, look_into
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
    Trials,
    Tuning,
    TuningTrial,
)
from samepath.study.runner import PlannedRun, end_of, epochs_of, status_of, train_runs
from samepath.study.tuning import (
    Setting,
    best_trial,
    ranges_of,
    settings_to_try,
    trial_points,
)
from samepath.timing.links import HERE, NetworkFacts, parse_network
from samepath.timing.measured import ClockFacts, How, step_key
from samepath.timing.model import Clock
from samepath.timing.stopwatch import measure_clock

Train: TypeAlias = Callable[[Sequence[PlannedRun]], None]
_FRACTIONS = (0.0, 0.25, 0.5, 0.75)
"""Fractions of an epoch at which strategies are asked what they do."""
AUTO_FRACTION, TUNED_FRACTION = 0.5, 0.75
"""Parts of the epochs after which the sequential run sets the target."""
TARGET_SEEDS = tuple(range(2 * MOST_SEEDS, 2 * MOST_SEEDS + 5))
"""Seeds with which the best sequential trial is run again, for a tuned target alone."""


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

    seeds = tuple(range(request.studies * request.seeds))
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

    def recorded(entry: Entry) -> RunRecord:
        record = run_record(entry, folder, clock, target.loss)
        return replace(record, study=record.seed % MOST_SEEDS // request.seeds)

    entries = race_entries(options, strategies, workers, seeds)
    _train_entries(entries, train)
    records = [recorded(entry) for entry in entries]
    tuning = None
    if request.tune is not None:
        tuning = _tune(request, options, rate, strategies, workers, clock, train, recorded)
        chosen = _chosen_entries(request, options, rate, tuning, entries)
        _train_entries(chosen, train)
        records += [replace(recorded(entry), tuned=True) for entry in chosen]
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
        cells=tuple(
            cells_of(records, strategies, workers, fair=tuning is not None or request.studies > 1)
        ),
        predictions=tuple(predictions(clock, batch_size=options.batch_size)),
        verdict="",
        studies=request.studies,
        tuning=tuning,
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


def _train_entries(entries: Iterable[Entry], train: Train) -> None:
    """Train seed after seed, and those first that are likely to take longest, so that none is left
    over."""
    runs: dict[str, PlannedRun] = {}
    for run in (entry.run for entry in entries if entry.run is not None):
        other = runs.setdefault(run.folder, run)
        if run.options.epochs > other.options.epochs:  # trials on one path may have other limits
            runs[run.folder] = run
    order = sorted(runs.values(), key=lambda run: (run.options.seed, -run.options.virtual_workers))
    train(order)


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
    if request.target == "tuned":
        return _tuned_target(request, opened, rate, train)
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
        # whether a trial reaches it is not known yet
        if request.tune is not None or any(reached <= loss for reached in best):
            return Target(
                loss=loss, how=how, fraction=None, sequential_best=middle, hold=request.hold
            )
        return (
            f"--target {loss:g}: the sequential run did not reach it in {options.epochs} epochs; "
            f"the lowest it reached is {min(best):.4g}; give a higher target or more --max-epochs"
        )
    fraction = request.fraction or AUTO_FRACTION
    needed = math.ceil(fraction * options.epochs)
    if any(len(curve) < needed for curve in curves):
        ends = ", ".join(str(status_of(opened.folder, run)) for run in runs)
        return (
            f"--target auto: the sequential run ended early ({ends}), before {needed} of "
            f"{options.epochs} epochs; give a lower --learning-rate or a target"
        )
    # the highest of the seeds, so that each has reached it by then
    loss = max(min(curve[:needed]) for curve in curves)
    return Target(
        loss=loss, how="auto", fraction=fraction, sequential_best=middle, hold=request.hold
    )


def _tuned_target(request: StudyRequest, opened: Opened, rate: Rate, train: Train) -> Target | str:
    """AlgoPerf's rule (Dahl et al. 2023, arXiv:2306.07179): the best of the sequential run's trials
    is run again with further seeds; the target is the median of their lowest losses."""
    assert request.tune is not None
    fraction = request.fraction or TUNED_FRACTION
    epochs = math.ceil(fraction * opened.options.epochs)
    options = replace(_at(opened.options, rate, None), epochs=epochs)

    def runs_of(setting: Setting, seeds: Iterable[int]) -> list[PlannedRun]:
        entries = (setting_entry(replace(options, seed=s), setting, "strong", 1) for s in seeds)
        return [entry.run for entry in entries if entry.run is not None]

    def lowest_loss(runs: Sequence[PlannedRun]) -> float:
        """Median over seeds; infinite where most have none."""
        curves = [[e.epoch.valid_loss for e in epochs_of(opened.folder, run)] for run in runs]
        finite = [[x for x in c[:epochs] if x is not None and math.isfinite(x)] for c in curves]
        return statistics.median(min(losses, default=math.inf) for losses in finite)

    points, seeds = trial_points(0, request.tune), _choosing_seeds(request, 0)
    tried = [
        (setting, runs_of(setting, seeds))
        for setting in settings_to_try("strong", rate.value, points, options.learning_rate)
    ]
    train([run for _, runs in tried for run in runs])
    best, _ = min(tried, key=lambda each: lowest_loss(each[1]))
    again = runs_of(best, TARGET_SEEDS)
    train(again)
    loss = lowest_loss(again)
    if math.isinf(loss):
        return (
            f"--target tuned: the best of {request.tune} trials of the sequential run has no "
            "finite loss with most other seeds; give a lower --learning-rate or a target"
        )
    return Target(
        loss=loss, how="tuned", fraction=fraction, sequential_best=loss, hold=request.hold
    )


# ---- trials


def _choosing_seeds(request: StudyRequest, study: int) -> range:
    """Seeds with which a study chooses among trials; none of them is reported."""
    first = MOST_SEEDS + study * request.seeds
    return range(first, first + request.seeds)


def setting_entry(options: Options, setting: Setting, strategy: str, k: int) -> Entry:
    """The entry of a strategy at k with a trial's settings."""
    own = replace(options, learning_rate=setting.learning_rate)
    return replace(_entry(own, setting.strategy, k), strategy=strategy)


def _tune(
    request: StudyRequest,
    options: Options,
    rate: Rate,
    strategies: Sequence[str],
    workers: Sequence[int],
    clock: Clock,
    train: Train,
    recorded: Callable[[Entry], RunRecord],
) -> Tuning:
    """Train the trials of all strategies at all k, first the first of each, and choose. A trial
    ends when it can no longer come to the target sooner than the best before it: the same one is
    chosen as if it went on."""
    assert request.tune is not None
    planned: dict[tuple[int, str, int], list[list[Entry]]] = {}
    for study in range(request.studies):
        points, seeds = trial_points(study, request.tune), _choosing_seeds(request, study)
        for text in strategies:
            settings = settings_to_try(text, rate.value, points, options.learning_rate)
            for k in workers:
                tried = [
                    [setting_entry(replace(options, seed=s), setting, text, k) for s in seeds]
                    for setting in settings
                ]
                if tried[0][0].run is not None:  # else the batch is larger than the data
                    planned[study, text, k] = tried
    found: dict[tuple[int, str, int], list[TuningTrial]] = {place: [] for place in planned}
    for number in range(request.tune):
        coming = {}
        for place, tried in planned.items():
            best = min((trial.seconds for trial in found[place]), default=math.inf)
            # the median of an even number of seeds is the mean of two, one of which may come later
            latest = best if request.seeds % 2 else 2 * best
            coming[place] = [ended_before(latest, entry, clock) for entry in tried[number]]
        _train_entries((entry for each in coming.values() for entry in each), train)
        for place, each in coming.items():
            found[place].append(_trial(each, rate, recorded))
    trials = [
        Trials(study=n, strategy=text, workers=k, tried=tuple(each), chosen=best_trial(each))
        for (n, text, k), each in found.items()
    ]
    return Tuning(
        num_trials=request.tune,
        ranges=ranges_of(strategies),
        seeds=tuple(s for n in range(request.studies) for s in _choosing_seeds(request, n)),
        trials=tuple(trials),
    )


def ended_before(latest: float, entry: Entry, clock: Clock) -> Entry:
    """Limit a run to the epochs that end before so many seconds, and one at least."""
    schedule = StrategySchedule(entry.options)
    if entry.run is None or math.isinf(latest) or schedule.measures:
        return entry  # what a strategy measures is not known beforehand, nor is what it does then
    seconds, epochs = 0.0, 0
    while epochs < entry.options.epochs:
        choice, plan = schedule.choice(epochs, ()), schedule.plan(epochs, ())
        each, _ = _step_seconds(clock, choice, plan.batch_size, entry.workers)
        seconds += each * plan.steps_per_epoch
        if seconds >= latest:
            break
        epochs += 1
    options = replace(entry.options, epochs=max(epochs, 1))
    # the run's own options: those of another entry on its path
    run = replace(entry.run, options=replace(entry.run.options, epochs=options.epochs))
    return replace(entry, options=options, run=run)


def _trial(
    entries: Sequence[Entry], rate: Rate, recorded: Callable[[Entry], RunRecord]
) -> TuningTrial:
    """What came of one trial's seeds."""
    records = [recorded(entry) for entry in entries]
    options = entries[0].options
    lowest = [math.inf if math.isnan(r.best_loss) else r.best_loss for r in records]
    loss = statistics.median(lowest)
    return TuningTrial(
        # at one worker a strategy may be the sequential run, whatever its parameters
        strategy=options.strategy,
        learning_rate=rate.value if options.learning_rate is None else options.learning_rate,
        reached=sum(record.reached for record in records),
        seconds=statistics.median(map(_seconds, records)),
        loss=math.nan if math.isinf(loss) else loss,
        epochs=options.epochs,
    )


def _chosen_entries(
    request: StudyRequest,
    options: Options,
    rate: Rate,
    tuning: Tuning,
    prescribed: Sequence[Entry],
) -> list[Entry]:
    """The chosen trials with the seeds that are reported; what is impossible stays as it is."""
    places = {(t.study, t.strategy, t.workers): t.chosen for t in tuning.trials}
    entries = []
    for entry in prescribed:
        study, text, k = entry.seed // request.seeds, entry.strategy, entry.workers
        points = trial_points(study, tuning.num_trials)
        settings = settings_to_try(text, rate.value, points, options.learning_rate)
        setting = settings[places.get((study, text, k), 0)]
        entries.append(setting_entry(replace(options, seed=entry.seed), setting, text, k))
    return entries


# ---- which runs it needs


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One strategy at one number of workers with one seed."""

    strategy: str
    workers: int
    seed: int
    options: Options
    """The options of its path."""
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
    if own.seed >= MOST_SEEDS and own.learning_rate is not None:
        label += f" rate {own.learning_rate:.3g}"
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
    """What became of an entry. Its curve ends where it first reached the target (and has held it),
    also if its run went on."""
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
    within = 0
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
        within = within + 1 if epoch.valid_loss is not None and epoch.valid_loss <= target else 0
        if within == options.hold:
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
    records: Sequence[RunRecord],
    strategies: Sequence[str],
    workers: Sequence[int],
    *,
    fair: bool = False,
) -> list[Cell]:
    """All seeds of each strategy at each number of workers. Fair: medians in which a target that is
    not reached counts as infinite, over studies where there are several; tuned cells last."""
    if fair:
        found = []
        for tuned in sorted({record.tuned for record in records}):
            mine = [record for record in records if record.tuned == tuned]
            several = len({record.study for record in mine}) > 1
            ones = _times_of([r for r in mine if (r.strategy, r.workers) == ("strong", 1)], several)
            found += [
                _fair_cell([r for r in mine if (r.strategy, r.workers) == place], ones, several)
                for place in ((name, k) for name in strategies for k in workers)
            ]
        return found
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
    return Cell(
        strategy=records[0].strategy,
        workers=records[0].workers,
        reached=len(reached),
        seeds=len(records),
        how="measured" if all(r.how == "measured" for r in records) else "modelled",
        seconds=Interval.of([r.seconds_to_target or 0.0 for r in reached]) if most else None,
        epochs=Interval.of([float(len(r.curve)) for r in reached]) if most else None,
        efficiency=Interval.of(efficiencies) if most and efficiencies else None,
        ended=_endings(records),
    )


def _seconds(record: RunRecord) -> float:
    seconds = record.seconds_to_target
    return math.inf if seconds is None else seconds


def _times_of(records: Sequence[RunRecord], several: bool) -> dict[int, float]:
    """Time to target by study (the median over its seeds), or by seed where there is one study."""
    times: dict[int, list[float]] = {}
    for record in records:
        times.setdefault(record.study if several else record.seed, []).append(_seconds(record))
    return {number: statistics.median(each) for number, each in times.items()}


def _fair_cell(records: Sequence[RunRecord], ones: dict[int, float], several: bool) -> Cell:
    first, times = records[0], _times_of(records, several)
    seconds = Interval.bootstrapped(list(times.values()))
    shares = [
        ones[number] / (first.workers * time)
        for number, time in times.items()
        if math.isfinite(ones[number])
    ]
    epochs = [float(len(record.curve)) for record in records if record.reached]
    is_reached = math.isfinite(seconds.median)
    return Cell(
        strategy=first.strategy,
        workers=first.workers,
        reached=sum(map(math.isfinite, times.values())),
        seeds=len(times),
        how="measured" if all(r.how == "measured" for r in records) else "modelled",
        seconds=seconds if is_reached else None,
        epochs=Interval.of(epochs) if is_reached else None,
        efficiency=Interval.bootstrapped(shares) if is_reached and shares else None,
        ended=_endings(records),
        tuned=first.tuned,
    )


def _endings(records: Sequence[RunRecord]) -> dict[str, int]:
    ended: dict[str, int] = {}
    for record in records:
        ended[record.ended] = ended.get(record.ended, 0) + 1
    return ended


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
