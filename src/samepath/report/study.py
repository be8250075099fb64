"""The report of a study: its verdict, `study.json`, `study.csv`, pictures, and one page.

In: what was found. Out: a folder with everything to look at. Guaranteed: `report.html` opens
without a network and without the other files; every number that rests on a modelled time carries a
dagger; what was not reached is NaN (efficiency) or the reason (time), what was not run is said to
be not run; `study.csv` rounds nothing.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from samepath.console import count, sentence
from samepath.files import finite, write_atomically
from samepath.insight.advise.advice import of_measured
from samepath.report import study_figures as figures
from samepath.report.branches import branches_table, draw_branches
from samepath.report.page import Section, write_page
from samepath.report.study_verdict import (
    grid_runs,
    grid_verdict,
    metric_better,
    metric_text,
    race_verdict,
)
from samepath.report.words import (
    ENDED,
    MODELLED,
    NOT_REACHED,
    Rows,
    Tables,
    duration,
    duration_interval,
    endings,
    facts_rows,
    link_words,
    listed,
    number,
    percent,
    percent_interval,
    step_time,
    workers_named,
)
from samepath.study.results import (
    AnyStudy,
    Cell,
    Epoch,
    GridRun,
    GridStudy,
    MeasuredBatch,
    RunRecord,
    Study,
    to_json,
)


def finish_study(study: Study | GridStudy, folder: Path) -> tuple[Study | GridStudy, Path]:
    """Write everything; the study with its verdict, and the report's path."""
    said = race_verdict(study) if isinstance(study, Study) else grid_verdict(study)
    study = replace(study, verdict=said)
    write_atomically(folder / "study.json", json.dumps(finite(to_json(study)), indent=1) + "\n")
    return study, write_report(study, folder)


def tables_in_short(study: Study | GridStudy) -> Tables:
    """What fits a terminal: titles, tables, and a note below each."""
    if isinstance(study, GridStudy):
        return [(f"{study.metric} at the end", grid_table(study), "")]
    loss = f"{study.target.loss:.4g}"
    times = summary_table(study) if study.is_fair else time_table(study)
    tables = [
        (f"Time to a validation loss of {loss}", times, time_note(study)),
        ("Efficiency, T1 / (n Tn), in percent", efficiency_table(study, study.strategies), ""),
    ]
    if study.predictions:
        tables.append(("Modelled against measured efficiency", predictions_table(study), ""))
    if study.measured_batch is not None:
        tables.append(branches_table(study.measured_batch))
    return tables


def write_report(study: Study | GridStudy, folder: Path) -> Path:
    """Write `study.csv`, the pictures and `report.html`; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(study, folder / "study.csv")
    if isinstance(study, Study):
        kind, sections = "strategies raced to a target", _race_sections(study, folder)
    else:
        kind, sections = "batch sizes and learning rates", _grid_sections(study, folder)
    page = folder / "report.html"
    verdict_first = [Section(heading="Verdict", words=study.verdict)] if study.verdict else []
    write_page(page, f"{study.recipe}: {kind}", [*verdict_first, *sections])
    return page


def loss_picture(study: Study, strategy: str) -> str:
    """The file name of a strategy's loss curves, whatever characters its name has."""
    names = [f"loss_{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.svg" for name in study.strategies]
    place = study.strategies.index(strategy)
    return names[place] if names.count(names[place]) == 1 else f"loss_{place + 1}.svg"


