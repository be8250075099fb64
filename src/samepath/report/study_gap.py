"""The generalisation gap by batch size.

In: a race or a grid. Out: `generalisation_gap.png`: validation loss minus training loss at the end
of each run. Guaranteed: a run without finite losses at its end is left out, and counted in the
picture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from samepath.report.sheet import save_figure
from samepath.report.study_style import (
    Look,
    cross_key,
    key,
    legend_beside,
    looks,
    new_figure,
    powers_axis,
    ramp,
    side_by_side,
    strategy_keys,
    tidy,
)
from samepath.report.study_words import number
from samepath.study.results import Epoch, GridStudy, Study


@dataclass(frozen=True, kw_only=True)
class _End:
    """The end of a run."""

    name: str
    batch_size: int
    gap: float
    reached: bool


def draw_generalisation_gap(study: Study | GridStudy, out: Path) -> None:
    """A point per run, a line through the medians; crosses: the target was not reached."""
    if isinstance(study, Study):
        styles = looks(study.strategies)
        ends = [
            _End(name=r.strategy, batch_size=r.batch_size, gap=gap(r.curve), reached=r.reached)
            for r in study.runs
        ]
    else:
        names = [f"rate {number(rate)}" for rate in study.learning_rates]
        colours = ramp(len(names))
        styles = {
            name: Look(colour=colour, marker=marker, line="-")
            for name, colour, marker in zip(names, colours, _markers(len(names)), strict=True)
        }
        ends = [
            _End(
                name=f"rate {number(r.learning_rate)}",
                batch_size=r.batch_size,
                gap=math.nan if r.ended == "diverged" else gap(r.curve),
                reached=True,
            )
            for r in study.runs
        ]
    _draw(ends, styles, f"{study.recipe}: generalisation gap", out)


def gap(curve: Sequence[Epoch]) -> float:
    """Validation loss minus training loss at the end; NaN where there is none."""
    if not curve or curve[-1].valid_loss is None or curve[-1].train_loss is None:
        return math.nan
    found = curve[-1].valid_loss - curve[-1].train_loss
    return found if math.isfinite(found) else math.nan


def _markers(number: int) -> list[str]:
    return [("o", "s", "^", "D", "v", "p", "<", ">")[i % 8] for i in range(number)]


def _draw(ends: Sequence[_End], styles: dict[str, Look], title: str, out: Path) -> None:
    there = [end for end in ends if not math.isnan(end.gap)]
    figure = new_figure(8.6, 4.8, title)
    axes = figure.add_subplot()
    axes.axhline(0.0, color="0.5", linewidth=0.9, zorder=1)
    batches = [end.batch_size for end in ends]
    beside = side_by_side(list(styles), batches)
    for name, look in styles.items():
        mine = [end for end in there if end.name == name]
        sizes = sorted({end.batch_size for end in mine})
        medians = [statistics.median(e.gap for e in mine if e.batch_size == b) for b in sizes]
        places = [size * beside[name] for size in sizes]
        axes.plot(places, medians, color=look.colour, linestyle=look.line, linewidth=1.4)
        for reached, marker in ((True, look.marker), (False, "x")):
            points = [end for end in mine if end.reached == reached]
            axes.plot(
                [end.batch_size * beside[name] for end in points],
                [end.gap for end in points],
                marker,
                color=look.colour,
                markersize=5.5 if reached else 6.5,
                markeredgewidth=0.8 if reached else 1.8,
                alpha=0.85,
            )
    powers_axis(axes, batches, "batch size (of the first epoch)")
    _vertical_scale(axes, [end.gap for end in there])
    axes.set_ylabel("validation loss - training loss")
    tidy(axes)
    handles = strategy_keys(styles)
    if not all(end.reached for end in there):
        handles.append(cross_key("target not reached"))
    missing = len(ends) - len(there)
    if missing:
        runs = "1 run" if missing == 1 else f"{missing} runs"
        handles.append(key(f"{runs} without losses at the end not shown", linestyle=""))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _vertical_scale(axes: Axes, gaps: Sequence[float]) -> None:
    """Linear near zero and logarithmic far from it, if gaps are of very different sizes."""
    sizes = [abs(gap) for gap in gaps if gap]
    if not sizes:
        return
    middle = statistics.median(sizes)
    if max(sizes) <= 30.0 * middle:
        low, high = min(0.0, *gaps), max(0.0, *gaps)
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        return
    linear = 3.0 * middle
    axes.set_yscale("symlog", linthresh=linear)
    low, high = min(gaps), max(gaps)
    axes.set_ylim(1.6 * low if low < -linear else low - 0.3 * linear, 1.6 * high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
