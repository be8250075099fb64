"""Efficiency and throughput to thousands of workers, simulated.

In: simulated curves (one per policy and network) and what was measured. Out:
`simulated_scaling.png`. Lines and hollow points are modelled, with a band that holds nine steps in
ten; filled black points are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from samepath.report.sheet import save_figure
from samepath.report.study_style import (
    how_keys,
    key,
    legend_beside,
    log_values,
    margins,
    new_figure,
    powers_axis,
    tidy,
)
from samepath.timing.model import Simulated

_LOOKS = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "D"),
    ("#CC79A7", "^"),
    ("#E69F00", "v"),
    ("#56B4E9", "p"),
    ("#882255", "<"),
    ("#999933", ">"),
)


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """A step with so many real workers."""

    workers: int
    efficiency: float
    examples_per_second: float


def draw_simulated_scaling(
    title: str,
    curves: Mapping[str, Sequence[Simulated]],
    measured: Sequence[MeasuredPoint],
    out: Path,
) -> None:
    """`curves` by what they are called, such as "static, 10GbE"; `measured`: with real workers."""
    assert 0 < len(curves) <= len(_LOOKS)
    looks = dict(zip(curves, _LOOKS, strict=False))
    figure = new_figure(8.6, 6.6, title)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 1.0])
    for name, points in curves.items():
        _curve(above, points, looks[name], _percent)
        _curve(below, points, looks[name], _pace)
    if measured:  # an empty line that is not clipped would stand at the figure's corner
        where = [point.workers for point in measured]
        how: dict[str, Any] = {"color": "black", "markersize": 6.5, "clip_on": False, "zorder": 4}
        above.plot(where, list(map(_percent, measured)), "o", **how)
        below.plot(where, list(map(_pace, measured)), "o", **how)
    counts = sorted({point.workers for points in curves.values() for point in points})
    alone = next(iter(curves.values()))[0]
    pace = alone.examples_per_second / alone.speedup
    ideal = [pace * count for count in counts]
    below.plot(counts, ideal, color="0.65", linewidth=1.0, zorder=1)
    above.axhline(100.0, color="0.65", linewidth=1.0, zorder=1)
    highest = max([100.0, *map(_percent, measured)])
    above.set_ylim(0.0, 1.06 * highest)
    above.set_ylabel("efficiency: speed-up / workers (%)")
    paces = [_pace(point) for points in curves.values() for point in points]
    log_values(below, *margins([*paces, *map(_pace, measured), *ideal]))
    below.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.10g}"))
    below.set_ylabel("examples per second")
    for axes in (above, below):
        powers_axis(axes, counts, "workers" if axes is below else "")
        tidy(axes)
    handles: list[Artist] = [
        key(name, color=colour, marker=marker, markerfacecolor="white")
        for name, (colour, marker) in looks.items()
    ]
    handles += how_keys({"modelled"})
    if measured:
        handles.append(key("measured here", color="black", marker="o", linestyle=""))
    handles.append(Patch(facecolor="0.35", alpha=0.2, label="nine steps in ten (modelled)"))
    handles.append(key("ideal", color="0.65", linewidth=1.0))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _percent(point: Simulated | MeasuredPoint) -> float:
    return 100.0 * point.efficiency


def _pace(point: Simulated | MeasuredPoint) -> float:
    return point.examples_per_second


def _curve(
    axes: Axes,
    points: Sequence[Simulated],
    look: tuple[str, str],
    value: Callable[[Simulated], float],
) -> None:
    colour, marker = look
    points = sorted(points, key=lambda point: point.workers)
    counts = [point.workers for point in points]
    heights = [value(point) for point in points]
    # Both values are inverse to the step's seconds.
    low = [value(point) * point.step_seconds / point.high_seconds for point in points]
    high = [value(point) * point.step_seconds / point.low_seconds for point in points]
    axes.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0.0)
    how: dict[str, Any] = {"markersize": 6.0, "markeredgewidth": 1.4, "clip_on": False}
    axes.plot(counts, heights, color=colour, linewidth=1.6, marker=marker, mfc="white", **how)