def _race_sections(study: Study, folder: Path) -> Iterator[Section]:
    """The result in one table; figures (of tuned runs, where there are any); then how it was
    found."""
    drawn = study
    if study.tuning is not None:
        drawn = replace(study.only(tuned=True), recipe=f"{study.recipe}, tuned")
    yield Section(
        heading="Time to target",
        words="Overlapping points are shifted sideways.",
        table=summary_table(study) if study.is_fair else time_table(study),
        note=time_note(study),
        link=("What the words mean", WORDS),
        picture=figures.draw_time_to_target(drawn, folder / "time_to_target.svg"),
    )
    if study.tuning is not None:
        prescribed = replace(study.only(tuned=False), recipe=f"{study.recipe}, as prescribed")
        picture = folder / "time_to_target_prescribed.svg"
        yield Section(
            heading="Time to target, as prescribed",
            picture=figures.draw_time_to_target(prescribed, picture),
        )
    if study.is_fair:
        yield Section(heading="How runs ended", table=time_table(study), note=time_note(study))
    yield Section(
        heading="Efficiency",
        table=efficiency_table(study, study.strategies),
        note=f"{EFFICIENCY_NOTE} {spread_note(study)}",
        picture=figures.draw_efficiency(drawn, folder / "efficiency.svg"),
    )
    for name in study.strategies:
        if any(run.curve for run in drawn.runs if run.strategy == name):
            picture = figures.draw_losses_of(drawn, name, folder / loss_picture(study, name))
            yield Section(heading=f"Loss: {name}", picture=picture)
    yield _gap_section(drawn, folder)
    yield Section(
        heading="Time against compute",
        words="Further left costs less compute, further down takes less time; the front is best.",
        picture=figures.draw_pareto(drawn, folder / "pareto.svg"),
    )
    if study.measured_batch is not None:
        yield _batch_section(study, study.measured_batch, folder)
    yield Section(heading="The study", table=facts_table(study))
    if study.rate.tried:
        words = "Short runs with one worker; the study uses the largest rate that converges."
        yield Section(heading="Learning rates tried", words=words, table=rates_table(study))
    if study.tuning is not None:
        words = (
            "What was tried for each strategy and number of workers, on seeds that are not "
            "reported. Chosen: the trial that reached the target soonest, or, where none did, the "
            "one with the lowest loss. A trial ends when it can no longer come sooner than the "
            "best before it ('not in 5 epochs'), which does not change what is chosen."
        )
        yield Section(heading="Trials", words=words, table=trials_table(study), folded=True)
    if study.predictions:
        words = (
            "Efficiency with real workers here, and what the model of a step says of the same "
            "runs: how far to trust modelled times."
        )
        table = predictions_table(study)
        yield Section(heading="Measured against modelled", words=words, table=table)
    table = runs_table(study)
    yield Section(heading="All runs", table=table, folded=len(table) > 40)
    yield Section(heading=WORDS, table=words_table(study), note=GLOSSARY_NOTE)


def _grid_sections(study: GridStudy, folder: Path) -> Iterator[Section]:
    yield Section(heading="The study", table=grid_facts_table(study))
    yield Section(
        heading=f"{study.metric.capitalize()} by batch size",
        table=grid_table(study),
        note=f"At the end of each run; {metric_better(study)} is better.{_SPREAD}",
        picture=figures.draw_metric_by_batch(study, folder / "accuracy_by_batch.svg"),
    )
    picture = figures.draw_preferred_batch(study, folder / "preferred_batch.svg")
    yield Section(heading="Preferred batch size", picture=picture)
    yield _gap_section(study, folder)


def _batch_section(study: Study, found: MeasuredBatch, folder: Path) -> Section:
    """The critical batch, from branches of a run on the sequential run's path."""
    title, table, note = branches_table(found)
    picture = draw_branches(f"{study.recipe}: {title}", found, folder / "critical_batch.svg")
    words = sentence(of_measured(found)) + "."
    return Section(heading=title, words=words, table=table, note=note, picture=picture)


def _gap_section(study: Study | GridStudy, folder: Path) -> Section:
    picture = figures.draw_generalisation_gap(study, folder / "generalisation_gap.svg")
    return Section(heading="Generalisation gap", picture=picture)


# ---------------------------------------------------------------------------------------- tables

WORDS = "Words"
GLOSSARY_NOTE = "All of samepath's words: docs/glossary.md in its documentation."
_NOTE = f"{MODELLED} from a modelled time; no mark: measured with that many real workers."
_SPREAD = " With several seeds: median (lowest to highest)."
EFFICIENCY_NOTE = (
    "In percent: T1 / (n Tn), with T1 the sequential run's time. NaN: target not reached. " + _NOTE
)


def spread_note(study: Study) -> str:
    """What the numbers beside a median are."""
    if not study.is_fair:
        return _SPREAD.strip()
    return (
        f"Median over {study.counted} (95% interval, by bootstrap), where a target that is not "
        f"reached counts as infinite; r of n: {study.counted} that reached it."
    )


def time_note(study: Study) -> str:
    """What marks and intervals of times mean."""
    return f"{_NOTE} {spread_note(study)}"


_HOW = {
    "recipe": "the recipe's",
    "given": "given",
    "largest": "the largest with which one worker converges (range test)",
}


