"""From run folders to what a study found.

In: entries, their finished runs, a clock, a target. Out: records with a curve each, and cells over
seeds. Guaranteed: nothing is trained or timed here; a curve ends where its run first reached the
target, also if the run went on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samepath.engine.run.options import Options
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.engine.state.run_folder import RunFolder
from samepath.strategies import Choice, Moment, find_strategy
from samepath.study.results import Cell, Ended, Epoch, Interval, Prediction, RunRecord
from samepath.study.runner import PlannedRun
from samepath.timing.measured import How, step_key
from samepath.timing.model import Clock

ADVERSARIAL_COST = 2
"""Steps with adversarial examples compute every grain twice."""
_METRIC = "valid_"
_ENDED: dict[str, Ended] = {
    "target": "target",
    "diverged": "diverged",
    "stuck": "stuck",
    "finished": "epochs",
}


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


def run_record(entry: Entry, study: Path, clock: Clock, target: float) -> RunRecord:
    """What became of an entry."""
    options, run = entry.options, entry.run
    if run is None:
        wanted = find_strategy(options.strategy)(
            entry.workers, Moment(batch_size=options.batch_size)
        )
        return RunRecord(
            strategy=entry.strategy,
            workers=entry.workers,
            seed=entry.seed,
            folder="",
            batch_size=round(wanted.batch * options.batch_size),
            learning_rate=math.nan,
            lag=0,
            ended="impossible",
            why=entry.why,
            how="modelled",
            step_seconds=None,
            curve=(),
        )
    strategy = StrategySchedule(options)
    first = strategy.choice(0, ())
    step_seconds, how = _step_seconds(clock, first, strategy.plan(0, ()).batch_size, entry.workers)
    curve: list[Epoch] = []
    ended, why = end_of(study, run)
    seconds = 0.0
    history: list[dict[str, float]] = []
    highest = 0.0
    for epoch in epochs_of(study, run, options.num_examples):
        if epoch["epoch"] > options.epochs:  # an earlier study in this folder had a higher limit
            ended, why = "epochs", ""
            break
        measured = epoch.pop("measured")
        choice = strategy.choice(epoch["epoch"] - 1, history)
        each, known = _step_seconds(clock, choice, epoch["batch_size"], entry.workers)
        seconds += each * epoch.pop("epoch_steps")
        how = how if known == how else "modelled"
        highest = max(highest, epoch.pop("highest_rate"))
        curve.append(Epoch(**{**epoch, "seconds": seconds}))
        if curve[-1].valid_loss is not None and curve[-1].valid_loss <= target:
            ended, why = "target", ""
            break
        if measured is not None:  # its cost comes before the next epoch
            history.append(measured)
            for name in strategy.measures:
                size = int(measured[f"{name}_gradient_examples"])
                gradient = clock.modelled(batch_size=size, workers=entry.workers)
                seconds, how = seconds + measured[f"{name}_gradients"] * gradient, "modelled"
    return RunRecord(
        strategy=entry.strategy,
        workers=entry.workers,
        seed=entry.seed,
        folder=run.folder,
        batch_size=strategy.plan(0, ()).batch_size,
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


def end_of(study: Path, run: PlannedRun) -> tuple[Ended, str]:
    """How a run ended, and in its own words."""
    content = RunFolder(study / run.folder).read()
    return _ENDED[content["status"]], content["result"]["message"]


def epochs_of(study: Path, run: PlannedRun, num_examples: int) -> Iterator[dict[str, Any]]:
    """The ends of a run's epochs, as fields of `Epoch` (the time is what it took in the study) and
    three more: its steps, the highest rate in it, and what was measured after it."""
    found: list[dict[str, Any]] = []
    rate = highest = 0.0
    steps = 0
    for line in RunFolder(study / run.folder).read_metrics():
        if "learning_rate" in line:
            rate = float(line["learning_rate"])
            highest = max(highest, rate)
        elif "measured" in line:
            found[-1]["measured"] = line["measured"]
        elif "epoch_train_loss" in line:
            train, valid = line["epoch_train_loss"], line.get("valid_loss")
            found.append(
                {
                    "epoch": line["epoch"] + 1,
                    "steps": line["step"],
                    "examples": (line["epoch"] + 1) * num_examples,
                    "seconds": line["seconds"],
                    "batch_size": line["batch_size"],
                    "learning_rate": rate,
                    "train_loss": None if train is None else float(train),
                    "valid_loss": None if valid is None else float(valid),
                    "metrics": {
                        name.removeprefix(_METRIC): float(value)
                        for name, value in line.items()
                        if name.startswith(_METRIC) and name != "valid_loss"
                    },
                    "epoch_steps": line["step"] - steps,
                    "highest_rate": highest,
                    "measured": None,
                }
            )
            steps, highest = line["step"], 0.0
    yield from found


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


def curve_of(study: Path, run: PlannedRun) -> tuple[Epoch, ...]:
    """A run's epochs, with the time each took in the study."""
    return tuple(
        Epoch(**{name: epoch[name] for name in Epoch.__dataclass_fields__})
        for epoch in epochs_of(study, run, run.options.num_examples)
    )


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
