"""The figures of a study: scaling, time against compute, generalisation gap, batch sizes.

In: a race or a grid. Out: PNG files. Measured points are filled, modelled ones hollow; crosses say
where the target was not reached, or a run has no result. Medians are over seeds that have one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from samepath.report import style
from samepath.report.study_verdict import (
    final_metric,
    grid_metrics,
    metric_better,
    preferred_batches,
)
from samepath.report.words import number, plural, time_unit
from samepath.study.results import Cell, Epoch, GridStudy, Interval, Study

# ------------------------------------------------------------------- time and efficiency by workers


def draw_time_to_target(study: Study, out: Path) -> None:
    """Medians over seeds, with the lowest and the highest; both axes logarithmic. The paper's
    figure 2."""
    unit, length = time_unit(
        max((cell.seconds.high for cell in study.cells if cell.seconds), default=1.0)
    )
    figure, axes = _start(study, "time")
    shown = _draw_strategies(axes, study, lambda cell: _times(cell.seconds, 1.0 / length))
    sequential = sequential_seconds(study)
    if sequential is not None:
        ideal = [sequential / length / k for k in study.workers]
        axes.plot(study.workers, ideal, zorder=1, **style.GUIDE)
        shown += ideal
    style.log_values(axes, *style.margins(shown))
    axes.set_ylabel(f"time to target ({unit})" if shown else "time to target")
    _finish(figure, axes, study, out, "ideal speed-up" if sequential is not None else "")


def draw_efficiency(study: Study, out: Path) -> None:
    """T1 / (n Tn) in percent."""
    figure, axes = _start(study, "efficiency")
    shown = _draw_strategies(axes, study, lambda cell: _times(cell.efficiency, 100.0))
    axes.axhline(100.0, zorder=1, **style.GUIDE)
    axes.set_ylim(0.0, 1.06 * max([100.0, *shown]))
    axes.set_ylabel("efficiency T1 / (n Tn) (%)")
    _finish(figure, axes, study, out, "ideal: 100 %")


def sequential_seconds(study: Study) -> float | None:
    """The time of one worker: of the first strategy that has one (they are all the same run)."""
    for cell in study.cells:
        if cell.workers == 1 and cell.seconds is not None:
            return cell.seconds.median
    return None


def _start(study: Study, what: str) -> tuple[Figure, Axes]:
    title = f"{study.recipe}: {what} to a validation loss of {number(study.target.loss)}"
    looks = style.strategy_looks(study.strategies)
    return style.new_figure_with_failures(title, _failures(study), looks, "target not reached")


def _draw_strategies(
    axes: Axes, study: Study, value: Callable[[Cell], Interval | None]
) -> list[float]:
    """Lines and points of all strategies; the values that must be inside the axes."""
    beside = style.side_by_side(study.strategies, study.workers)
    shown: list[float] = []
    for name, look in style.strategy_looks(study.strategies).items():
        cells = sorted((c for c in study.cells if c.strategy == name), key=lambda c: c.workers)
        places = [cell.workers * beside[name] for cell in cells]
        found = [value(cell) for cell in cells]
        heights = [math.nan if v is None else v.median for v in found]
        axes.plot(places, heights, color=look.colour, linestyle=look.line, linewidth=1.6)
        for place, cell, interval in zip(places, cells, found, strict=True):
            if interval is None:
                continue
            low, middle, high = interval.low, interval.median, interval.high
            if high > low:
                how: dict[str, Any] = {"elinewidth": 1.2, "capsize": 2.5, "zorder": 2.5}
                spread = [[middle - low], [high - middle]]
                axes.errorbar([place], [middle], spread, fmt="none", ecolor=look.colour, **how)
            style.draw_point(axes, place, middle, look, hollow=cell.how == "modelled")
            shown += [low, middle, high]
    return shown


def _finish(figure: Figure, axes: Axes, study: Study, out: Path, ideal: str) -> None:
    style.powers_axis(axes, study.workers, "workers")
    style.tidy(axes)
    there = [cell for cell in study.cells if cell.seconds is not None]
    if not there:
        style.say_nothing_to_show(axes, "no strategy reached the target")
    handles = style.look_keys(style.strategy_looks(study.strategies))
    handles += style.how_keys({cell.how for cell in there})
    if ideal:
        handles.append(style.key(ideal, **style.GUIDE))
    failed = _failures(study)
    handles += style.failure_keys(failed, "target not reached", "not reached by some seeds")
    if there and len(study.seeds) > 1:
        handles.append(style.spread_key())
    style.finish(figure, handles, out)


def _failures(study: Study) -> dict[str, list[tuple[int, bool]]]:
    """List by strategy the worker counts where seeds failed, and whether there is no time for
    it."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for cell in study.cells:
        if cell.reached + cell.ended.get("unfinished", 0) < cell.seeds:
            found.setdefault(cell.strategy, []).append((cell.workers, cell.seconds is None))
    return {name: found[name] for name in study.strategies if name in found}


