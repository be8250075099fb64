"""The figures of a study: scaling, losses, time against compute, generalisation gap, batch sizes.

In: a race or a grid. Out: SVG files. Measured points are filled, modelled ones hollow; crosses say
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
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from samepath.console import count
from samepath.report import style
from samepath.report.study_verdict import (
    final_metric,
    grid_metrics,
    grid_runs,
    metric_better,
    preferred_batches,
)
from samepath.report.words import ENDED, base_name, number, time_unit, workers_named
from samepath.study.results import Cell, Epoch, GridStudy, Interval, RunRecord, Study

# ------------------------------------------------------------------- time and efficiency by workers


def draw_time_to_target(study: Study, out: Path) -> Path:
    """Medians over seeds, with the lowest and the highest; both axes logarithmic. The paper's
    figure 2."""
    ends = [end for c in study.cells if c.seconds for end in (c.seconds.median, c.seconds.high)]
    highest = max(filter(math.isfinite, ends), default=1.0)
    unit, length = time_unit(highest)
    figure, axes = _start(study, "time")
    shown = _draw_strategies(axes, study, lambda cell: _times(cell.seconds, 1.0 / length))
    sequential = sequential_seconds(study)
    if sequential is not None:
        ideal = [sequential / length / k for k in study.workers]
        axes.plot(study.workers, ideal, zorder=1, **style.GUIDE)
        shown += ideal
    style.log_values(axes, *style.margins(shown))
    axes.set_ylabel(f"time to target ({unit})" if shown else "time to target")
    return _finish(figure, axes, study, out, "ideal speed-up" if sequential is not None else "")


def draw_efficiency(study: Study, out: Path) -> Path:
    """T1 / (n Tn) in percent."""
    figure, axes = _start(study, "efficiency")
    shown = _draw_strategies(axes, study, lambda cell: _times(cell.efficiency, 100.0))
    axes.axhline(100.0, zorder=1, **style.GUIDE)
    axes.set_ylim(0.0, 1.06 * max([100.0, *shown]))
    axes.set_ylabel("efficiency T1 / (n Tn) (%)")
    return _finish(figure, axes, study, out, "ideal: 100 %")


def sequential_seconds(study: Study) -> float | None:
    """The time of one worker: of the first strategy that has one (they are all the same run)."""
    ones = [cell.seconds for cell in study.cells if cell.workers == 1]
    return next((seconds.median for seconds in ones if seconds is not None), None)


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
        found = {cell.workers * beside[name]: value(cell) for cell in cells}
        modelled = [cell.workers * beside[name] for cell in cells if cell.how == "modelled"]
        style.draw_intervals(axes, found, look, hollow=modelled)
        ends = [end for v in found.values() if v is not None for end in (v.low, v.median, v.high)]
        shown += filter(math.isfinite, ends)
    return shown


def _finish(figure: Figure, axes: Axes, study: Study, out: Path, ideal: str) -> Path:
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
    some = f"not reached by some {study.counted}"
    handles += style.failure_keys(failed, "target not reached", some)
    if there and len(study.seeds) > 1:
        handles.append(style.spread_key(_spread_words(study)))
    return style.finish(figure, handles, out)


def _spread_words(study: Study) -> str:
    if not study.is_fair:
        return "lowest to highest of the seeds"
    return f"95% interval over {study.counted} (arrow: no upper end)"


def _failures(study: Study) -> dict[str, list[tuple[int, bool]]]:
    """List by strategy the worker counts where seeds failed, and whether there is no time."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for cell in study.cells:
        if cell.reached + cell.ended.get("unfinished", 0) < cell.seeds:
            found.setdefault(cell.strategy, []).append((cell.workers, cell.seconds is None))
    return {name: found[name] for name in study.strategies if name in found}


def _times(interval: Interval | None, factor: float) -> Interval | None:
    if interval is None:
        return None
    return Interval.of([factor * each for each in (interval.low, interval.median, interval.high)])


# ---------------------------------------------------------------------- losses by epoch and time

