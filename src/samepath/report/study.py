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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samepath.files import finite, write_atomically
from samepath.report.page import Section, table_sections, write_page
from samepath.report.study_figures import (
    draw_efficiency,
    draw_generalisation_gap,
    draw_metric_by_batch,
    draw_pareto,
    draw_preferred_batch,
    draw_time_to_target,
)
from samepath.report.study_losses import draw_losses_of
from samepath.report.study_verdict import grid_verdict, metric_better, metric_text, verdict
from samepath.report.words import (
    ENDED,
    MODELLED,
    Rows,
    Tables,
    base_name,
    duration,
    duration_interval,
    endings,
    link_words,
    listed,
    number,
    percent,
    percent_interval,
    step_time,
)
from samepath.study.results import (
    AnyStudy,
    Cell,
    Epoch,
    GridRun,
    GridStudy,
    RunRecord,
    Study,
    to_json,
)


def finish_study(study: Study | GridStudy, folder: Path) -> tuple[Study | GridStudy, Path]:
    """Write everything; the study with its verdict, and the report's path."""
    if isinstance(study, Study):
        said = verdict(study.cells, study.target.loss, study.rate.how)
    else:
        said = grid_verdict(study)
    study = replace(study, verdict=said)
    write_atomically(folder / "study.json", json.dumps(finite(to_json(study)), indent=1) + "\n")
    return study, write_report(study, folder)


def tables_in_short(study: Study | GridStudy) -> Tables:
    """What fits a terminal: titles, tables, and a note below each."""
    if isinstance(study, GridStudy):
        return [(f"{study.metric} at the end", grid_table(study), "")]
    loss = f"{study.target.loss:.4g}"
    tables = [
        (f"Time to a validation loss of {loss}", time_table(study), TIME_NOTE),
        ("Efficiency, T1 / (n Tn), in percent", efficiency_table(study, study.strategies), ""),
    ]
    if study.predictions:
        tables.append(("Modelled against measured efficiency", predictions_table(study), ""))
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
    names = [f"loss_{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.png" for name in study.strategies]
    place = study.strategies.index(strategy)
    return names[place] if names.count(names[place]) == 1 else f"loss_{place + 1}.png"


def _race_sections(study: Study, folder: Path) -> Iterator[Section]:
    yield Section(heading="The study", table=facts_table(study))
    if study.rate.tried:
        words = "Short runs with one worker; the study uses the largest rate that converges."
        yield Section(heading="Learning rates tried", words=words, table=rates_table(study))
    picture = folder / "time_to_target.png"
    draw_time_to_target(study, picture)
    words = "Overlapping points are shifted sideways."
    yield Section(heading="Time to target", words=words, picture=picture)
    tables = [
        (f"Time to target in numbers{part}", time_table(study, names), "")
        for part, names in _parts(study.strategies)
    ]
    yield from _noted(tables, TIME_NOTE)
    picture = folder / "efficiency.png"
    draw_efficiency(study, picture)
    yield Section(heading="Efficiency", picture=picture)
    strong, others = strong_of(study), others_of(study)
    called = "Efficiency of the other strategies" if strong else "Efficiency in numbers"
    groups = [("Efficiency of strong scaling", strong)] if strong else []
    groups += [(f"{called}{part}", list(names)) for part, names in _parts(others)]
    tables = [(heading, efficiency_table(study, names), "") for heading, names in groups]
    yield from _noted(tables, EFFICIENCY_NOTE)
    for name in study.strategies:
        if any(run.curve for run in study.runs if run.strategy == name):
            picture = folder / loss_picture(study, name)
            draw_losses_of(study, name, picture)
            yield Section(heading=f"Loss: {name}", picture=picture)
    yield _gap_section(study, folder)
    picture = folder / "pareto.png"
    draw_pareto(study, picture)
    words = "Further left costs less compute, further down takes less time; the front is best."
    yield Section(heading="Time against compute", words=words, picture=picture)
    if study.predictions:
        words = (
            "Efficiency with real workers here, and what the model of a step says of the same "
            "runs: how far to trust modelled times."
        )
        table = predictions_table(study)
        yield Section(heading="Measured against modelled", words=words, table=table)
    table = runs_table(study)
    yield Section(heading="All runs", table=table, folded=len(table) > 40)


def _grid_sections(study: GridStudy, folder: Path) -> Iterator[Section]:
    yield Section(heading="The study", table=grid_facts_table(study))
    note = f"At the end of each run; {metric_better(study)} is better. Median (lowest to highest)."
    heading = f"{study.metric.capitalize()} by batch size"
    picture = folder / "accuracy_by_batch.png"
    draw_metric_by_batch(study, picture)
    yield Section(heading=heading, table=grid_table(study), note=note, picture=picture)
    picture = folder / "preferred_batch.png"
    draw_preferred_batch(study, picture)
    yield Section(heading="Preferred batch size", picture=picture)
    yield _gap_section(study, folder)


