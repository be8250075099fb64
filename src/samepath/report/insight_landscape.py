"""The loss along lines and planes, as figures.

In: what `samepath curvature` found. Out: `lines.png` (all runs in one plot) and `planes.png` (a row
per run, the same colours for the same losses). Places where the loss is infinite or NaN stay empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from samepath.insight.curvature.landscape import Line, Plane
from samepath.insight.curvature.result import Curvature, RunCurvature
from samepath.report.sheet import clip, save_figure
from samepath.report.study_style import key, legend_beside, log_values, margins, new_figure, tidy

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#332288", "#56B4E9", "#661100")
MARKERS = ("o", "s", "D", "^", "v", "P", "<", "X")
RANDOM = "random direction, filter-normalised"
EIGEN = "top eigenvector of the Hessian (length 1)"
LEVELS = 10
TOO_SMALL = 0.35
"""Of the plane's width: smaller contours have no room for their numbers."""
WIDE = 12.0
"""Losses that differ by more than this factor are drawn on a logarithmic scale."""


def label(run: RunCurvature) -> str:
    name, size = clip(run.name, 40), str(run.batch_size)
    return name if size in name else f"{name}: batch {size}"


def draw_lines(found: Curvature, out: Path) -> None:
    """Two plots: along a random direction, and along each run's own top eigenvector."""
    figure = new_figure(11.5, 4.6, f"{found.recipe}: loss around the weights, on one line")
    left, right = figure.subplots(1, 2)
    for axes, which, words in ((left, "random_line", RANDOM), (right, "eigen_line", EIGEN)):
        lines: list[Line] = [getattr(run, which) for run in found.runs]
        for number, line in enumerate(lines):
            axes.plot(
                line.places,
                _finite(line.losses),
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=3.5,
                linewidth=1.5,
            )
        _loss_axis(axes, [loss for line in lines for loss in line.losses])
        axes.set_xlabel(words)
        tidy(axes)
    left.set_ylabel("loss on the sample")
    legend_beside(figure, run_keys(found.runs))
    save_figure(figure, out)


def run_keys(runs: Sequence[RunCurvature]) -> list[Any]:
    """A legend's lines."""
    return [
        key(label(run), color=COLOURS[n % len(COLOURS)], marker=MARKERS[n % len(MARKERS)])
        for n, run in enumerate(runs)
    ]


def draw_planes(found: Curvature, out: Path) -> None:
    """Contours: left in two random directions, right in the first two eigenvectors."""
    rows = len(found.runs)
    columns = 1 + any(run.eigen_plane for run in found.runs)
    title = f"{found.recipe}: loss around the weights, on a plane"
    figure = new_figure(5.4 * columns + 0.6, 4.5 * rows + 0.5, title)
    grid = figure.subplots(rows, columns, squeeze=False)
    words = (("random direction 1", "random direction 2"), ("eigenvector 1", "eigenvector 2"))
    for column in range(columns):
        planes = [run.eigen_plane if column else run.random_plane for run in found.runs]
        norm, levels = _levels([p for p in planes if p is not None])
        for row, (run, plane) in enumerate(zip(found.runs, planes, strict=True)):
            axes = grid[row, column]
            if plane is None:
                axes.set_axis_off()
                continue
            _contours(axes, plane, norm, levels)
            axes.set_xlabel(words[column][0])
            axes.set_ylabel(words[column][1])
            axes.set_title(label(run), fontsize=10, parse_math=False)
    save_figure(figure, out)


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
    texts = axes.clabel(lines, labelled, fontsize=8, fmt=lambda value: f"{value:.2g}")
    for text in texts:
        text.set_bbox({"facecolor": "black", "alpha": 0.45, "pad": 1.0, "linewidth": 0.0})
    axes.plot([0.0], [0.0], marker="+", color="#E69F00", markersize=12, markeredgewidth=2.2)
    axes.set_aspect("equal")


def _levels(planes: Sequence[Plane]) -> tuple[Normalize, list[float]]:
    """The same for all runs, so that they can be compared."""
    found = _finite([loss for plane in planes for row in plane.losses for loss in row])
    known = found[np.isfinite(found)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if low > 0.0 and high > WIDE * low:
        levels = [_rounded(v) for v in np.geomspace(low, high, LEVELS)[1:-1]]
        return LogNorm(low, high), sorted(set(levels))
    if not high > low:
        high = low + max(abs(low), 1.0) * 1e-6
    return Normalize(low, high), list(map(float, np.linspace(low, high, LEVELS)[1:-1]))


def _rounded(value: float) -> float:
    """Two digits: what a label shows is what the line is."""
    return float(f"{value:.1e}")


def _loss_axis(axes: Axes, losses: Sequence[float]) -> None:
    known = [loss for loss in losses if math.isfinite(loss)]
    if known and min(known) > 0.0 and max(known) > WIDE * min(known):
        log_values(axes, *margins(known))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _finite(losses: Sequence[float]) -> NDArray[np.float64]:
    """NaN where there is no number to draw."""
    values = np.array(losses, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)
