"""Time to target and efficiency against workers.

In: a race. Out: `time_to_target.png` (the paper's figure 2) and `efficiency.png`. Measured points
are filled, modelled ones hollow; above the axes a row of crosses per strategy says where the target
was not reached.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from samepath.report.sheet import save_figure
from samepath.report.study_style import (
    Look,
    cross_key,
    failures_strip,
    how_keys,
    key,
    legend_beside,
    log_values,
    looks,
    margins,
    new_figure,
    powers_axis,
    say_nothing_to_show,
    side_by_side,
    spread_key,
    strategy_keys,
    tidy,
)
from samepath.report.study_words import number, time_unit
from samepath.study.results import Cell, Interval, Study


def draw_time_to_target(study: Study, out: Path) -> None:
    """Medians over seeds, with the lowest and the highest; both axes logarithmic."""
    unit, length = time_unit(
        max((cell.seconds.high for cell in study.cells if cell.seconds), default=1.0)
    )

    def value(cell: Cell) -> Interval | None:
        return None if cell.seconds is None else _times(cell.seconds, 1.0 / length)

    figure, axes = _start(study, f"{study.recipe}: time to a validation loss of {_target(study)}")
    shown = _draw(axes, study, value)
    sequential = sequential_seconds(study)
    if sequential is not None:
        ideal = [sequential / length / k for k in study.workers]
        axes.plot(study.workers, ideal, color="0.65", linewidth=1.0, zorder=1)
        shown += ideal
    low, high = margins(shown) if shown else (0.1, 1.0)
    log_values(axes, low, high)
    axes.set_ylabel(f"time to target ({unit})" if shown else "time to target")
    _finish(figure, axes, study, out, "ideal speed-up" if sequential is not None else "")


def draw_efficiency(study: Study, out: Path) -> None:
    """T1 / (n Tn) in percent."""

    def value(cell: Cell) -> Interval | None:
        return None if cell.efficiency is None else _times(cell.efficiency, 100.0)

    title = f"{study.recipe}: efficiency to a validation loss of {_target(study)}"
    figure, axes = _start(study, title)
    shown = _draw(axes, study, value)
    axes.axhline(100.0, color="0.65", linewidth=1.0, zorder=1)
    axes.set_ylim(0.0, 1.06 * max([100.0, *shown]))
    axes.set_ylabel("efficiency T1 / (n Tn) (%)")
    _finish(figure, axes, study, out, "ideal: 100 %")


def sequential_seconds(study: Study) -> float | None:
    """The time of one worker: of the first strategy that has one (they are all the same run)."""
    for cell in study.cells:
        if cell.workers == 1 and cell.seconds is not None:
            return cell.seconds.median
    return None


def _start(study: Study, title: str) -> tuple[Figure, Axes]:
    rows = len(_failures(study))
    strip = 0.34 + 0.2 * rows if rows else 0.0
    figure = new_figure(8.6, 4.8 + strip, title)
    if not rows:
        return figure, figure.add_subplot()
    above, axes = figure.subplots(2, 1, sharex=True, height_ratios=[0.2 * rows, 4.0])
    failures_strip(
        above, _failures(study), {n: look.colour for n, look in looks(study.strategies).items()}
    )
    above.set_title("target not reached", fontsize=9, loc="left", color="0.25", pad=3)
    return figure, axes


def _draw(axes: Axes, study: Study, value: Callable[[Cell], Interval | None]) -> list[float]:
    """Lines and points of all strategies; the values that must be inside the axes."""
    beside = side_by_side(study.strategies, study.workers)
    shown: list[float] = []
    for name, look in looks(study.strategies).items():
        cells = sorted((c for c in study.cells if c.strategy == name), key=lambda c: c.workers)
        places = [cell.workers * beside[name] for cell in cells]
        found = [value(cell) for cell in cells]
        heights = [float("nan") if v is None else v.median for v in found]
        axes.plot(places, heights, color=look.colour, linestyle=look.line, linewidth=1.6)
        for place, cell, interval in zip(places, cells, found, strict=True):
            if interval is not None:
                _point(axes, place, interval, look, hollow=cell.how == "modelled")
                shown += [interval.low, interval.median, interval.high]
    return shown


def _point(axes: Axes, place: float, interval: Interval, look: Look, *, hollow: bool) -> None:
    how: dict[str, Any]
    spread = [[interval.median - interval.low], [interval.high - interval.median]]
    if interval.high > interval.low:
        how = {"fmt": "none", "elinewidth": 1.2, "capsize": 2.5, "zorder": 2.5}
        axes.errorbar([place], [interval.median], spread, ecolor=look.colour, **how)
    face = "white" if hollow else look.colour
    how = {"markersize": 6.5, "markeredgewidth": 1.4, "zorder": 3, "clip_on": False}
    axes.plot([place], [interval.median], look.marker, color=look.colour, mfc=face, **how)


def _finish(figure: Figure, axes: Axes, study: Study, out: Path, ideal: str) -> None:
    powers_axis(axes, study.workers, "workers")
    tidy(axes)
    there = [cell for cell in study.cells if cell.seconds is not None]
    if not there:
        say_nothing_to_show(axes, "no strategy reached the target")
    handles = strategy_keys(looks(study.strategies))
    handles += how_keys({cell.how for cell in there})
    if ideal:
        handles.append(key(ideal, color="0.65", linewidth=1.0))
    lost = {all_lost for places in _failures(study).values() for _, all_lost in places}
    if True in lost:
        handles.append(cross_key("target not reached"))
    if False in lost:
        handles.append(cross_key("not reached by some seeds", pale=True))
    if there and len(study.seeds) > 1:
        handles.append(spread_key())
    legend_beside(figure, handles)
    save_figure(figure, out)


def _failures(study: Study) -> dict[str, list[tuple[int, bool]]]:
    """By strategy: worker counts where seeds failed, and whether there is no time for it."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for name in study.strategies:
        places = [
            (cell.workers, cell.seconds is None)
            for cell in study.cells
            if cell.strategy == name and cell.reached + cell.ended.get("unfinished", 0) < cell.seeds
        ]
        if places:
            found[name] = places
    return found


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(
        median=interval.median * factor, low=interval.low * factor, high=interval.high * factor
    )


def _target(study: Study) -> str:
    return number(study.target.loss)