def summary_table(study: Study) -> Rows:
    """Time to target by strategy and workers: a line as tuned and a line as prescribed."""
    kinds = [True, False] if study.tuning is not None else [False]
    cells = {(cell.strategy, cell.workers, cell.tuned): cell for cell in study.cells}
    rows = [["strategy", *(workers_named([k]) for k in study.workers)]]
    for name in study.strategies:
        for tuned in kinds:
            found = [cells.get((name, k, tuned)) for k in study.workers]
            row = ["not run" if cell is None else _summary(cell) for cell in found]
            rows.append([row_name(name, tuned, both=len(kinds) > 1), *row])
    return rows


def _summary(cell: Cell) -> str:
    if set(cell.ended) == {"impossible"}:
        return endings(cell.ended)
    time = NOT_REACHED if cell.seconds is None else duration_interval(cell.seconds)
    mark = f" {MODELLED}" if cell.seconds is not None and cell.how == "modelled" else ""
    return f"{time}{mark}, {cell.reached} of {cell.seeds}"


def row_name(strategy: str, tuned: bool, *, both: bool) -> str:
    """A strategy's name; with its kind where there are both kinds."""
    return f"{strategy}, {_kind(tuned)}" if both else strategy


def _kind(tuned: bool) -> str:
    return "tuned" if tuned else "as prescribed"


def efficiency_table(study: Study, strategies: Sequence[str]) -> Rows:
    """Percent by workers and strategy: Tables I and II of Cunha et al. 2018."""

    def text(cell: Cell) -> str:
        if cell.efficiency is None or not math.isfinite(cell.efficiency.median):
            return "NaN"
        return _marked(percent_interval(cell.efficiency), cell, study.counted)

    return _by_workers(study, strategies, text)


def time_table(study: Study) -> Rows:
    """Time to target by workers and strategy, or why there is none."""

    def text(cell: Cell) -> str:
        if cell.seconds is None:
            return endings(cell.ended, "runs" if study.is_fair else "seeds")
        return _marked(duration_interval(cell.seconds), cell, study.counted)

    return _by_workers(study, study.strategies, text)


def predictions_table(study: Study) -> Rows:
    """The clock's model against measurements."""
    rows = [
        ["strategy", "workers", "measured (%)", "modelled (%)", "error (points)", "relative (%)"]
    ]
    for p in study.predictions:
        error = p.modelled_efficiency - p.measured_efficiency
        relative = error / p.measured_efficiency if p.measured_efficiency else math.nan
        shares = [percent(p.measured_efficiency), percent(p.modelled_efficiency)]
        errors = [f"{100.0 * x:+.1f}" if math.isfinite(x) else "NaN" for x in (error, relative)]
        rows.append([p.strategy, str(p.workers), *shares, *errors])
    return rows


def rates_table(study: Study) -> Rows:
    """The range test: which rates were tried, and what came of them."""
    rows = [["learning rate", "converged", "loss at the end", "why"]]
    for tried in study.rate.tried:
        chosen = " (chosen)" if tried.converged and tried.learning_rate == study.rate.value else ""
        rate = number(tried.learning_rate) + chosen
        rows.append([rate, "yes" if tried.converged else "no", number(tried.loss), tried.why])
    return rows


def runs_table(study: Study) -> Rows:
    """One line per run."""
    head = ["strategy", "workers", "seed", "batch", "rate", "lag", "ended", "epochs", "best loss"]
    rows = [[*head, "training time", "how"]]
    for run in study.runs:
        words = ENDED[run.ended] + (f": {run.why}" if run.why else "")
        rows.append(
            [
                row_name(run.strategy, run.tuned, both=study.tuning is not None),
                *map(str, (run.workers, run.seed, run.batch_size)),
                number(run.learning_rate),
                str(run.lag),
                words,
                str(run.last.epoch if run.last else 0),
                _loss(run.best_loss),
                duration(run.last.seconds) if run.last else "",
                run.how,
            ]
        )
    return rows


