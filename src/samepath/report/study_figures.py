"""The figures of a study: scaling, time against compute, generalisation gap, batch sizes.

In: a race or a grid. Out: PNG files. Measured points are filled, modelled ones hollow; crosses say
where the target was not reached, or a run has no result. Medians are over seeds that have one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from samepath.report.study_verdict import (
    final_metric,
    grid_metrics,
    metric_better,
    preferred_batches,
)
from samepath.report.style import (
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
    ramp,
    save_figure,
    say_nothing_to_show,
    side_by_side,
    spread_key,
    strategy_keys,
    tidy,
)
from samepath.report.words import number, time_unit
from samepath.study.results import Cell, Epoch, GridStudy, Interval, Study


def draw_time_to_target(study: Study, out: Path) -> None:
    """Medians over seeds, with the lowest and the highest; both axes logarithmic."""
    unit, length = time_unit(
        max((cell.seconds.high for cell in study.cells if cell.seconds), default=1.0)
    )

    def value(cell: Cell) -> Interval | None:
        return None if cell.seconds is None else _times(cell.seconds, 1.0 / length)

    figure, axes = _start(study, f"{study.recipe}: time to a validation loss of {_target(study)}")
    shown = _draw_strategies(axes, study, value)
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
    shown = _draw_strategies(axes, study, value)
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


def _draw_strategies(
    axes: Axes, study: Study, value: Callable[[Cell], Interval | None]
) -> list[float]:
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
                _draw_point(axes, place, interval, look, hollow=cell.how == "modelled")
                shown += [interval.low, interval.median, interval.high]
    return shown


def _draw_point(axes: Axes, place: float, interval: Interval, look: Look, *, hollow: bool) -> None:
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


_AROUND = ((-8, -9), (9, -9), (-9, 9), (9, 9), (0, -12), (0, 12), (-13, 0), (13, 0))
"""Places for a label beside its point, in points: first where the front's line never is."""


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (compute, time): those that no other beats in one without losing in the other."""
    front: list[tuple[float, float]] = []
    for compute, time in sorted(set(points)):
        if not front or time < front[-1][1]:
            front.append((compute, time))
    return front


def draw_pareto(study: Study, out: Path) -> None:
    """Medians over seeds; labels are worker counts."""
    styles = looks(study.strategies)
    cells = [cell for cell in study.cells if cell.seconds is not None]
    points = {(cell.strategy, cell.workers): _point(cell) for cell in cells}
    time_name, time_length = time_unit(max((time for _, time in points.values()), default=1.0))
    work_name, work_length = time_unit(max((work for work, _ in points.values()), default=1.0))
    title = f"{study.recipe}: time and compute to a validation loss of {number(study.target.loss)}"
    figure = new_figure(8.6, 5.2, title)
    axes = figure.add_subplot()
    scaled = {k: (work / work_length, time / time_length) for k, (work, time) in points.items()}
    front = pareto_front(list(scaled.values()))
    works, times = [x for x, _ in scaled.values()], [y for _, y in scaled.values()]
    log_values(axes, *(margins(works, 0.1) if works else (0.1, 1.0)), which="x")
    log_values(axes, *(margins(times, 0.1) if times else (0.1, 1.0)))
    if front:
        axes.step(*zip(*front, strict=True), where="post", color="0.2", lw=1.0, zorder=1)
    sequential = sequential_seconds(study)
    if sequential is not None:
        axes.axvline(sequential / work_length, color="0.65", linewidth=1.0, zorder=1)
    for cell in cells:
        look, place = styles[cell.strategy], scaled[cell.strategy, cell.workers]
        face = "white" if cell.how == "modelled" else look.colour
        axes.plot(*place, look.marker, color=look.colour, mfc=face, ms=6.5, mew=1.4, zorder=3)
    axes.set_xlabel(f"compute to target: workers x time (worker-{work_name})")
    axes.set_ylabel(f"time to target ({time_name})")
    tidy(axes)
    if not cells:
        say_nothing_to_show(axes, "no strategy reached the target")
        axes.set_xticks([])
        axes.minorticks_off()
    handles = [h for h in strategy_keys(styles) if h.get_label() in {c.strategy for c in cells}]
    handles += how_keys({cell.how for cell in cells})
    if front:
        handles.append(key("front: nothing is better in both", color="0.2", linewidth=1.0))
    if sequential is not None:
        handles.append(key("compute of one worker (ideal speed-up)", color="0.65", linewidth=1.0))
    if cells:
        handles.append(key("numbers: workers", linestyle=""))
    legend_beside(figure, handles)
    figure.draw_without_rendering()  # labels are placed where everything ends up
    figure.set_layout_engine("none")
    colours = {k: styles[k[0]].colour for k in scaled}
    _label(axes, [(scaled[k], str(k[1]), colours[k]) for k in scaled])
    save_figure(figure, out)


def _point(cell: Cell) -> tuple[float, float]:
    assert cell.seconds is not None
    return cell.workers * cell.seconds.median, cell.seconds.median


def _label(axes: Axes, labels: Sequence[tuple[tuple[float, float], str, str]]) -> None:
    """Write each label at the first place around its point where nothing else is.

    The same number at (nearly) the same point is written once; one that fits nowhere is left out.
    """
    scale = axes.figure.dpi / 72.0
    centres = [np.asarray(axes.transData.transform(place)) / scale for place, _, _ in labels]
    taken: list[tuple[np.ndarray, str]] = []
    for (place, text, colour), centre in zip(labels, centres, strict=True):
        if any(other == text and np.abs(at - centre).max() < 16.0 for at, other in taken):
            continue
        for offset in _AROUND:
            at = centre + np.array(offset)
            clear = all(
                (np.abs(at - other) > (6.5 + 2.5 * len(text), 7.5)).any() for other in centres
            )
            free = all(
                (np.abs(at - other) > (4.0 + 3.0 * (len(text) + len(name)), 9.0)).any()
                for other, name in taken
            )
            if clear and free:
                how: dict[str, Any] = {"ha": "center", "va": "center", "color": colour}
                axes.annotate(text, place, offset, textcoords="offset points", fontsize=8, **how)
                taken.append((at, text))
                break


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
    _draw_gaps(ends, styles, f"{study.recipe}: generalisation gap", out)


def gap(curve: Sequence[Epoch]) -> float:
    """Validation loss minus training loss at the end; NaN where there is none."""
    if not curve or curve[-1].valid_loss is None or curve[-1].train_loss is None:
        return math.nan
    found = curve[-1].valid_loss - curve[-1].train_loss
    return found if math.isfinite(found) else math.nan


def _markers(number: int) -> list[str]:
    return [("o", "s", "^", "D", "v", "p", "<", ">")[i % 8] for i in range(number)]


def _draw_gaps(ends: Sequence[_End], styles: dict[str, Look], title: str, out: Path) -> None:
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


_MARKERS = ("o", "s", "^", "D", "v", "p", "<", ">")


def draw_metric_by_batch(study: GridStudy, out: Path) -> None:
    """The metric at the end against batch size, a line per learning rate."""
    found = grid_metrics(study)
    names = {rate: f"rate {number(rate)}" for rate in study.learning_rates}
    colours = dict(zip(study.learning_rates, ramp(len(names)), strict=True))
    failed = {
        names[rate]: [
            (b, (b, rate) not in found) for b in study.batch_sizes if _lost(study, b, rate)
        ]
        for rate in study.learning_rates
    }
    failed = {name: places for name, places in failed.items() if places}
    title = f"{study.recipe}: {study.metric} after {study.epochs} epochs"
    figure = new_figure(8.6, 4.8 + (0.34 + 0.2 * len(failed) if failed else 0.0), title)
    if failed:
        heights = [0.2 * len(failed), 4.0]
        above, axes = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        failures_strip(above, failed, {names[rate]: colours[rate] for rate in names})
        above.set_title("did not come through", fontsize=9, loc="left", color="0.25", pad=3)
    else:
        axes = figure.add_subplot()
    beside = side_by_side(list(names.values()), study.batch_sizes)
    for rate, marker in zip(study.learning_rates, _MARKERS * len(names), strict=False):
        mine = {b: found.get((b, rate)) for b in sorted(study.batch_sizes)}
        places = [b * beside[names[rate]] for b in mine]
        medians = [math.nan if v is None else v.median for v in mine.values()]
        below = [0.0 if v is None else v.median - v.low for v in mine.values()]
        over = [0.0 if v is None else v.high - v.median for v in mine.values()]
        spread = [below, over] if len(study.seeds) > 1 else None
        how = {"elinewidth": 1.1, "capsize": 2.5, "markersize": 5.5, "linewidth": 1.6}
        axes.errorbar(places, medians, spread, color=colours[rate], marker=marker, **how)
    powers_axis(axes, study.batch_sizes, "batch size")
    axes.set_ylabel(f"{study.metric} ({metric_better(study)} is better)")
    tidy(axes)
    handles = [
        key(names[rate], color=colours[rate], marker=marker)
        for rate, marker in zip(study.learning_rates, _MARKERS * len(names), strict=False)
    ]
    if len(study.seeds) > 1:
        handles.append(spread_key())
    lost = {all_lost for places in failed.values() for _, all_lost in places}
    if True in lost:
        handles.append(cross_key("did not come through"))
    if False in lost:
        handles.append(cross_key("some seeds did not", pale=True))
    legend_beside(figure, handles)
    save_figure(figure, out)


def draw_preferred_batch(study: GridStudy, out: Path) -> None:
    """Learning rate against the batch size that does best with it."""
    preferred = preferred_batches(study)
    colours = dict(zip(study.learning_rates, ramp(len(study.learning_rates)), strict=True))
    figure = new_figure(7.6, 4.6, f"{study.recipe}: batch size with the best {study.metric}")
    axes = figure.add_subplot()
    rates, best = list(preferred), [b for b, _, _ in preferred.values()]
    axes.plot(best, rates, color="0.6", linewidth=1.2, zorder=1)
    for (rate, (batch, low, high)), marker in zip(
        preferred.items(), _MARKERS * len(colours), strict=False
    ):
        axes.plot([low, high], [rate, rate], color=colours[rate], lw=5, alpha=0.3, zorder=2)
        axes.plot([batch], [rate], marker, color=colours[rate], markersize=8, zorder=3)
    axes.set_yscale("log")
    axes.set_ylim(min(study.learning_rates) / 1.6, max(study.learning_rates) * 1.6)
    axes.yaxis.set_major_locator(FixedLocator(sorted(study.learning_rates)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    powers_axis(axes, study.batch_sizes, "preferred batch size")
    axes.set_ylabel("learning rate")
    tidy(axes)
    grey = {"color": "0.35", "linestyle": ""}
    handles = [key(f"best median {study.metric}", marker="o", **grey)]
    if len(study.seeds) > 1:
        handles.append(key("as good within its seeds", color="0.35", linewidth=5, alpha=0.3))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _lost(study: GridStudy, batch: int, rate: float) -> bool:
    """Whether a run here ended without a metric (one that has not ended yet is not lost)."""
    return any(
        math.isnan(final_metric(study, run)) and run.ended != "unfinished"
        for run in study.runs
        if (run.batch_size, run.learning_rate) == (batch, rate)
    )