_WARMUP_EPOCHS = 5
_FEW_POINTS = 30
_WIDTH = 1.7
_BLOWN_UP = 5.0
"""Times the highest loss of a run that does not diverge."""

Across = Callable[[Epoch], float]


class _Drawn(NamedTuple):
    """The run that stands for a worker count."""

    run: RunRecord
    others: tuple[RunRecord, ...]
    colour: str
    width: float
    """The line's width by epoch; wider where narrower ones on the same path lie on top."""


class LossScale(NamedTuple):
    """The vertical axis of losses."""

    low: float
    high: float
    log: bool
    ceiling: float
    """Losses above it are not shown."""

    def apply(self, axes: Axes) -> None:
        if self.log:
            style.log_values(axes, self.low, self.high)
        else:
            axes.set_ylim(self.low, self.high)


def draw_losses_of(study: Study, strategy: str, out: Path) -> Path:
    """Draw losses by epoch and by time: figures 3 to 5 of Cunha et al. 2018.

    Validation loss is a line, training loss thin and pale. One seed is drawn in full, the others
    faintly. Runs on the same path lie on each other by epoch: they are drawn one inside the other.
    Where the rate warms up, the first epochs are enlarged above. The axis shows all runs except
    losses that blow up: those leave at the top.
    """
    drawn = _chosen(study, strategy)
    mine = [run for run in study.runs if run.strategy == strategy]
    epochs = [epoch for each in drawn for epoch in each.run.curve]
    scale = loss_scale(mine, study.runs, also=study.target.loss)
    zoom = warmup_epochs(strategy, [each.run for each in drawn])
    figure = style.new_figure(11.0, 7.8 if zoom else 4.8, f"{study.recipe}, {strategy}: loss")
    if zoom:
        (near, rates), (by_epoch, by_time) = figure.subplots(2, 2, height_ratios=[2.6, 4.0])
    else:
        by_epoch, by_time = figure.subplots(1, 2)
    unit, length = time_unit(max((e.seconds for e in epochs), default=1.0))
    _draw(by_epoch, drawn, lambda e: float(e.epoch), scale, nested=True)
    _draw(by_time, drawn, lambda e: e.seconds / length, scale, nested=False)
    for axes in (by_epoch, by_time):
        axes.axhline(study.target.loss, color="0.15", linestyle=(0, (6, 3)), linewidth=1.0)
        scale.apply(axes)
    by_time.tick_params(labelleft=False, which="both")
    last = max((e.epoch for e in epochs), default=1)
    by_epoch.set(xlabel="epoch", ylabel="loss", xlim=(0.0, 1.03 * max(last, 1)))
    _whole_epochs(by_epoch)
    times = [e.seconds / length for e in epochs if e.seconds > 0.0]
    style.log_values(by_time, *style.margins(times, 0.03), which="x")
    by_time.set_xlabel(f"training time ({unit})")
    for axes in (by_epoch, by_time):
        style.tidy(axes)
    if zoom:
        _draw_zoom(near, rates, drawn, zoom, loss_scale(mine, study.runs, until=zoom + 0.5))
        mark = by_epoch.indicate_inset_zoom(near, edgecolor="0.4", alpha=0.7)
        for line in mark.connectors or ():
            line.set_visible(False)  # they would run across the curves
    return style.finish(figure, _loss_keys(study, drawn), out)


def warmup_epochs(strategy: str, runs: Sequence[RunRecord]) -> int:
    """How many first epochs to enlarge: while the rate rises, or five by name; 0 for none."""
    rising = 0
    for run in runs:
        rates = [e.learning_rate for e in run.curve]
        up = 0
        while up + 1 < len(rates) and rates[up + 1] > rates[up] * (1.0 + 1e-9):
            up += 1
        rising = max(rising, up + 1 if up else 0)
    if not rising and base_name(strategy).startswith("warmup"):
        rising = _WARMUP_EPOCHS
    longest = max((len(run.curve) for run in runs), default=0)
    return rising if 2 * rising <= longest else 0