def facts_table(study: Study) -> Rows:
    """What was raced, to what, over what."""
    target, rate, clock = study.target, study.rate, study.clock
    target_how = _HOW.get(target.how, target.how)
    if target.how == "auto" and target.fraction is not None:
        share = f"{100.0 * target.fraction:g} % of the sequential run's epochs"
        target_how = f"the validation loss after {share}"
    elif target.how == "tuned" and target.fraction is not None:
        share = f"{100.0 * target.fraction:g} % of the epochs"
        target_how = (
            f"the lowest of the best sequential trial in {share}, median over further seeds"
        )
    if target.hold > 1:
        target_how += f"; reached after {target.hold} evaluations in a row within it"
    fixed = " (fixed: the model normalises over a grain)" if clock.grain_fixed else ""
    link = f"{clock.network.name} ({clock.network.how}): {link_words(clock.network)}"
    facts = {
        "batch of one worker": f"{study.batch_size}, in grains of {study.grain_size}{fixed}",
        "strategies": listed(study.strategies) if study.strategies else "none",
        "workers": ", ".join(map(str, study.workers)),
        "seeds": ", ".join(map(str, study.seeds)),
        **_fairness(study),
        "target": f"validation loss {number(target.loss, 6)}: {target_how}",
        "best sequential loss": _loss(target.sequential_best),
        "epoch limit": str(study.max_epochs),
        "learning rate": f"{number(rate.value)}: {_HOW.get(rate.how, rate.how)}",
        "network": link,
        "gradients": f"{clock.gradient_bytes / 1e6:.4g} MB a step",
        "fixed cost per step": step_time(clock.serial_seconds),
        "machine": f"{clock.machine}; {count(clock.threads, 'thread')} per worker",
        "cores used by other processes": f"{clock.busy_cores:.1f} at most",
    }
    return with_origin(study, facts)


def _fairness(study: Study) -> dict[str, str]:
    """How often the study was repeated, and what trials were drawn from."""
    facts = {"studies": str(study.studies)} if study.studies > 1 else {}
    if study.tuning is None:
        return facts
    tuning = study.tuning
    ranges = [
        f"{span.setting} {number(span.low)} to {number(span.high)}"
        + (" times the strategy's own" if span.factor else "")
        for span in tuning.ranges
    ]
    return {
        **facts,
        "trials": f"{tuning.num_trials} for every strategy and worker count, the first as "
        "prescribed, the others quasi-random and the same for all",
        "trials are drawn from": "; ".join(ranges) + "; evenly on a logarithmic scale",
        "seeds of trials": ", ".join(map(str, tuning.seeds)),
    }


def trials_table(study: Study) -> Rows:
    """One line per trial."""
    head = ["strategy", "workers", "study", "trial", "rate of one worker", "time to target"]
    rows = [[*head, "lowest loss", "chosen"]]
    for trials in study.tuning.trials if study.tuning is not None else ():
        for place, trial in enumerate(trials.tried):
            never = f"not in {count(trial.epochs, 'epoch')}" if trial.epochs else NOT_REACHED
            time = duration(trial.seconds) if math.isfinite(trial.seconds) else never
            rows.append(
                [
                    trials.strategy,
                    *map(str, (trials.workers, trials.study)),
                    "as prescribed" if place == 0 else trial.strategy,
                    number(trial.learning_rate),
                    time,
                    _loss(trial.loss),
                    "yes" if place == trials.chosen else "",
                ]
            )
    return rows


def words_table(study: Study) -> Rows:
    """What the page's words mean."""
    words = {
        "strategy": "how batch, learning rate and synchronisation change with the number of "
        "workers (docs/strategies.md)",
        "worker": "one process that trains; a strategy for many is trained with those there are",
        "sequential run": "one worker with the recipe's batch and rate",
        "target": "the validation loss that runs are to reach",
        "stuck": "the validation loss stayed within 1% for as many epochs as there is patience",
        "seed": "number that order, first weights and augmentation are drawn with",
        "modelled": "the time of a step was calculated for that many workers, and not measured",
    }
    if study.studies > 1:
        words["study"] = "one repetition of the whole, with seeds and trials of its own"
    if study.tuning is not None:
        words["as prescribed"] = "with the rate and parameters that the strategy's rule gives"
        words["tuned"] = "with those of the best trial, trained again with other seeds"
    return [["word", "meaning"], *([name, words[name]] for name in words)]


