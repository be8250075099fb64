"""The report of runs' curvature: figures, one page, and last `curvature.json`.

In: what `samepath curvature` found. Out: `spectrum.svg`, `lines.svg` (all runs in one plot),
`planes.png` (a row per run, the same colours for the same losses), `curvature.html`. The verdict
follows from the numbers alone: it says so where measures disagree, or where a gap does not go along
with sharpness. Places where the loss is infinite or NaN stay empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from samepath.insight.curvature.curvature import Curvature, RunCurvature
from samepath.insight.curvature.landscape import Plane
from samepath.report import style
from samepath.report.page import Section, write_finding_page
from samepath.report.words import Rows


def write_curvature(folder: Path, found: Curvature, command: Sequence[str]) -> None:
    """Write all files into a folder."""
    title, sections = f"Curvature: {found.recipe}", _sections(found, folder)
    said = asdict(found) | {"verdict": verdict(found), "caution": CAUTION}
    write_finding_page(
        folder, "curvature", title, sections, said, recipe=found.recipe, command=command
    )


def _sections(found: Curvature, folder: Path) -> Iterator[Section]:
    yield Section(
        heading="Sharpness",
        words=verdict(found),
        table=facts_table(found),
        note=" ".join([sample_words(found), *(f"{note}." for note in found.notes), CAUTION]),
    )
    yield Section(
        heading="The Hessian's largest eigenvalues",
        words="Filled: positive. Hollow: negative; a model in a minimum has none of these.",
        picture=draw_spectrum(found, folder / "spectrum.svg"),
    )
    yield Section(
        heading="The loss on a line",
        words="Left: along a random direction in which every filter is as long as the model's "
        "own (Li et al. 2018). Right: along each run's own top eigenvector, whose length is 1.",
        picture=draw_lines(found, folder / "lines.svg"),
    )
    yield Section(
        heading="The loss on a plane",
        words="The cross marks the weights. Lines of one column are at the same losses in "
        "every run.",
        picture=draw_planes(found, folder / "planes.png"),
    )
    yield Section(
        heading="All eigenvalues",
        table=eigenvalues_table(found.runs),
        note="The Hessian has an eigenvalue no further from the number than its residual.",
        folded=True,
    )


ALIKE = 1.25
"""Numbers within this factor of each other are called alike."""
STAGES = 3.0
"""Runs whose training losses differ by more than this factor are not at the same stage."""

CAUTION = (
    "Eigenvalues and trace depend on how a model is parametrised: where batch norm or ReLU lets "
    "weights be rescaled without changing what the model computes, the same function has other "
    "eigenvalues (Dinh et al. 2017). The rise along filter-normalised directions is made against "
    "that. One run of each kind is an observation, not a law: other seeds may say otherwise."
)


def facts_table(found: Curvature) -> Rows:
    """A column per run."""
    metrics = sorted({name for run in found.runs for name in run.valid} - {"loss"})
    columns = [
        {
            "": run.name,
            "batch size": str(run.batch_size),
            "learning rate": _number(run.learning_rate),
            "steps": "" if run.steps is None else str(run.steps),
            "loss (training)": _number(run.loss),
            "loss (validation)": _number(run.valid.get("loss")),
            "gap": _number(run.gap),
            **{name: _number(run.valid.get(name)) for name in metrics},
            "top eigenvalue": _number(run.eigenvalues[0]),
            "trace": f"{_number(run.trace)} ± {run.trace_error:.2g}",
            f"rise at {found.runs[0].rise.distance:g}": (
                f"{_number(run.rise.mean)} ± {run.rise.standard_error:.2g}"
            ),
        }
        for run in found.runs
    ]
    return [[name, *(column[name] for column in columns)] for name in columns[0]]


def sample_words(found: Curvature) -> str:
    """What it was measured on."""
    counts = sorted({(run.num_sampled, run.num_examples) for run in found.runs})
    rise = found.runs[0].rise
    examples = " and ".join(f"{few} of {many}" for few, many in counts)
    return (
        f"Measured on {examples} training examples (chosen by seed {found.seed}, grains of "
        f"{found.grain_size}) with the models in evaluation mode: batch norm uses its running "
        "statistics, dropout is off, nothing is augmented. The rise is the mean over "
        f"{rise.num_directions} random filter-normalised directions, both ways. ± is one standard "
        "error."
    )


def verdict(found: Curvature) -> str:
    """Two sentences."""
    by_batch = sorted(found.runs, key=lambda run: run.batch_size)
    small, large = by_batch[0], by_batch[-1]
    if small.batch_size == large.batch_size:
        if len(found.runs) == 1:
            return _alone(small)
        by_loss = sorted(found.runs, key=lambda run: run.valid.get("loss", run.loss))
        return _compare(by_loss[0], by_loss[-1], *(run.name for run in (by_loss[0], by_loss[-1])))
    return _compare(small, large, f"batch {small.batch_size}", f"batch {large.batch_size}")


def _alone(run: RunCurvature) -> str:
    top, negative = run.eigenvalues[0], run.num_negative
    words = (
        f"The loss is curved most by {top:.3g} along one direction, and by {run.trace:.3g} in all"
    )
    if top > 0.0:
        words += (
            f" (plain gradient descent on it is stable below a rate of 2 / {top:.3g} = "
            f"{2 / top:.2g})"
        )
    if not any(run.eigenvalues):
        return words + ". It is flat: the model is piecewise linear in its weights here."
    if negative:
        return words + (
            f". {negative} of the {len(run.eigenvalues)} eigenvalues largest in size are "
            f"negative, down to {min(run.eigenvalues):.3g}: the run did not end in a minimum of "
            "this loss."
        )
    return words + ". None of the eigenvalues looked at is negative: it curves upwards along them."


def _compare(first: RunCurvature, second: RunCurvature, one: str, other: str) -> str:
    """Is the second sharper, and does it generalise worse?"""
    measures = {
        "top eigenvalue": [(run.eigenvalues[0], 0.0) for run in (first, second)],
        "trace": [(run.trace, run.trace_error) for run in (first, second)],
        "rise of the loss": [(run.rise.mean, run.rise.standard_error) for run in (first, second)],
    }
    signs = {name: _sign(*pair) for name, pair in measures.items()}
    clear = {sign for sign in signs.values() if sign}
    sharper = clear.pop() if len(clear) == 1 else 0
    how = "is about as sharp as"
    if sharper:
        by = " and ".join(name for name, sign in signs.items() if sign)
        unclear = "" if all(signs.values()) else f" (by {by}; the rest is not clear)"
        how = f"is {'sharper' if sharper > 0 else 'flatter'}{unclear} than"
    elif any(signs.values()):
        how = "is sharper by some measures and flatter by others than"
    numbers = ", ".join(f"{n} {b[0]:.3g} against {a[0]:.3g}" for n, (a, b) in measures.items())
    apart = max(first.loss, second.loss) > STAGES * min(first.loss, second.loss)
    if apart:
        numbers += (
            f"; their training losses are far apart ({second.loss:.3g} against {first.loss:.3g}), "
            "so these are different stages of training rather than two minima"
        )
    of_batches = first.batch_size < second.batch_size and not apart
    return f"{other} {how} {one}: {numbers}. {_gap(first, second, sharper, of_batches=of_batches)}"


def _gap(first: RunCurvature, second: RunCurvature, sharper: int, *, of_batches: bool) -> str:
    """Whether sharpness goes along with what is lost on validation data; `of_batches`: these are
    minima of a small and a large batch, of which Keskar and others (2017) found the second sharper
    and its gap larger."""
    if first.gap is None or second.gap is None:
        return "There is no validation data to see whether it generalises worse."
    # a gap may be about zero or below: then factors say nothing, and losses set the scale
    scale = max(abs(first.gap), abs(second.gap), 0.1 * max(first.valid["loss"], 1e-12))
    difference = second.gap - first.gap
    wider = 0 if abs(difference) < (1.0 - 1.0 / ALIKE) * scale else (1 if difference > 0 else -1)
    words = {1: "larger", 0: "about the same", -1: "smaller"}[wider]
    numbers = f"{second.gap:.3g} against {first.gap:.3g}"
    gap = f"Its gap between validation and training loss is {words} ({numbers})"
    if not sharper:
        return f"{gap}, which such curvature does not explain." if wider else f"{gap} too."
    if wider == sharper:
        found = ", as Keskar and others (2017) found of large batches"
        if sharper < 0:
            found = ", but it is the small batch that is sharper, unlike what Keskar and others "
            found += "(2017) found"
        return f"{gap}: here the gap goes along with sharpness{found if of_batches else ''}."
    return f"{gap}: here the gap does not go along with sharpness."


def _sign(first: tuple[float, float], second: tuple[float, float]) -> int:
    """1 where the second is clearly larger, -1 where it is clearly smaller: by more than the factor
    and by more than two standard errors of the difference."""
    difference = second[0] - first[0]
    size = max(abs(first[0]), abs(second[0]))
    unsure = 2.0 * math.hypot(first[1], second[1])
    if abs(difference) <= max((1.0 - 1.0 / ALIKE) * size, unsure):
        return 0
    return 1 if difference > 0 else -1


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"


def eigenvalues_table(runs: Sequence[RunCurvature]) -> Rows:
    """A line per rank: eigenvalue and residual of every run."""
    columns = []
    for run in runs:
        columns.append([run.name, *(f"{value:.5g}" for value in run.eigenvalues)])
        columns.append(["residual", *(f"{value:.1e}" for value in run.residuals)])
    ranks = ["rank", *map(str, range(1, max(map(len, columns))))]
    return [list(row) for row in itertools.zip_longest(ranks, *columns, fillvalue="")]


# --------------------------------------------------------------------------------------- figures

LEVELS = 10
TOO_SMALL = 0.35
"""A share of the plane's width: smaller contours have no room for their numbers."""
WIDE = 12.0
"""Losses that differ by more than this factor are drawn on a logarithmic scale."""