def _times(interval: Interval | None, factor: float) -> Interval | None:
    if interval is None:
        return None
    low, middle, high = interval.low, interval.median, interval.high
    return Interval(median=middle * factor, low=low * factor, high=high * factor)


# ------------------------------------------------------------------------------ time and compute

_AROUND = ((-8, -9), (9, -9), (-9, 9), (9, 9), (0, -12), (0, 12), (-13, 0), (13, 0))
"""Places for a label beside its point, in points: first where the front's line never is."""


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Pick the points (compute, time) that no other beats in one without losing in the other."""
    front: list[tuple[float, float]] = []
    for compute, time in sorted(set(points)):
        if not front or time < front[-1][1]:
            front.append((compute, time))
    return front


def draw_pareto(study: Study, out: Path) -> None:
    """A point for each strategy and worker count that reached the target: medians over seeds, with
    the number of workers beside each, and the front."""
    looks = style.strategy_looks(study.strategies)
    cells = [cell for cell in study.cells if cell.seconds is not None]
    seconds = [cell.seconds.median for cell in cells if cell.seconds is not None]
    compute = [cell.workers * time for cell, time in zip(cells, seconds, strict=True)]
    time_name, time_length = time_unit(max(seconds, default=1.0))
    work_name, work_length = time_unit(max(compute, default=1.0))
    works = [work / work_length for work in compute]
    times = [time / time_length for time in seconds]
    places = list(zip(works, times, strict=True))
    title = f"{study.recipe}: time and compute to a validation loss of {number(study.target.loss)}"
    figure = style.new_figure(8.6, 5.2, title)
    axes = figure.add_subplot()
    style.log_values(axes, *style.margins(works, 0.1), which="x")
    style.log_values(axes, *style.margins(times, 0.1))
    present = {cell.strategy for cell in cells}
    handles = style.look_keys({name: look for name, look in looks.items() if name in present})
    handles += style.how_keys({cell.how for cell in cells})
    front = pareto_front(places)
    if front:
        axes.step(*zip(*front, strict=True), where="post", color="0.2", lw=1.0, zorder=1)
        handles.append(style.key("front: nothing is better in both", color="0.2", linewidth=1.0))
    sequential = sequential_seconds(study)
    if sequential is not None:
        axes.axvline(sequential / work_length, zorder=1, **style.GUIDE)
        handles.append(style.key("compute of one worker (ideal speed-up)", **style.GUIDE))
    for cell, place in zip(cells, places, strict=True):
        style.draw_point(axes, *place, looks[cell.strategy], hollow=cell.how == "modelled")
    axes.set_xlabel(f"compute to target: workers x time (worker-{work_name})")
    axes.set_ylabel(f"time to target ({time_name})")
    style.tidy(axes)
    if cells:
        handles.append(style.key("numbers: workers", linestyle=""))
    else:
        style.say_nothing_to_show(axes, "no strategy reached the target")
        axes.set_xticks([])
        axes.minorticks_off()
    colours = [looks[cell.strategy].colour for cell in cells]
    labels = [str(cell.workers) for cell in cells]
    style.add_legend(figure, handles)
    figure.draw_without_rendering()  # labels are placed where everything ends up
    figure.set_layout_engine("none")
    _label(axes, list(zip(places, labels, colours, strict=True)))
    style.save_figure(figure, out)


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


# --------------------------------------------------------------------------- generalisation gap


class _End(NamedTuple):
    """The end of a run."""

    name: str
    batch_size: int
    gap: float
    reached: bool


def draw_generalisation_gap(study: Study | GridStudy, out: Path) -> None:
    """Validation loss minus training loss at the end of each run, and a line through the medians.

    A run without finite losses at its end is left out, and counted in the legend.
    """
    if isinstance(study, Study):
        looks = style.strategy_looks(study.strategies)
        ends = [_End(r.strategy, r.batch_size, gap(r.curve), r.reached) for r in study.runs]
    else:
        looks = style.ordered_looks(_rate_names(study))
        ends = []
        for run in study.runs:
            found = math.nan if run.ended == "diverged" else gap(run.curve)
            ends.append(_End(_rate_name(run.learning_rate), run.batch_size, found, True))
    there = [end for end in ends if not math.isnan(end.gap)]
    figure = style.new_figure(8.6, 4.8, f"{study.recipe}: generalisation gap")
    axes = figure.add_subplot()
    axes.axhline(0.0, color="0.5", linewidth=0.9, zorder=1)
    batches = [end.batch_size for end in ends]
    beside = style.side_by_side(list(looks), batches)
    for name, look in looks.items():
        mine = [end for end in there if end.name == name]
        sizes = sorted({end.batch_size for end in mine})
        medians = [statistics.median(e.gap for e in mine if e.batch_size == b) for b in sizes]
        places = [size * beside[name] for size in sizes]
        axes.plot(places, medians, color=look.colour, linestyle=look.line, linewidth=1.4)
        for end in mine:
            marker, size, width = (look.marker, 5.5, 0.8) if end.reached else ("x", 6.5, 1.8)
            how: dict[str, Any] = {"color": look.colour, "ms": size, "mew": width, "alpha": 0.85}
            axes.plot([end.batch_size * beside[name]], [end.gap], marker, **how)
    style.powers_axis(axes, batches, "batch size (of the first epoch)")
    _gap_axis(axes, [end.gap for end in there])
    axes.set_ylabel("validation loss - training loss")
    style.tidy(axes)
    handles = style.look_keys(looks)
    if not all(end.reached for end in there):
        handles.append(style.point_key("target not reached", "x", markeredgewidth=1.8))
    missing = len(ends) - len(there)
    if missing:
        runs = plural(missing, "run")
        handles.append(style.key(f"not shown: {runs} without losses at the end", linestyle=""))
    style.finish(figure, handles, out)


def gap(curve: Sequence[Epoch]) -> float:
    """Validation loss minus training loss at the end; NaN where there is none."""
    if not curve or curve[-1].valid_loss is None or curve[-1].train_loss is None:
        return math.nan
    found = curve[-1].valid_loss - curve[-1].train_loss
    return found if math.isfinite(found) else math.nan


def _gap_axis(axes: Axes, gaps: Sequence[float]) -> None:
    """Linear near zero and logarithmic far from it, if gaps are of very different sizes."""
    sizes = [abs(gap) for gap in gaps if gap]
    if not sizes:
        return
    linear = 3.0 * statistics.median(sizes)
    if max(sizes) <= 10.0 * linear:
        low, high = min(0.0, *gaps), max(0.0, *gaps)
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        return
    axes.set_yscale("symlog", linthresh=linear)
    low, high = min(gaps), max(gaps)
    axes.set_ylim(1.6 * low if low < -linear else low - 0.3 * linear, 1.6 * high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


# ----------------------------------------- batch sizes: figures 4 and 5 of Gahlot et al. 2020


def draw_metric_by_batch(study: GridStudy, out: Path) -> None:
    """The metric at the end against batch size, a line per learning rate."""
    found = grid_metrics(study)
    names = _rate_names(study)
    looks = style.ordered_looks(names)
    failed: dict[str, list[tuple[int, bool]]] = {}
    for name, rate in zip(names, study.learning_rates, strict=True):
        places = [(b, (b, rate) not in found) for b in study.batch_sizes if _lost(study, b, rate)]
        failed |= {name: places} if places else {}
    title = f"{study.recipe}: {study.metric} after {study.epochs} epochs"
    figure, axes = style.new_figure_with_failures(title, failed, looks, "no result")
    beside = style.side_by_side(names, study.batch_sizes)
    several = len(study.seeds) > 1
    for name, rate in zip(names, study.learning_rates, strict=True):
        mine = {b * beside[name]: found.get((b, rate)) for b in sorted(study.batch_sizes)}
        style.draw_intervals(axes, mine, looks[name], bars=several)
    style.powers_axis(axes, study.batch_sizes, "batch size")
    axes.set_ylabel(f"{study.metric} ({metric_better(study)} is better)")
    style.tidy(axes)
    handles = style.look_keys(looks) + ([style.spread_key()] if several else [])
    handles += style.failure_keys(failed, "no result", "no result with some seeds")
    style.finish(figure, handles, out)


def draw_preferred_batch(study: GridStudy, out: Path) -> None:
    """Learning rate against the batch size that does best with it."""
    preferred = preferred_batches(study)
    looks = style.ordered_looks(_rate_names(study))
    figure = style.new_figure(7.6, 4.6, f"{study.recipe}: batch size with the best {study.metric}")
    axes = figure.add_subplot()
    best = [batch for batch, _, _ in preferred.values()]
    axes.plot(best, list(preferred), color="0.6", linewidth=1.2, zorder=1)
    for rate, (batch, low, high) in preferred.items():
        look = looks[_rate_name(rate)]
        axes.plot([low, high], [rate, rate], color=look.colour, lw=5, alpha=0.3, zorder=2)
        axes.plot([batch], [rate], look.marker, color=look.colour, markersize=8, zorder=3)
    axes.set_yscale("log")
    axes.set_ylim(min(study.learning_rates) / 1.6, max(study.learning_rates) * 1.6)
    axes.yaxis.set_major_locator(FixedLocator(sorted(study.learning_rates)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    style.powers_axis(axes, study.batch_sizes, "preferred batch size")
    axes.set_ylabel("learning rate")
    style.tidy(axes)
    handles = [style.point_key(f"best median {study.metric}")]
    if len(study.seeds) > 1:
        words = "as good within its seeds"
        handles.append(style.key(words, color=style.GREY, linewidth=5, alpha=0.3))
    style.finish(figure, handles, out)


def _rate_name(rate: float) -> str:
    return f"rate {number(rate)}"


def _rate_names(study: GridStudy) -> list[str]:
    return list(map(_rate_name, study.learning_rates))


def _lost(study: GridStudy, batch: int, rate: float) -> bool:
    """Whether a run here ended without a metric (one that has not ended yet is not lost)."""
    return any(
        math.isnan(final_metric(study, run)) and run.ended != "unfinished"
        for run in study.runs
        if (run.batch_size, run.learning_rate) == (batch, rate)
    )