def loss_scale(
    runs: Sequence[RunRecord],
    others: Sequence[RunRecord],
    also: float = math.nan,
    until: float = math.inf,
) -> LossScale:
    """An axis for the losses of `runs` up to an epoch, and `also` one more value.

    `others` say what a loss is like where none of `runs` is in good health. The axis is logarithmic
    if all losses are positive; NaN and infinity do not move it.
    """
    healthy = _losses([run for run in runs if run.ended != "diverged"], until)
    healthy = healthy or _losses([run for run in others if run.ended != "diverged"], until)
    extra = [also] if math.isfinite(also) else []
    everything = [*_losses(runs, until), *extra] or [1.0]
    ceiling = max([_BLOWN_UP * max(healthy, default=math.inf), *extra])
    if max(healthy, default=0.0) < 0.0:
        ceiling = math.inf  # a multiple of a negative loss is no limit
    shown = [loss for loss in everything if loss <= ceiling] or everything
    if min(shown) > 0.0:
        return LossScale(*style.margins(shown), log=True, ceiling=ceiling)
    edge = 0.06 * (max(shown) - min(shown)) or 1.0
    return LossScale(min(shown) - edge, max(shown) + edge, log=False, ceiling=ceiling)


def _losses(runs: Sequence[RunRecord], until: float) -> list[float]:
    epochs = [epoch for run in runs for epoch in run.curve if epoch.epoch <= until]
    both = [loss for e in epochs for loss in (e.train_loss, e.valid_loss)]
    return [loss for loss in both if loss is not None and math.isfinite(loss)]