def label(run: RunCurvature) -> str:
    name, size = style.clip(run.name, 40), str(run.batch_size)
    return name if size in name else f"{name}: batch {size}"


def run_keys(runs: Sequence[RunCurvature]) -> list[Line2D]:
    """A line of the legend for each run."""
    looks = zip(runs, style.series(len(runs)), strict=True)
    return [style.key(label(run), color=look.colour, marker=look.marker) for run, look in looks]


def draw_spectrum(found: Curvature, out: Path) -> Path:
    """Eigenvalues by rank, all runs in one plot; those below zero are hollow, by their size."""
    figure = style.new_figure(9.2, 4.6, f"{found.recipe}: the Hessian's largest eigenvalues")
    axes = figure.subplots()
    for run, look in zip(found.runs, style.series(len(found.runs)), strict=True):
        heights = [abs(value) or math.nan for value in run.eigenvalues]
        hollow = [value <= 0 for value in run.eigenvalues]
        ranks = range(1, len(heights) + 1)
        style.draw_curve(axes, ranks, heights, look, hollow, lw=1.0, alpha=0.6)
    values = [value for run in found.runs for value in run.eigenvalues if value]
    if values:
        style.log_values(axes, *style.margins([abs(value) for value in values]))
    else:
        style.say_nothing_to_show(axes, "all are zero")
    most = max(len(run.eigenvalues) for run in found.runs)
    step = max(1, -(-most // 5))
    axes.xaxis.set_major_locator(FixedLocator([1, *range(step, most + 1, step)]))
    axes.set(xlabel="rank, by size", ylabel="size of the eigenvalue")
    style.tidy(axes)
    handles = run_keys(found.runs)
    if any(value < 0.0 for value in values):
        handles.append(style.point_key("hollow: negative", markerfacecolor="white"))
    return style.finish(figure, handles, out)


def draw_lines(found: Curvature, out: Path) -> Path:
    """Two plots: along a random direction, and along each run's own top eigenvector."""
    figure = style.new_figure(11.5, 4.6, f"{found.recipe}: loss around the weights, on one line")
    left, right = figure.subplots(1, 2)
    for axes, lines, words in (
        (left, [run.random_line for run in found.runs], "random direction, filter-normalised"),
        (
            right,
            [run.eigen_line for run in found.runs],
            "top eigenvector of the Hessian (length 1)",
        ),
    ):
        for line, look in zip(lines, style.series(len(lines)), strict=True):
            how: dict[str, Any] = {"marker": look.marker, "markersize": 3.5, "linewidth": 1.5}
            axes.plot(line.places, _finite(line.losses), color=look.colour, **how)
        known = [loss for line in lines for loss in line.losses if math.isfinite(loss)]
        if known and min(known) > 0.0 and max(known) > WIDE * min(known):
            style.log_values(axes, *style.margins(known))
        else:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel(words)
        style.tidy(axes)
    left.set_ylabel("loss on the sample")
    return style.finish(figure, run_keys(found.runs), out)


def draw_planes(found: Curvature, out: Path) -> Path:
    """Contours: left in two random directions, right in the first two eigenvectors."""
    rows = len(found.runs)
    columns = 1 + any(run.eigen_plane for run in found.runs)
    title = f"{found.recipe}: loss around the weights, on a plane"
    figure = style.new_figure(5.4 * columns + 0.6, 4.5 * rows + 0.5, title)
    grid = figure.subplots(rows, columns, squeeze=False)
    for column, words in enumerate(("random direction", "eigenvector")[:columns]):
        planes = [run.eigen_plane if column else run.random_plane for run in found.runs]
        norm, levels = _levels([p for p in planes if p is not None])
        for axes, run, plane in zip(grid[:, column], found.runs, planes, strict=True):
            if plane is None:
                axes.set_axis_off()
                continue
            _contours(axes, plane, norm, levels)
            axes.set(xlabel=f"{words} 1", ylabel=f"{words} 2")
            axes.set_title(label(run), fontsize=10, parse_math=False)
    return style.save_figure(figure, out)


def _contours(axes: Axes, plane: Plane, norm: Normalize, levels: list[float]) -> None:
    losses = np.array([_finite(row) for row in plane.losses])
    shown = np.ma.masked_invalid(losses)
    how: dict[str, Any] = {"levels": levels, "norm": norm, "extend": "both"}
    axes.contourf(plane.places, plane.places, shown, cmap="viridis", **how)
    lines = axes.contour(
        plane.places, plane.places, shown, levels=levels, colors="white", linewidths=0.8
    )
    width = plane.places[-1] - plane.places[0]
    labelled = [
        level
        for level, parts in zip(levels, lines.allsegs, strict=True)
        if any(len(part) and np.ptp(part, axis=0).max() > TOO_SMALL * width for part in parts)
    ]
    for text in axes.clabel(lines, labelled, fontsize=8, fmt=lambda value: f"{value:.2g}"):
        text.set_bbox({"facecolor": "black", "alpha": 0.45, "pad": 1.0, "linewidth": 0.0})
    axes.plot([0.0], [0.0], marker="+", color="#E69F00", markersize=12, markeredgewidth=2.2)
    axes.set_aspect("equal")


def _levels(planes: Sequence[Plane]) -> tuple[Normalize, list[float]]:
    """Contour levels for all runs alike, so that they can be compared."""
    found = _finite([loss for plane in planes for row in plane.losses for loss in row])
    known = found[np.isfinite(found)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if low > 0.0 and high > WIDE * low:
        # two digits: what a label shows is what the line is
        levels = {float(f"{value:.1e}") for value in np.geomspace(low, high, LEVELS)[1:-1]}
        return LogNorm(low, high), sorted(levels)
    if not high > low:
        high = low + max(abs(low), 1.0) * 1e-6
    return Normalize(low, high), list(map(float, np.linspace(low, high, LEVELS)[1:-1]))


def _finite(losses: Sequence[float]) -> NDArray[np.float64]:
    """NaN where there is no number to draw."""
    values = np.array(losses, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)
