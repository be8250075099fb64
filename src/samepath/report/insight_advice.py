"""The folder of an advice: `measured.json`, `advice.png`, `advice.html`, and last `advice.json`.

In: an Advice and the MeasuredStep it rests on. Out: the page's path. Guaranteed: the page opens
without a network and without the other files; if writing is interrupted nothing is left behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from samepath.files import make_folder
from samepath.insight.advise.advice import Advice
from samepath.insight.folder import write_finding
from samepath.report.insight_advice_figure import draw_advice
from samepath.report.insight_advice_words import tables_in_short
from samepath.report.page import Section, write_page
from samepath.timing.measured import MeasuredStep, write_measured


def write_advice(
    advice: Advice, measured: MeasuredStep, folder: Path, *, recipe: str, command: Sequence[str]
) -> Path:
    """Write everything."""
    make_folder(folder)
    page = folder / "advice.html"
    try:
        write_measured(folder, measured)
        title = f"{Path(recipe).name}: how many workers, which batch, and why"
        draw_advice(title, advice, folder / "advice.png")
        write_page(page, title, list(_sections(advice, folder / "advice.png", command)))
        content = asdict(advice)
        write_finding(folder, "advice", recipe=recipe, command=command, content=content)
    except BaseException:  # Ctrl-C too; it was new or empty
        shutil.rmtree(folder)
        raise
    return page


def _sections(advice: Advice, picture: Path, command: Sequence[str]) -> Iterator[Section]:
    yield Section(heading="Verdict", words=advice.verdict, picture=picture)
    for title, table, note in tables_in_short(advice):
        yield Section(heading=title, table=table, note=note)
    yield Section(heading="The command", words=" ".join([Path(command[0]).name, *command[1:]]))
