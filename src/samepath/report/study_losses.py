"""Loss curves of one strategy by worker count: figures 3 to 5 of Cunha et al. 2018.

In: a race and a strategy. Out: a PNG: losses by epoch and by time, and above them, where the rate
warms up, the first epochs enlarged. Runs on the same path lie on each other by epoch: they are
drawn one inside the other. One seed is drawn in full, the others faintly. The axis shows all runs
except losses that blow up: those leave at the top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from samepath.report import style
from samepath.report.words import ENDED, base_name, number, time_unit, workers_named
from samepath.study.results import Epoch, RunRecord, Study

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
    """By epoch; wider where narrower ones on the same path lie on top."""


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


def draw_losses_of(study: Study, strategy: str, out: Path) -> None:
    """Validation loss as lines, training loss thin and pale."""
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
    style.finish(figure, _keys(study, drawn), out)


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


def _keys(study: Study, drawn: Sequence[_Drawn]) -> list[Line2D]:
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
    points = [(across(e), getattr(e, loss)) for e in run.curve]
    return [x for x, _ in points], [y if _finite(y) else math.nan for _, y in points]


def _last_finite(run: RunRecord) -> tuple[Epoch, float] | None:
    """The last epoch with a finite validation loss, and the loss."""
    for epoch in reversed(run.curve):
        if epoch.valid_loss is not None and math.isfinite(epoch.valid_loss):
            return epoch, epoch.valid_loss
    return None


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
