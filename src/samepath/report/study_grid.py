"""Figures of a grid of batch sizes and learning rates: figures 4 and 5 of Gahlot et al. 2020.

In: a grid. Out: `accuracy_by_batch.png` and `preferred_batch.png`. Guaranteed: a run that diverged
counts for nothing but its cross; medians are over the seeds that came through.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from samepath.report.sheet import save_figure
from samepath.report.study_style import (
    cross_key,
    failures_strip,
    key,
    legend_beside,
    new_figure,
    powers_axis,
    ramp,
    side_by_side,
    spread_key,
    tidy,
)
from samepath.report.study_tables import final_metric, metric_better
from samepath.report.study_words import number
from samepath.study.results import GridStudy, Interval

_MARKERS = ("o", "s", "^", "D", "v", "p", "<", ">")

Found = Mapping[tuple[int, float], Interval]
"""The metric by batch size and learning rate, over seeds; only where there is one."""


def grid_metrics(study: GridStudy) -> dict[tuple[int, float], Interval]:
    """Of seeds that came through; only where more than half did."""
    found = {}
    for batch in study.batch_sizes:
        for rate in study.learning_rates:
            runs = [r for r in study.runs if (r.batch_size, r.learning_rate) == (batch, rate)]
            values = [v for v in (final_metric(study, run) for run in runs) if not math.isnan(v)]
            if 2 * len(values) > len(runs):
                middle = statistics.median(values)
                found[batch, rate] = Interval(median=middle, low=min(values), high=max(values))
    return found


def preferred_batches(study: GridStudy) -> dict[float, tuple[int, int, int]]:
    """By learning rate: the batch with the best median, and the smallest and largest as good.

    As good: the median is inside the spread of the best one's seeds. Of equal ones the smallest.
    """
    found, sign = grid_metrics(study), -1.0 if metric_better(study) == "lower" else 1.0
    preferred = {}
    for rate in study.learning_rates:
        mine = {b: found[b, rate] for b in sorted(study.batch_sizes) if (b, rate) in found}
        if mine:
            best = max(mine, key=lambda b: sign * mine[b].median)
            spread = mine[best]
            good = [b for b, v in mine.items() if spread.low <= v.median <= spread.high]
            preferred[rate] = best, min(good), max(good)
    return preferred


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


def grid_verdict(study: GridStudy) -> str:
    """Two sentences: the best of all, and how the preferred batch moves with the rate."""
    metrics = {
        place: interval.median
        for place, interval in grid_metrics(study).items()
        if math.isfinite(interval.median)
    }
    if not metrics:
        return (
            f"No batch size ends with a finite {study.metric} at any rate tried. "
            "Try lower learning rates."
        )
    pick = min if study.metric == "loss" else max
    (size, rate), best = pick(metrics.items(), key=lambda item: item[1])
    word = "lowest" if study.metric == "loss" else "highest"
    first = (
        f"The {word} {study.metric} after {study.epochs} epochs is {best:.4g}, "
        f"with a batch of {size} at rate {rate:.3g}."
    )
    preferred = {r: batch for r, (batch, _, _) in sorted(preferred_batches(study).items())}
    if len(preferred) < 2:
        return first + " Give several --learning-rates to see how the preferred batch moves."
    (low, small), *_, (high, large) = preferred.items()
    moved = "grows" if large > small else "shrinks" if large < small else "stays"
    to = f"from {small} at rate {low:.3g} to {large} at rate {high:.3g}"
    if large == small:
        to = f"at {small} from rate {low:.3g} to {high:.3g}"
    return f"{first} The preferred batch {moved} {to}."
