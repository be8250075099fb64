"""The report of a study: `study.csv`, pictures, and one page that holds it all.

In: a study, as read from `study.json`. Out: a folder with the files. Guaranteed: `report.html`
opens without a network and without the other files; an older report is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from samepath.report.page import Section, write_page
from samepath.report.study_csv import write_csv
from samepath.report.study_gap import draw_generalisation_gap
from samepath.report.study_grid import draw_metric_by_batch, draw_preferred_batch
from samepath.report.study_losses import draw_losses_of
from samepath.report.study_pareto import draw_pareto
from samepath.report.study_scaling import draw_efficiency, draw_time_to_target
from samepath.report.study_tables import (
    EFFICIENCY_NOTE,
    TIME_NOTE,
    Rows,
    efficiency_table,
    facts_table,
    grid_facts_table,
    grid_table,
    metric_better,
    others_of,
    predictions_table,
    rates_table,
    runs_table,
    strong_of,
    time_table,
)
from samepath.study.results import GridStudy, Study

_COLUMNS = 5
"""Strategies side by side in a table of the page."""
_LONG = 40
"""A table with more lines is folded."""


def write_report(study: Study | GridStudy, folder: Path) -> Path:
    """Write `study.csv`, the pictures and `report.html`; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(study, folder / "study.csv")
    race = isinstance(study, Study)
    sections = _race(study, folder) if isinstance(study, Study) else _grid(study, folder)
    page = folder / "report.html"
    kind = "strategies raced to a target" if race else "batch sizes and learning rates"
    write_page(page, f"{study.recipe}: {kind}", list(sections))
    return page


def loss_picture(study: Study, strategy: str) -> str:
    """The file name of a strategy's loss curves, whatever characters its name has."""
    names = [f"loss_{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.png" for name in study.strategies]
    place = study.strategies.index(strategy)
    return names[place] if names.count(names[place]) == 1 else f"loss_{place + 1}.png"


def _race(study: Study, folder: Path) -> Iterator[Section]:
    if study.verdict:
        yield Section(heading="Verdict", words=study.verdict)
    yield Section(heading="The study", table=facts_table(study))
    if study.rate.tried:
        words = "Short runs with one worker; the largest rate that converges is raced with."
        yield Section(heading="Learning rates tried", words=words, table=rates_table(study))
    picture = folder / "time_to_target.png"
    draw_time_to_target(study, picture)
    words = "Points that would hide one another stand side by side at their worker count."
    yield Section(heading="Time to target", words=words, picture=picture)
    tables = [
        (f"Time to target in numbers{part}", time_table(study, names))
        for part, names in _parts(study.strategies)
    ]
    yield from _with_note(tables, TIME_NOTE)
    picture = folder / "efficiency.png"
    draw_efficiency(study, picture)
    yield Section(heading="Efficiency", picture=picture)
    strong, others = strong_of(study), others_of(study)
    tables = [("Efficiency of strong scaling", efficiency_table(study, strong))] if strong else []
    called = "Efficiency of the other strategies" if strong else "Efficiency in numbers"
    tables += [
        (f"{called}{part}", efficiency_table(study, names)) for part, names in _parts(others)
    ]
    yield from _with_note(tables, EFFICIENCY_NOTE)
    for name in study.strategies:
        if any(run.curve for run in study.runs if run.strategy == name):
            picture = folder / loss_picture(study, name)
            draw_losses_of(study, name, picture)
            yield Section(heading=f"Loss: {name}", picture=picture)
    picture = folder / "generalisation_gap.png"
    draw_generalisation_gap(study, picture)
    yield Section(heading="Generalisation gap", picture=picture)
    picture = folder / "pareto.png"
    draw_pareto(study, picture)
    words = "Left is cheaper, down is sooner: what is worth having lies on the front."
    yield Section(heading="Time against compute", words=words, picture=picture)
    if study.predictions:
        words = (
            "Efficiency with real workers here, and what the model of the clock says of the same "
            "runs: how far to trust modelled times."
        )
        table = predictions_table(study)
        yield Section(heading="Measured against modelled", words=words, table=table)
    yield _long("All runs", runs_table(study))


def _grid(study: GridStudy, folder: Path) -> Iterator[Section]:
    if study.verdict:
        yield Section(heading="Verdict", words=study.verdict)
    yield Section(heading="The study", table=grid_facts_table(study))
    picture = folder / "accuracy_by_batch.png"
    draw_metric_by_batch(study, picture)
    note = f"At the end of each run; {metric_better(study)} is better. Median (lowest to highest)."
    name = study.metric.capitalize()
    yield Section(heading=f"{name} by batch size", table=grid_table(study), note=note)
    yield Section(heading=f"{name} by batch size, drawn", picture=picture)
    picture = folder / "preferred_batch.png"
    draw_preferred_batch(study, picture)
    yield Section(heading="Preferred batch size", picture=picture)
    picture = folder / "generalisation_gap.png"
    draw_generalisation_gap(study, picture)
    yield Section(heading="Generalisation gap", picture=picture)


def _with_note(tables: Sequence[tuple[str, Rows]], note: str) -> Iterator[Section]:
    """Tables that share a note, which is printed once, below the last."""
    for number, (heading, table) in enumerate(tables, 1):
        yield Section(heading=heading, table=table, note=note if number == len(tables) else "")


def _long(heading: str, table: Rows) -> Section:
    return Section(heading=heading, table=table, folded=len(table) > _LONG)


def _parts(names: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Names in pieces that fit a page's width, and how to call each piece."""
    pieces = [names[i : i + _COLUMNS] for i in range(0, len(names), _COLUMNS)]
    for number, piece in enumerate(pieces, 1):
        yield f" ({number} of {len(pieces)})" if len(pieces) > 1 else "", piece
