"""The curvature of runs as a folder: `curvature.json`, figures, and one page.

In: what was found. Out: `spectrum.png`, `lines.png`, `planes.png`, `curvature.html`, and last
`curvature.json`, so that a folder that has it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import FixedLocator, NullLocator

from samepath.files import make_folder
from samepath.insight.curvature.result import Curvature, to_json
from samepath.insight.folder import write_finding
from samepath.report.insight_curvature_words import (
    CAUTION,
    eigenvalues_table,
    facts_table,
    sample_words,
    verdict,
)
from samepath.report.insight_landscape import (
    COLOURS,
    MARKERS,
    draw_lines,
    draw_planes,
    run_keys,
)
from samepath.report.page import Section, write_page
from samepath.report.sheet import save_figure
from samepath.report.study_style import key, legend_beside, log_values, margins, new_figure, tidy


def write_curvature(folder: Path, found: Curvature, command: Sequence[str]) -> None:
    """Everything a person or a program may want to read."""
    make_folder(folder)
    draw_spectrum(found, folder / "spectrum.png")
    draw_lines(found, folder / "lines.png")
    draw_planes(found, folder / "planes.png")
    write_page(folder / "curvature.html", f"Curvature: {found.recipe}", _sections(found, folder))
    content = to_json(found) | {"verdict": verdict(found), "caution": CAUTION}
    write_finding(folder, "curvature", recipe=found.recipe, command=command, content=content)


def draw_spectrum(found: Curvature, out: Path) -> None:
    """Eigenvalues by rank, all runs in one plot; those below zero are hollow, by their size."""
    figure = new_figure(9.2, 4.6, f"{found.recipe}: the Hessian's largest eigenvalues")
    axes = figure.subplots()
    sizes = [abs(value) for run in found.runs for value in run.eigenvalues if value]
    for number, run in enumerate(found.runs):
        ranks = range(1, len(run.eigenvalues) + 1)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        heights = [abs(value) or float("nan") for value in run.eigenvalues]
        axes.plot(ranks, heights, color=colour, linewidth=1.0, alpha=0.6)
        for above in (True, False):
            chosen = [r for r, v in zip(ranks, run.eigenvalues, strict=True) if (v > 0) == above]
            face = colour if above else "white"
            where = [heights[rank - 1] for rank in chosen]
            axes.plot(chosen, where, marker, color=colour, mfc=face, markersize=6)
    if sizes:
        log_values(axes, *margins(sizes))
    else:
        axes.text(0.5, 0.5, "all are zero", transform=axes.transAxes, ha="center", color="0.4")
        axes.yaxis.set_major_locator(NullLocator())
    most = max(len(run.eigenvalues) for run in found.runs)
    step = max(1, -(-most // 5))
    axes.xaxis.set_major_locator(FixedLocator([1, *range(step, most + 1, step)]))
    axes.set_xlabel("rank, by size")
    axes.set_ylabel("size of the eigenvalue")
    tidy(axes)
    handles = run_keys(found.runs)
    if any(value < 0.0 for run in found.runs for value in run.eigenvalues):
        handles.append(key("hollow: negative", color="0.35", marker="o", mfc="white", linestyle=""))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _sections(found: Curvature, folder: Path) -> list[Section]:
    several = len(found.runs) > 1
    return [
        Section(
            heading="Sharp or flat?" if several else "How sharp?",
            words=verdict(found),
            table=facts_table(found),
            note=" ".join([sample_words(found), *(f"{note}." for note in found.notes), CAUTION]),
        ),
        Section(
            heading="The Hessian's largest eigenvalues",
            words="Filled: positive. Hollow: negative. A model at rest in a minimum has none of "
            "those.",
            picture=folder / "spectrum.png",
        ),
        Section(
            heading="The loss on a line",
            words="Left along a random direction in which every filter is as long as the model's "
            "own (Li et al. 2018), right along each run's own top eigenvector, whose length is 1.",
            picture=folder / "lines.png",
        ),
        Section(
            heading="The loss on a plane",
            words="The cross marks the weights. Lines of one column are at the same losses in "
            "every run.",
            picture=folder / "planes.png",
        ),
        Section(
            heading="All eigenvalues",
            table=eigenvalues_table(found.runs),
            note="An eigenvalue of the Hessian is no further from the number than its residual.",
            folded=True,
        ),
    ]