def _gap_section(study: Study | GridStudy, folder: Path) -> Section:
    picture = folder / "generalisation_gap.png"
    draw_generalisation_gap(study, picture)
    return Section(heading="Generalisation gap", picture=picture)


def _noted(tables: Tables, note: str) -> list[Section]:
    """Tables that share a note, which is printed once, below the last."""
    return table_sections([*tables[:-1], *((*table[:2], note) for table in tables[-1:])])


def _parts(names: Sequence[str], columns: int = 5) -> Iterator[tuple[str, Sequence[str]]]:
    """Names in pieces that fit a page's width, and how to call each piece."""
    pieces = [names[i : i + columns] for i in range(0, len(names), columns)]
    for place, piece in enumerate(pieces, 1):
        yield f" ({place} of {len(pieces)})" if len(pieces) > 1 else "", piece


# ---------------------------------------------------------------------------------------- tables

_NOTE = f"{MODELLED} from a modelled time; no mark: measured with that many real workers."
_SPREAD = " With several seeds: median (lowest to highest)."
TIME_NOTE = _NOTE + _SPREAD
EFFICIENCY_NOTE = (
    "In percent: T1 / (n Tn), with T1 the sequential run's time. NaN: target not reached. "
    + _NOTE
    + _SPREAD
)

_TARGET_HOW = {"given": "given", "recipe": "the recipe's"}
_RATE_HOW = {
    "recipe": "the recipe's",
    "given": "given",
    "largest": "the largest with which one worker converges (range test)",
}


def strong_of(study: Study) -> list[str]:
    """The strategies of the paper's Table I."""
    return [name for name in study.strategies if base_name(name) == "strong"]


def others_of(study: Study) -> list[str]:
    """The strategies of the paper's Table II."""
    return [name for name in study.strategies if base_name(name) != "strong"]


def efficiency_table(study: Study, strategies: Sequence[str]) -> Rows:
    """Percent by workers and strategy: Tables I and II of Cunha et al. 2018."""

    def text(cell: Cell) -> str:
        if cell.efficiency is None or not math.isfinite(cell.efficiency.median):
            return "NaN"
        return _marked(percent_interval(cell.efficiency), cell)

    return _by_workers(study, strategies, text)


def time_table(study: Study, strategies: Sequence[str] | None = None) -> Rows:
    """Time to target by workers and strategy, or why there is none."""

    def text(cell: Cell) -> str:
        if cell.seconds is None:
            return endings(cell.ended)
        return _marked(duration_interval(cell.seconds), cell)

    return _by_workers(study, study.strategies if strategies is None else strategies, text)


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
                run.strategy,
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
    if target.how == "auto" and target.fraction is not None:
        share = f"{100.0 * target.fraction:g} % of the sequential run's epochs"
        target_how = f"the validation loss after {share}"
    else:
        target_how = _TARGET_HOW.get(target.how, target.how)
    threads = "1 thread" if clock.threads == 1 else f"{clock.threads} threads"
    fixed = " (fixed: the model normalises over a grain)" if clock.grain_fixed else ""
    link = f"{clock.network.name} ({clock.network.how}): {link_words(clock.network)}"
    return [
        ["", ""],
        *data_facts(study),
        ["batch of one worker", f"{study.batch_size}, in grains of {study.grain_size}{fixed}"],
        ["optimizer", study.optimizer],
        ["strategies", listed(study.strategies) if study.strategies else "none"],
        ["workers", ", ".join(map(str, study.workers))],
        ["seeds", ", ".join(map(str, study.seeds))],
        ["target", f"validation loss {number(target.loss, 6)}: {target_how}"],
        ["best sequential loss", _loss(target.sequential_best)],
        ["epoch limit", str(study.max_epochs)],
        ["learning rate", f"{number(rate.value)}: {_RATE_HOW.get(rate.how, rate.how)}"],
        ["network", link],
        ["gradients", f"{clock.gradient_bytes / 1e6:.4g} MB a step"],
        ["fixed cost per step", step_time(clock.serial_seconds)],
        ["machine", f"{clock.machine}; {threads} per worker"],
        ["cores used by other processes", f"{clock.busy_cores:.1f} at most"],
        *origin_facts(study),
    ]


