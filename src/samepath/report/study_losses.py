"""Loss curves of one strategy by worker count: figures 3 to 5 of Cunha et al. 2018.

In: a race and a strategy. Out: a PNG: losses by epoch and by time, and above them, where the rate
warms up, the first epochs enlarged. Runs on the same path lie on each other by epoch: they are
drawn one inside the other. One seed is drawn in full, the others faintly. The axis shows all runs
but what blows up: that leaves at the top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from samepath.report.style import (
    key,
    legend_beside,
    log_values,
    margins,
    new_figure,
    ramp,
    save_figure,
    tidy,
)
from samepath.report.words import ENDED, base_name, number, time_unit, workers_named
from samepath.study.results import Epoch, RunRecord, Study

_WARMUP_EPOCHS = 5
_FEW_POINTS = 30

Across = Callable[[Epoch], float]


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """The run that stands for a worker count."""

    run: RunRecord
    others: tuple[RunRecord, ...]
    colour: str
    width: float
    """By epoch; wider where narrower ones on the same path lie on top."""


def draw_losses_of(study: Study, strategy: str, out: Path) -> None:
    """Validation loss as lines, training loss thin and pale."""
    drawn = _chosen(study, strategy)
    mine = [run for run in study.runs if run.strategy == strategy]
    scale = loss_scale(mine, study.runs, also=study.target.loss)
    zoom = warmup_epochs(strategy, [each.run for each in drawn])
    title = f"{study.recipe}, {strategy}: loss"
    figure = new_figure(11.0, 7.8 if zoom else 4.8, title)
    if zoom:
        (near, rates), (by_epoch, by_time) = figure.subplots(2, 2, height_ratios=[2.6, 4.0])
    else:
        by_epoch, by_time = figure.subplots(1, 2)
    longest = max((e.seconds for each in drawn for e in each.run.curve), default=1.0)
    unit, length = time_unit(longest)
    _draw(by_epoch, drawn, lambda e: float(e.epoch), scale, nested=True)
    _draw(by_time, drawn, lambda e: e.seconds / length, scale, nested=False)
    for axes in (by_epoch, by_time):
        axes.axhline(study.target.loss, color="0.15", linestyle=(0, (6, 3)), linewidth=1.0)
        scale.apply(axes)
    by_time.tick_params(labelleft=False, which="both")
    last = max((e.epoch for each in drawn for e in each.run.curve), default=1)
    by_epoch.set(xlabel="epoch", ylabel="loss", xlim=(0.0, 1.03 * max(last, 1)))
    by_epoch.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    times = [e.seconds / length for each in drawn for e in each.run.curve if e.seconds > 0.0]
    log_values(by_time, *(margins(times, 0.03) if times else (0.1, 1.0)), which="x")
    by_time.set_xlabel(f"training time ({unit})")
    for axes in (by_epoch, by_time):
        tidy(axes)
    if zoom:
        _draw_zoom(near, rates, drawn, zoom, loss_scale(mine, study.runs, until=zoom + 0.5))
        mark = by_epoch.indicate_inset_zoom(near, edgecolor="0.4", alpha=0.7)
        for line in mark.connectors or ():
            line.set_visible(False)  # they would run across the curves
    _legend(figure, study, drawn)
    save_figure(figure, out)


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


def _chosen(study: Study, strategy: str) -> list[_Drawn]:
    """For each worker count the seed with the median time; the first that failed if most did."""
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
    widths = [1.7] * len(picked)
    for places in paths.values():
        for rank, place in enumerate(reversed(places)):
            widths[place] = 1.7 + 1.9 * rank
    return [
        _Drawn(run=run, others=others, colour=colour, width=width)
        for (run, others), colour, width in zip(picked, ramp(len(counts)), widths, strict=True)
    ]


def _draw(
    axes: Axes,
    drawn: Sequence[_Drawn],
    across: Across,
    scale: LossScale,
    *,
    nested: bool,
    until: float = math.inf,
) -> None:
    for each in drawn:
        for other in each.others:
            axes.plot(*_line(other, across, "valid_loss"), color=each.colour, alpha=0.3, lw=0.9)
        curve = each.run.curve
        axes.plot(*_line(each.run, across, "train_loss"), color=each.colour, alpha=0.55, lw=0.8)
        axes.plot(
            *_line(each.run, across, "valid_loss"),
            color=each.colour,
            linewidth=each.width if nested else 1.7,
            marker="o" if len(curve) <= _FEW_POINTS else "",
            markersize=(each.width if nested else 1.7) + 2.0,
            solid_capstyle="round",
        )
    _draw_crosses(axes, drawn, across, scale, until)


def _draw_crosses(
    axes: Axes, drawn: Sequence[_Drawn], across: Across, scale: LossScale, until: float
) -> None:
    """Where runs diverged. Without a loss to put it at, a cross stands above the axes."""
    beyond = 0
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = figure.dpi_scale_trans
    for each in drawn:
        if each.run.ended != "diverged":
            continue
        end = last_finite(each.run)
        how: dict[str, Any] = {"color": each.colour, "ms": 8, "mew": 2.2, "zorder": 5}
        if end is not None and end[0].epoch > until:
            continue
        if end is not None and end[1] <= scale.ceiling:
            axes.plot(across(end[0]), end[1], "x", **how)
            continue
        place = across(end[0]) if end is not None else 0.0
        where = axes.get_xaxis_transform() if end is not None else axes.transAxes
        above = ScaledTranslation(0.0, (8.0 + 9.0 * beyond) / 72.0, inches)
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
        rates.plot(places, values, "o-", color=each.colour, lw=1.7, markersize=3.5)
    rates.set(ylabel="learning rate", xlabel=f"the first {zoom} epochs")
    rates.set_ylim(bottom=0.0)
    for axes in (near, rates):
        axes.set_xlim(0.0, until)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        tidy(axes)


def _legend(figure: Figure, study: Study, drawn: Sequence[_Drawn]) -> None:
    handles = []
    for each in drawn:
        ended = "" if each.run.reached else f": {ENDED[each.run.ended]}"
        label = workers_named([each.run.workers]) + ended
        handles.append(key(label, color=each.colour, linewidth=2.4))
    handles.append(key("validation", color="0.35", linewidth=1.7))
    handles.append(key("training", color="0.35", linewidth=0.8, alpha=0.7))
    if any(each.others for each in drawn):
        handles.append(key("validation, other seeds", color="0.35", linewidth=0.9, alpha=0.35))
    target = f"target, {number(study.target.loss)}"
    handles.append(key(target, color="0.15", linestyle=(0, (6, 3)), linewidth=1.0))
    if any(each.run.ended == "diverged" for each in drawn):
        cross = {"marker": "x", "linestyle": "", "markeredgewidth": 2.4, "markersize": 9}
        handles.append(
            key(
                "diverged (above the axes: off the scale, or in the first epoch)",
                color="0.35",
                **cross,
            )
        )
    legend_beside(figure, handles)


def _line(run: RunRecord, across: Across, loss: str) -> tuple[list[float], list[float]]:
    points = [(across(e), getattr(e, loss)) for e in run.curve]
    return [x for x, _ in points], [y if _finite(y) else math.nan for _, y in points]


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


_BLOWN_UP = 5.0
"""Times the highest loss of a run that does not diverge."""


@dataclass(frozen=True, kw_only=True)
class LossScale:
    low: float
    high: float
    log: bool
    ceiling: float
    """Losses above it are not shown."""

    def apply(self, axes: Axes) -> None:
        if self.log:
            log_values(axes, self.low, self.high)
        else:
            axes.set_ylim(self.low, self.high)


def last_finite(run: RunRecord) -> tuple[Epoch, float] | None:
    """The last epoch with a finite validation loss, and the loss."""
    for epoch in reversed(run.curve):
        if epoch.valid_loss is not None and math.isfinite(epoch.valid_loss):
            return epoch, epoch.valid_loss
    return None


def loss_scale(
    runs: Sequence[RunRecord],
    others: Sequence[RunRecord],
    also: float = math.nan,
    until: float = math.inf,
) -> LossScale:
    """For the losses of `runs` up to an epoch, and `also` one more value.

    `others` say what a loss is like where none of `runs` is in good health.
    """
    healthy = _finite_losses([run for run in runs if run.ended != "diverged"], until)
    healthy = healthy or _finite_losses([run for run in others if run.ended != "diverged"], until)
    extra = [also] if math.isfinite(also) else []
    everything = [*_finite_losses(runs, until), *extra] or [1.0]
    ceiling = max([_BLOWN_UP * max(healthy, default=math.inf), *extra])
    if max(healthy, default=0.0) < 0.0:
        ceiling = math.inf  # a multiple of a negative loss is no limit
    shown = [loss for loss in everything if loss <= ceiling] or everything
    if min(shown) > 0.0:
        low, high = margins(shown)
        return LossScale(low=low, high=high, log=True, ceiling=ceiling)
    edge = 0.06 * (max(shown) - min(shown)) or 1.0
    low, high = min(shown) - edge, max(shown) + edge
    return LossScale(low=low, high=high, log=False, ceiling=ceiling)


def _finite_losses(runs: Sequence[RunRecord], until: float) -> list[float]:
    epochs = [epoch for run in runs for epoch in run.curve if epoch.epoch <= until]
    both = [loss for e in epochs for loss in (e.train_loss, e.valid_loss)]
    return [loss for loss in both if loss is not None and math.isfinite(loss)]