def _chosen(study: Study, strategy: str) -> list[_Drawn]:
    """Choose for each worker count the seed with the median time; the first that failed if most
    did."""
    mine = [run for run in study.runs if run.strategy == strategy]
    counts = sorted({run.workers for run in mine})
    picked = []
    for workers in counts:
        runs = [run for run in mine if run.workers == workers]
        times = [math.inf if r.seconds_to_target is None else r.seconds_to_target for r in runs]
        run = runs[times.index(sorted(times)[(len(times) - 1) // 2])]
        picked.append((run, tuple(other for other in runs if other is not run)))
    paths: dict[tuple[object, ...], list[int]] = {}
    for place, (run, _) in enumerate(picked):
        path = tuple((e.epoch, str(e.train_loss), str(e.valid_loss)) for e in run.curve)
        paths.setdefault(path, []).append(place)
    widths = [_WIDTH] * len(picked)
    for places in paths.values():
        for rank, place in enumerate(reversed(places)):
            widths[place] = _WIDTH + 1.9 * rank
    colours = style.ramp(len(counts))
    drawn = zip(picked, colours, widths, strict=True)
    return [_Drawn(run, others, colour, width) for (run, others), colour, width in drawn]


def _draw(
    axes: Axes,
    drawn: Sequence[_Drawn],
    across: Across,
    scale: LossScale,
    *,
    nested: bool,
    until: float = math.inf,
) -> None:
    """Curves of all worker counts, and a cross where a run diverged.

    Without a loss to put it at, a cross stands above the axes.
    """
    for each in drawn:
        for other in each.others:
            axes.plot(*_line(other, across, "valid_loss"), color=each.colour, alpha=0.3, lw=0.9)
        axes.plot(*_line(each.run, across, "train_loss"), color=each.colour, alpha=0.55, lw=0.8)
        width = each.width if nested else _WIDTH
        marker = "o" if len(each.run.curve) <= _FEW_POINTS else ""
        line = _line(each.run, across, "valid_loss")
        how: dict[str, Any] = {"marker": marker, "ms": width + 2.0, "solid_capstyle": "round"}
        axes.plot(*line, color=each.colour, linewidth=width, **how)
    beyond = 0
    figure = axes.get_figure(root=True)
    assert figure is not None
    for each in drawn:
        end = _last_finite(each.run)
        if each.run.ended != "diverged" or (end is not None and end[0].epoch > until):
            continue
        how = {"color": each.colour, "ms": 8, "mew": 2.2, "zorder": 5}
        if end is not None and end[1] <= scale.ceiling:
            axes.plot(across(end[0]), end[1], "x", **how)
            continue
        place = across(end[0]) if end is not None else 0.0
        where = axes.get_xaxis_transform() if end is not None else axes.transAxes
        above = ScaledTranslation(0.0, (8.0 + 9.0 * beyond) / 72.0, figure.dpi_scale_trans)
        axes.plot(place, 1.0, "x", transform=where + above, clip_on=False, **how)
        beyond += 1


def _draw_zoom(
    near: Axes, rates: Axes, drawn: Sequence[_Drawn], zoom: int, scale: LossScale
) -> None:
    """The first epochs, and the learning rate in them."""
    until = zoom + 0.5
    _draw(near, drawn, lambda e: float(e.epoch), scale, nested=True, until=until)
    scale.apply(near)
    near.set(ylabel="loss", xlabel=f"the first {zoom} epochs (the box below)")
    for each in drawn:
        epochs = [e for e in each.run.curve if e.epoch <= zoom + 1]
        places, values = [e.epoch for e in epochs], [e.learning_rate for e in epochs]
        rates.plot(places, values, "o-", color=each.colour, lw=_WIDTH, markersize=3.5)
    rates.set(ylabel="learning rate", xlabel=f"the first {zoom} epochs")
    rates.set_ylim(bottom=0.0)
    for axes in (near, rates):
        axes.set_xlim(0.0, until)
        _whole_epochs(axes)
        style.tidy(axes)


def _whole_epochs(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _loss_keys(study: Study, drawn: Sequence[_Drawn]) -> list[Line2D]:
    handles = []
    for each in drawn:
        ended = "" if each.run.reached else f": {ENDED[each.run.ended]}"
        label = workers_named([each.run.workers]) + ended
        handles.append(style.key(label, color=each.colour, linewidth=2.4))
    grey: dict[str, Any] = {"color": style.GREY}
    handles.append(style.key("validation", linewidth=_WIDTH, **grey))
    handles.append(style.key("training", linewidth=0.8, alpha=0.7, **grey))
    if any(each.others for each in drawn):
        handles.append(style.key("validation, other seeds", linewidth=0.9, alpha=0.35, **grey))
    target = f"target, {number(study.target.loss)}"
    handles.append(style.key(target, color="0.15", linestyle=(0, (6, 3)), linewidth=1.0))
    if any(each.run.ended == "diverged" for each in drawn):
        words = "diverged (above the axes: off the scale, or in the first epoch)"
        handles.append(style.point_key(words, "x", markeredgewidth=2.4, markersize=9))
    return handles


def _line(run: RunRecord, across: Across, loss: str) -> tuple[list[float], list[float]]:
    losses = [getattr(epoch, loss) for epoch in run.curve]
    return list(map(across, run.curve)), [y if _is_finite(y) else math.nan for y in losses]


def _last_finite(run: RunRecord) -> tuple[Epoch, float] | None:
    """The last epoch with a finite validation loss, and the loss."""
    found = [(e, e.valid_loss) for e in run.curve if e.valid_loss is not None]
    return next((pair for pair in reversed(found) if math.isfinite(pair[1])), None)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


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


def draw_pareto(study: Study, out: Path) -> Path:
    """A point for each strategy and worker count that reached the target: medians over seeds, with
    the number of workers beside each, and the front."""
    looks = style.strategy_looks(study.strategies)
    reached = [(cell, cell.seconds.median) for cell in study.cells if cell.seconds is not None]
    time_name, time_length = time_unit(max((time for _, time in reached), default=1.0))
    most = max((cell.workers * time for cell, time in reached), default=1.0)
    work_name, work_length = time_unit(most)
    places = [(cell.workers * time / work_length, time / time_length) for cell, time in reached]
    title = f"{study.recipe}: time and compute to a validation loss of {number(study.target.loss)}"
    figure = style.new_figure(8.6, 5.2, title)
    axes = figure.add_subplot()
    style.log_values(axes, *style.margins([work for work, _ in places], 0.1), which="x")
    style.log_values(axes, *style.margins([time for _, time in places], 0.1))
    present = {cell.strategy for cell, _ in reached}
    handles = style.look_keys({name: look for name, look in looks.items() if name in present})
    handles += style.how_keys({cell.how for cell, _ in reached})
    front = pareto_front(places)
    if front:
        axes.step(*zip(*front, strict=True), where="post", color="0.2", lw=1.0, zorder=1)
        handles.append(style.key("front: nothing is better in both", color="0.2", linewidth=1.0))
    sequential = sequential_seconds(study)
    if sequential is not None:
        axes.axvline(sequential / work_length, zorder=1, **style.GUIDE)
        handles.append(style.key("compute of one worker (ideal speed-up)", **style.GUIDE))
    for (cell, _), place in zip(reached, places, strict=True):
        style.draw_point(axes, *place, looks[cell.strategy], hollow=cell.how == "modelled")
    axes.set_xlabel(f"compute to target: workers x time (worker-{work_name})")
    axes.set_ylabel(f"time to target ({time_name})")
    style.tidy(axes)
    if reached:
        handles.append(style.key("numbers: workers", linestyle=""))
    else:
        style.say_nothing_to_show(axes, "no strategy reached the target")
        axes.set_xticks([])
        axes.minorticks_off()
    style.add_legend(figure, handles)
    figure.draw_without_rendering()  # labels are placed where everything ends up
    figure.set_layout_engine("none")
    named = [(str(cell.workers), looks[cell.strategy].colour) for cell, _ in reached]
    _label(axes, [(place, *name) for place, name in zip(places, named, strict=True)])
    return style.save_figure(figure, out)


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


def draw_generalisation_gap(study: Study | GridStudy, out: Path) -> Path:
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
        words = f"not shown: {count(missing, 'run')} without losses at the end"
        handles.append(style.key(words, linestyle=""))
    return style.finish(figure, handles, out)


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


def draw_metric_by_batch(study: GridStudy, out: Path) -> Path:
    """The metric at the end against batch size, a line per learning rate."""
    found = grid_metrics(study)
    looks = style.ordered_looks(_rate_names(study))
    failed: dict[str, list[tuple[int, bool]]] = {}
    for (batch, rate), runs in grid_runs(study).items():
        # a run that has not ended yet is not lost
        ended = [run for run in runs if run.ended != "unfinished"]
        if any(math.isnan(final_metric(study, run)) for run in ended):
            failed.setdefault(_rate_name(rate), []).append((batch, (batch, rate) not in found))
    failed = {name: failed[name] for name in looks if name in failed}
    title = f"{study.recipe}: {study.metric} after {study.epochs} epochs"
    figure, axes = style.new_figure_with_failures(title, failed, looks, "no result")
    beside = style.side_by_side(list(looks), study.batch_sizes)
    for rate in study.learning_rates:
        name = _rate_name(rate)
        mine = {b * beside[name]: found.get((b, rate)) for b in sorted(study.batch_sizes)}
        style.draw_intervals(axes, mine, looks[name])
    style.powers_axis(axes, study.batch_sizes, "batch size")
    axes.set_ylabel(f"{study.metric} ({metric_better(study)} is better)")
    style.tidy(axes)
    handles = style.look_keys(looks)
    handles += [style.spread_key()] if len(study.seeds) > 1 else []
    handles += style.failure_keys(failed, "no result", "no result with some seeds")
    return style.finish(figure, handles, out)


def draw_preferred_batch(study: GridStudy, out: Path) -> Path:
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
    return style.finish(figure, handles, out)


def _rate_name(rate: float) -> str:
    return f"rate {number(rate)}"


def _rate_names(study: GridStudy) -> list[str]:
    return list(map(_rate_name, study.learning_rates))