def grid_facts_table(study: GridStudy) -> Rows:
    return [
        ["", ""],
        *data_facts(study),
        ["optimizer", study.optimizer],
        ["batch sizes", ", ".join(map(str, study.batch_sizes))],
        ["learning rates", ", ".join(map(number, study.learning_rates))],
        ["seeds", ", ".join(map(str, study.seeds))],
        ["grain", str(study.grain_size)],
        ["epochs", str(study.epochs)],
        ["judged by", f"{study.metric}, {metric_better(study)} is better"],
        *origin_facts(study),
    ]


def grid_table(study: GridStudy) -> Rows:
    """The metric at the end by batch size and learning rate; median (lowest to highest)."""
    rows = [["batch size", *(f"rate {number(rate)}" for rate in study.learning_rates)]]
    for batch in study.batch_sizes:
        row = [str(batch)]
        for rate in study.learning_rates:
            runs = [r for r in study.runs if (r.batch_size, r.learning_rate) == (batch, rate)]
            row.append(metric_text(study, runs))
        rows.append(row)
    return rows


def _by_workers(study: Study, strategies: Sequence[str], text: Callable[[Cell], str]) -> Rows:
    cells = {(cell.strategy, cell.workers): cell for cell in study.cells}
    rows = [["workers", *strategies]]
    for workers in study.workers:
        found = [cells.get((name, workers)) for name in strategies]
        rows.append([str(workers), *("not run" if c is None else text(c) for c in found)])
    return rows


def _marked(text: str, cell: Cell) -> str:
    """Mark a number with what a reader must know about where it comes from."""
    if cell.how == "modelled":
        text += f" {MODELLED}"
    return text if cell.reached == cell.seeds else f"{text}, {cell.reached} of {cell.seeds} seeds"


def _loss(value: float) -> str:
    return "none" if math.isnan(value) else number(value)


def data_facts(study: AnyStudy) -> Rows:
    data = f"{study.num_examples} to train on, {study.num_valid} to validate on"
    return [["recipe", study.recipe], ["examples", data]]


def origin_facts(study: AnyStudy) -> Rows:
    versions = ", ".join(f"{name} {version}" for name, version in study.versions.items())
    return [["versions", versions], ["command", " ".join(study.command)]]


# ------------------------------------------------------------------------- for other programs

_RACE_COLUMNS = (
    *("strategy", "workers", "seed", "folder", "batch_size", "highest_learning_rate"),
    *("gradient_lag_steps", "ended", "why", "times_are", "step_seconds", "target_valid_loss"),
    *("reached_target", "seconds_to_target", "best_valid_loss"),
)
_GRID_COLUMNS = ("batch_size", "learning_rate", "seed", "folder", "ended", "why")


def write_csv(study: Study | GridStudy, out: Path) -> None:
    """Write one line per run, replacing an older file whole."""
    names = sorted({name for run in study.runs for epoch in run.curve for name in epoch.metrics})
    if isinstance(study, Study):
        first: tuple[str, ...] = _RACE_COLUMNS
        lines = [_race_line(study, run) | _end(run.curve, names) for run in study.runs]
    else:
        first = _GRID_COLUMNS
        lines = [_grid_line(run) | _end(run.curve, names) for run in study.runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*first, *_end((), names)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.getvalue())


def _race_line(study: Study, run: RunRecord) -> dict[str, Any]:
    flat = (run.strategy, run.workers, run.seed, run.folder, run.batch_size, run.learning_rate)
    end = (run.lag, run.ended, run.why, run.how, run.step_seconds, study.target.loss)
    reached = ("yes" if run.reached else "no", run.seconds_to_target, run.best_loss)
    return dict(zip(_RACE_COLUMNS, (*flat, *end, *reached), strict=True))


def _grid_line(run: GridRun) -> dict[str, Any]:
    flat = (run.batch_size, run.learning_rate, run.seed, run.folder, run.ended, run.why)
    return dict(zip(_GRID_COLUMNS, flat, strict=True))


def _end(curve: tuple[Epoch, ...], metrics: list[str]) -> dict[str, Any]:
    """The last epoch, flat; empty where there is none."""
    last = curve[-1] if curve else None
    return {
        "epochs": last.epoch if last else 0,
        "steps": last.steps if last else 0,
        "examples_seen": last.examples if last else 0,
        "training_seconds": last.seconds if last else None,
        "final_batch_size": last.batch_size if last else None,
        "final_learning_rate": last.learning_rate if last else None,
        "final_train_loss": last.train_loss if last else None,
        "final_valid_loss": last.valid_loss if last else None,
        **{f"final_{name}": last.metrics.get(name) if last else None for name in metrics},
    }
