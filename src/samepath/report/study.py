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

from samepath.console import count
from samepath.files import finite, write_atomically
from samepath.report import study_figures as figures
from samepath.report.page import Section, write_page
from samepath.report.study_verdict import (
    grid_runs,
    grid_verdict,
    metric_better,
    metric_text,
    verdict,
)
from samepath.report.words import (
    ENDED,
    MODELLED,
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
    yield Section(
        heading="Time to target",
        words="Overlapping points are shifted sideways.",
        table=time_table(study),
        note=TIME_NOTE,
        picture=figures.draw_time_to_target(study, folder / "time_to_target.png"),
    )
    yield Section(
        heading="Efficiency",
        table=efficiency_table(study, study.strategies),
        note=EFFICIENCY_NOTE,
        picture=figures.draw_efficiency(study, folder / "efficiency.png"),
    )
    for name in study.strategies:
        if any(run.curve for run in study.runs if run.strategy == name):
            picture = figures.draw_losses_of(study, name, folder / loss_picture(study, name))
            yield Section(heading=f"Loss: {name}", picture=picture)
    yield _gap_section(study, folder)
    yield Section(
        heading="Time against compute",
        words="Further left costs less compute, further down takes less time; the front is best.",
        picture=figures.draw_pareto(study, folder / "pareto.png"),
    )
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
    yield Section(
        heading=f"{study.metric.capitalize()} by batch size",
        table=grid_table(study),
        note=f"At the end of each run; {metric_better(study)} is better.{_SPREAD}",
        picture=figures.draw_metric_by_batch(study, folder / "accuracy_by_batch.png"),
    )
    picture = figures.draw_preferred_batch(study, folder / "preferred_batch.png")
    yield Section(heading="Preferred batch size", picture=picture)
    yield _gap_section(study, folder)


def _gap_section(study: Study | GridStudy, folder: Path) -> Section:
    picture = figures.draw_generalisation_gap(study, folder / "generalisation_gap.png")
    return Section(heading="Generalisation gap", picture=picture)


# ---------------------------------------------------------------------------------------- tables

_NOTE = f"{MODELLED} from a modelled time; no mark: measured with that many real workers."
_SPREAD = " With several seeds: median (lowest to highest)."
TIME_NOTE = _NOTE + _SPREAD
EFFICIENCY_NOTE = (
    "In percent: T1 / (n Tn), with T1 the sequential run's time. NaN: target not reached. "
    + _NOTE
    + _SPREAD
)

_HOW = {
    "recipe": "the recipe's",
    "largest": "the largest with which one worker converges (range test)",
}


def efficiency_table(study: Study, strategies: Sequence[str]) -> Rows:
    """Percent by workers and strategy: Tables I and II of Cunha et al. 2018."""

    def text(cell: Cell) -> str:
        if cell.efficiency is None or not math.isfinite(cell.efficiency.median):
            return "NaN"
        return _marked(percent_interval(cell.efficiency), cell)

    return _by_workers(study, strategies, text)


def time_table(study: Study) -> Rows:
    """Time to target by workers and strategy, or why there is none."""

    def text(cell: Cell) -> str:
        if cell.seconds is None:
            return endings(cell.ended)
        return _marked(duration_interval(cell.seconds), cell)

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
    target_how = _HOW.get(target.how, target.how)
    if target.how == "auto" and target.fraction is not None:
        share = f"{100.0 * target.fraction:g} % of the sequential run's epochs"
        target_how = f"the validation loss after {share}"
    fixed = " (fixed: the model normalises over a grain)" if clock.grain_fixed else ""
    link = f"{clock.network.name} ({clock.network.how}): {link_words(clock.network)}"
    facts = {
        "batch of one worker": f"{study.batch_size}, in grains of {study.grain_size}{fixed}",
        "strategies": listed(study.strategies) if study.strategies else "none",
        "workers": ", ".join(map(str, study.workers)),
        "seeds": ", ".join(map(str, study.seeds)),
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