def grid_facts_table(study: GridStudy) -> Rows:
    facts = {
        "batch sizes": ", ".join(map(str, study.batch_sizes)),
        "learning rates": ", ".join(map(number, study.learning_rates)),
        "seeds": ", ".join(map(str, study.seeds)),
        "grain": str(study.grain_size),
        "epochs": str(study.epochs),
        "judged by": f"{study.metric}, {metric_better(study)} is better",
    }
    return with_origin(study, facts)


def with_origin(study: AnyStudy, facts: Mapping[str, str]) -> Rows:
    """Facts of a study in a table, with what was trained before them, and by what after them."""
    return facts_rows(
        {
            "recipe": study.recipe,
            "examples": f"{study.num_examples} to train on, {study.num_valid} to validate on",
            "optimizer": study.optimizer,
            **facts,
            "versions": ", ".join(f"{name} {v}" for name, v in study.versions.items()),
            "command": " ".join(study.command),
        }
    )


def grid_table(study: GridStudy) -> Rows:
    """The metric at the end by batch size and learning rate; median (lowest to highest)."""
    rates, runs = study.learning_rates, grid_runs(study)
    rows = [["batch size", *(f"rate {number(rate)}" for rate in rates)]]
    for batch in study.batch_sizes:
        rows.append([str(batch), *(metric_text(study, runs[batch, rate]) for rate in rates)])
    return rows


def _by_workers(study: Study, strategies: Sequence[str], text: Callable[[Cell], str]) -> Rows:
    """A line for each number of workers; two, where strategies were tuned."""
    cells = {(cell.strategy, cell.workers, cell.tuned): cell for cell in study.cells}
    several = study.tuning is not None
    rows = [["workers", *([""] if several else []), *strategies]]
    for workers in study.workers:
        for tuned in [False, True] if several else [False]:
            found = [cells.get((name, workers, tuned)) for name in strategies]
            head = [str(workers), *([_kind(tuned)] if several else [])]
            rows.append([*head, *("not run" if c is None else text(c) for c in found)])
    return rows


def _marked(text: str, cell: Cell, counted: str) -> str:
    """Mark a number with what a reader must know about where it comes from."""
    if cell.how == "modelled":
        text += f" {MODELLED}"
    if cell.reached == cell.seeds:
        return text
    return f"{text}, {cell.reached} of {cell.seeds} {counted}"


def _loss(value: float) -> str:
    return "none" if math.isnan(value) else number(value)


# ------------------------------------------------------------------------- for other programs


def write_csv(study: Study | GridStudy, out: Path) -> None:
    """Write one line per run, replacing an older file whole."""
    metrics = sorted({name for run in study.runs for epoch in run.curve for name in epoch.metrics})
    lines = [_csv_line(study, run) | _end(run.curve, metrics) for run in study.runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_atomically(out, text.getvalue())


def _csv_line(study: Study | GridStudy, run: RunRecord | GridRun) -> dict[str, Any]:
    if isinstance(study, GridStudy):
        names = ("batch_size", "learning_rate", "seed", "folder", "ended", "why")
        return {name: getattr(run, name) for name in names}
    assert isinstance(run, RunRecord)
    return {
        "strategy": run.strategy,
        "workers": run.workers,
        "seed": run.seed,
        "study": run.study,
        "settings": _kind(run.tuned),
        "folder": run.folder,
        "batch_size": run.batch_size,
        "highest_learning_rate": run.learning_rate,
        "gradient_lag_steps": run.lag,
        "ended": run.ended,
        "why": run.why,
        "times_are": run.how,
        "step_seconds": run.step_seconds,
        "target_valid_loss": study.target.loss,
        "reached_target": "yes" if run.reached else "no",
        "seconds_to_target": run.seconds_to_target,
        "best_valid_loss": run.best_loss,
    }


def _end(curve: tuple[Epoch, ...], metrics: list[str]) -> dict[str, Any]:
    """The last epoch, flat; empty where there is none."""
    last: dict[str, Any] = {"epoch": 0, "steps": 0, "examples": 0, "metrics": {}}
    if curve:
        last = asdict(curve[-1])
    sums = {"epochs": "epoch", "steps": "steps", "examples_seen": "examples"}
    sums["training_seconds"] = "seconds"
    finals = ("batch_size", "learning_rate", "train_loss", "valid_loss")
    return {
        **{name: last.get(field) for name, field in sums.items()},
        **{f"final_{name}": last.get(name) for name in finals},
        **{f"final_{name}": last["metrics"].get(name) for name in metrics},
    }
