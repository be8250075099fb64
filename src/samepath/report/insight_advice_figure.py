"""The picture of an advice: speed-up and efficiency, learning rates, the noise scale.

In: an Advice. Out: `advice.png`. Measured points are filled, modelled ones hollow; a ring stands
around the number of workers to take, a bar at the knee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from samepath.insight.advise.advice import Advice, Row, ScalingCurve
from samepath.report.sheet import save_figure
from samepath.report.study_style import (
    how_keys,
    key,
    legend_beside,
    log_values,
    margins,
    new_figure,
    powers_axis,
    say_nothing_to_show,
    tidy,
)
from samepath.timing.links import HERE

_LOOKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "^"), ("#332288", "v"))
_NOISE, _RATES, _CRITICAL, _OTHER = "#882255", "#117733", "#DDAA33", "0.4"
_DASHES: dict[str, Any] = {"color": _OTHER, "linewidth": 1.2, "linestyle": (0, (4, 2)), "zorder": 1}


def draw_advice(title: str, advice: Advice, out: Path) -> None:
    """Four axes and a legend."""
    figure = new_figure(11.4, 7.4, title)
    (speed, efficiency), (rates, noise) = figure.subplots(2, 2)
    counts = sorted({row.workers for curve in advice.curves for row in curve.rows})
    for place, curve in enumerate(advice.curves):
        look = _LOOKS[place % len(_LOOKS)]
        _curve(speed, curve, look, lambda row: row.speedup)
        _curve(efficiency, curve, look, lambda row: 100.0 * row.efficiency)
    _speed(speed, advice, counts)
    _efficiency(efficiency, advice, counts)
    _rates(rates, advice)
    _noise(noise, advice)
    legend_beside(figure, _keys(advice))
    save_figure(figure, out)


def _curve(
    axes: Axes, curve: ScalingCurve, look: tuple[str, str], value: Callable[[Row], float]
) -> None:
    colour, marker = look
    how: dict[str, Any] = {"markersize": 6.0, "markeredgewidth": 1.4, "color": colour}
    axes.plot([r.workers for r in curve.rows], [value(r) for r in curve.rows], color=colour, lw=1.4)
    for row in curve.rows:
        face = colour if row.how == "measured" else "white"
        axes.plot([row.workers], [value(row)], marker, mfc=face, zorder=3, **how)
        if row.workers == curve.best:
            axes.plot([row.workers], [value(row)], "o", ms=13, mfc="none", mec=colour, mew=1.2)
        if row.workers == curve.knee:
            axes.plot([row.workers], [value(row)], "|", ms=20, mew=1.6, color=colour)


def _speed(axes: Axes, advice: Advice, counts: list[int]) -> None:
    axes.plot(counts, counts, color="0.65", linewidth=1.0, zorder=1)
    shown = [row.speedup for curve in advice.curves for row in curve.rows]
    log_values(axes, *margins([*shown, *map(float, counts), 1.0, 2.0]))
    powers_axis(axes, counts, "workers")
    axes.yaxis.set_major_locator(axes.xaxis.get_major_locator())
    axes.yaxis.set_minor_locator(NullLocator())
    _say(axes, counts[-1], counts[-1], "ideal", ha="right", va="bottom")
    axes.set_ylabel("speed-up over one worker")
    tidy(axes)


def _efficiency(axes: Axes, advice: Advice, counts: list[int]) -> None:
    axes.axhline(100.0, color="0.65", linewidth=1.0, zorder=1)
    axes.axhline(100.0 * advice.floor, **_DASHES)
    shown = [100.0 * row.efficiency for curve in advice.curves for row in curve.rows]
    axes.set_ylim(0.0, 1.08 * max([100.0, *shown]))
    powers_axis(axes, counts, "workers")
    axes.set_ylabel("efficiency: speed-up / workers (%)")
    _say(axes, axes.get_xlim()[1], 100.0 * advice.floor, "floor", ha="right", va="bottom")
    tidy(axes)


def _rates(axes: Axes, advice: Advice) -> None:
    rates = advice.rates
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"training loss after {rates.steps} steps" if rates.steps else "training loss")
    tried = [trial for trial in rates.trials if math.isfinite(trial.end_loss)]
    tidy(axes)
    if not tried:
        say_nothing_to_show(axes, fill(rates.note or "no learning rate was tried", 32))
        return
    axes.plot([t.learning_rate for t in tried], [t.end_loss for t in tried], color=_RATES, lw=1.4)
    for trial in tried:
        look = ("o", "white") if trial.converged else ("x", _RATES)
        how: dict[str, Any] = {"ms": 6.5, "mew": 1.6, "color": _RATES, "zorder": 3}
        axes.plot([trial.learning_rate], [trial.end_loss], look[0], mfc=look[1], **how)
    if rates.start_loss is not None:
        axes.axhline(rates.start_loss, color="0.65", linewidth=1.0, zorder=1)
    lost = [trial.learning_rate for trial in rates.trials if trial not in tried]
    for rate in lost:
        axes.plot([rate], [0.97], "x", transform=axes.get_xaxis_transform(), color=_RATES, mew=1.6)
    axes.axvline(rates.recipe_rate, **_DASHES)
    everywhere = [rates.recipe_rate, *(trial.learning_rate for trial in rates.trials)]
    log_values(axes, *margins(everywhere, 0.1), which="x")
    highest = max([t.end_loss for t in tried if t.converged] + [rates.start_loss or 0.0])
    lowest = min(trial.end_loss for trial in tried)
    room = 0.1 * (highest - lowest) or 1.0
    axes.set_ylim(lowest - room, highest + 3.0 * room)  # what is lost need not be in the picture
    if rates.start_loss is not None:
        _say(axes, axes.get_xlim()[1], rates.start_loss, "the first loss", ha="right", va="bottom")
    _say(axes, rates.recipe_rate, highest + 2.9 * room, " the recipe's rate", ha="left", va="top")


def _noise(axes: Axes, advice: Advice) -> None:
    batch = advice.batch
    axes.set_xlabel("step of a short run")
    axes.set_ylabel("examples")
    tidy(axes)
    points = batch.points
    if not points:
        say_nothing_to_show(axes, fill(batch.note or "no noise scale was found", 32))
        return
    steps = [point.step for point in points]
    known = [v for p in points for v in (p.scale, p.low, p.high)]
    known += [batch.critical_low or 0.0, batch.critical_high or 0.0, float(advice.batch_size)]
    low, high = margins([value for value in known if 0.0 < value < math.inf], 0.05)
    tops = [min(point.high, high) for point in points]
    bottoms = [max(point.low, low) for point in points]
    axes.fill_between(steps, bottoms, tops, color=_NOISE, alpha=0.15, linewidth=0.0)
    scales = [p.scale if math.isfinite(p.scale) else math.nan for p in points]
    axes.plot(steps, scales, color=_NOISE, linewidth=1.6)
    axes.axhline(advice.batch_size, **_DASHES)
    log_values(axes, low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    end = 1.06 * max(steps)
    axes.set_xlim(0, 1.03 * end)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    ends = [
        min(max(each, low), high) for each in (batch.critical_low or 0, batch.critical_high or 0)
    ]
    axes.plot([end, end], ends, color=_CRITICAL, linewidth=6.0, solid_capstyle="butt")
    _say(axes, 0.0, advice.batch_size, " the batch", ha="left", va="bottom")


def _say(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    axes.text(x, y, text, color=_OTHER, fontsize=9, **how)


def _keys(advice: Advice) -> list[Artist]:
    handles: list[Artist] = []
    for place, curve in enumerate(advice.curves):
        colour, marker = _LOOKS[place % len(_LOOKS)]
        name = "this machine" if curve.network == HERE else curve.network
        handles.append(key(name, color=colour, marker=marker, markerfacecolor="white"))
    handles += how_keys({row.how for curve in advice.curves for row in curve.rows})
    ring: dict[str, Any] = {"marker": "o", "markersize": 12, "linestyle": "", "mfc": "none"}
    handles.append(key("workers to take", color="0.35", **ring))
    handles.append(key("knee", color="0.35", marker="|", ms=15, mew=1.6, linestyle=""))
    circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "white"}
    handles.append(key("a rate that converges", color=_RATES, **circle))
    handles.append(key("one that does not", color=_RATES, marker="x", linestyle="", mew=1.6))
    handles.append(key("noise scale", color=_NOISE, linewidth=1.6))
    handles.append(Patch(facecolor=_NOISE, alpha=0.2, label="its interval (95 %)"))
    handles.append(Patch(facecolor=_CRITICAL, label="critical batch, from the last"))
    return handles
