"""Efficiency and throughput to thousands of workers, simulated.

In: simulated curves (one per policy) and what was measured. Out: `simulated_scaling.png`. Lines and
hollow points are modelled, with a band that holds nine steps in ten; filled points are measured.
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

from samepath.insight.simulate import Simulated
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

_LOOKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "^"))


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """A step with so many real workers."""

    workers: int
    efficiency: float
    examples_per_second: float


def draw_simulated_scaling(
    title: str,
    curves: Mapping[str, Sequence[Simulated]],
    measured: Mapping[str, Sequence[MeasuredPoint]],
    out: Path,
) -> None:
    """`curves` by what they are called, such as "static buckets"; `measured` by the same names."""
    assert 0 < len(curves) <= len(_LOOKS)
    assert set(measured) <= set(curves), "a measured point belongs to a curve"
    looks = dict(zip(curves, _LOOKS, strict=False))
    figure = new_figure(8.6, 6.6, title)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 1.0])
    for name, points in curves.items():
        real = measured.get(name, ())
        _curve(above, points, real, looks[name], lambda point: 100.0 * point.efficiency)
        _curve(below, points, real, looks[name], lambda point: point.examples_per_second)
    counts = sorted({point.workers for points in curves.values() for point in points})
    alone = next(iter(curves.values()))[0]
    pace = alone.examples_per_second / alone.speedup
    ideal = [pace * count for count in counts]
    below.plot(counts, ideal, color="0.65", linewidth=1.0, zorder=1)
    above.axhline(100.0, color="0.65", linewidth=1.0, zorder=1)
    above.set_ylim(0.0, 106.0)
    above.set_ylabel("efficiency: speed-up / workers (%)")
    lowest = min(point.examples_per_second for points in curves.values() for point in points)
    log_values(below, *margins([lowest, *ideal]))
    below.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.10g}"))
    below.set_ylabel("examples per second")
    for axes in (above, below):
        powers_axis(axes, counts, "workers" if axes is below else "")
        tidy(axes)
    handles: list[Artist] = [
        key(name, color=colour, marker=marker, markerfacecolor="white")
        for name, (colour, marker) in looks.items()
    ]
    handles += how_keys({"modelled"} | ({"measured"} if any(measured.values()) else set()))
    handles.append(Patch(facecolor="0.35", alpha=0.2, label="nine steps in ten (modelled)"))
    handles.append(key("ideal", color="0.65", linewidth=1.0))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _curve(
    axes: Axes,
    points: Sequence[Simulated],
    measured: Sequence[MeasuredPoint],
    look: tuple[str, str],
    value: Callable[[Simulated | MeasuredPoint], float],
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
    if measured:  # an empty line that is not clipped would stand at the figure's corner
        where = [point.workers for point in measured]
        how["markersize"] = 8.0
        axes.plot(where, list(map(value, measured)), marker, color=colour, zorder=3, **how)
