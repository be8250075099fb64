"""The critical batch that branches measured: a table and a figure for the page of an advice.

In: a MeasuredBatch. Out: a table with its note, and a picture's path.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from samepath.insight.advise.advice import examples
from samepath.report import style
from samepath.report.words import Rows, number
from samepath.study.results import MeasuredBatch

HEADING = "The critical batch, measured"
_NOISE, _MEASURED = "#DDAA33", "#0072B2"


def branches_table(found: MeasuredBatch) -> tuple[str, Rows, str]:
    """One row for each batch size, then what they say: a title, the table and a note."""
    rows = [["batch", "learning rate", "loss after the same examples", "examples to its loss", ""]]
    for size in found.batch_sizes:
        branches = found.of(size)
        losses = [branch.loss for branch in branches if branch.loss is not None]
        mean = math.fsum(losses) / len(losses) if losses else None
        ratios = [math.inf if b.ratio is None else b.ratio for b in branches]
        reached = sum(math.isfinite(ratio) for ratio in ratios)
        middle = statistics.median(ratios)
        ends = f" ({_times(min(ratios))} to {_times(max(ratios))})"
        ends = ends if min(ratios) < max(ratios) else ""
        needed = "1" if size == found.base_batch else f"{_times(middle)}{ends}"
        within = sum(ratio <= 1.0 + found.tolerance for ratio in ratios)
        note = "the base's" if size == found.base_batch else f"{within} of {len(ratios)} within"
        if reached < len(ratios):
            note += f", {reached} came to it"
        rate = f"{branches[0].rate_factor:.3g}x"
        rows.append([f"{size:,}", rate, number(mean), needed, note])
    high = f"below {found.high:,}" if found.high is not None else "no end found"
    rows.append(["critical batch", "", "", "", f"{found.critical:,} (from {found.low:,}, {high})"])
    rows.append(["B_crit of the fit", "", "", "", _fit(found)])
    rows.append(["from the noise scale there", "", "", "", _noise(found)])
    orders = "one order" if len(found.seeds) == 1 else f"each of {len(found.seeds)} orders"
    words = (
        f"Branches begin with the exact state after step {found.base_steps:,} (epoch "
        f"{found.base_epochs}) of a run with batches of {found.base_batch:,}, in {orders} of the "
        f"data. Losses are those of training batches, averaged over {found.window:,} examples (an "
        f"epoch, half before and half after) and over orders; they are compared after "
        f"{found.epochs} epochs, and a larger batch has {found.most_epochs} to come to the base's. "
        f"Within: with at most {found.tolerance:.0%} more examples. The critical batch is the "
        "largest that the median order keeps within; its interval goes from what every order "
        f"keeps to what none does. Learning rates follow the {found.rule} rule; no others were "
        "tried. Fit: E = E_min (1 + B / B_crit) through the examples to the loss, for the batches "
        "that come to it; single orders in brackets."
    )
    return HEADING, rows, words


def _times(ratio: float) -> str:
    return "not reached" if math.isinf(ratio) else f"{ratio:.2f}"


def _fit(found: MeasuredBatch) -> str:
    if found.fitted is None:
        return "too few batch sizes come to the loss"
    if found.fitted_low is None or found.fitted_high is None or len(found.seeds) == 1:
        return examples(found.fitted)
    return (
        f"{examples(found.fitted)} ({examples(found.fitted_low)} to {examples(found.fitted_high)})"
    )


def _noise(found: MeasuredBatch) -> str:
    if found.noise_low is None or found.noise_high is None:
        return "not known"
    scale = "" if found.noise_scale is None else f", noise scale {examples(found.noise_scale)}"
    return f"{examples(found.noise_low)} to {examples(found.noise_high)}{scale}"


def draw_branches(title: str, found: MeasuredBatch, out: Path) -> Path:
    """Draw smoothed losses of all branches, and what each batch size takes to the base's loss."""
    figure = style.new_figure(11.4, 4.6, title)
    losses, needed = figure.subplots(1, 2)
    looks = style.ordered_looks([f"batch {size:,}" for size in found.batch_sizes])
    for size, look in zip(found.batch_sizes, looks.values(), strict=True):
        for branch in found.of(size):
            if branch.curve:
                x, y = zip(*branch.curve, strict=True)
                epochs = [value / found.window for value in x]
                losses.plot(epochs, y, color=look.colour, linewidth=1.3, alpha=0.8)
    losses.axvline(found.epochs, zorder=1, **style.GUIDE)
    losses.set_xlabel("epochs since the branches began")
    losses.set_ylabel("training loss, averaged over an epoch")
    losses.xaxis.set_major_locator(MaxNLocator(integer=True))
    shown = [y for branch in found.branches for _, y in branch.curve]
    if shown and min(shown) > 0.0 and max(shown) > 5.0 * min(shown):
        style.log_values(losses, *style.margins(shown))
    style.tidy(losses)
    _draw_needed(needed, found, looks)
    handles: list[Artist] = [
        *style.look_keys(looks),
        style.key("loss is compared here", **style.GUIDE),
        style.key("within the tolerance", color=style.GREY, linestyle=(0, (4, 2))),
        style.point_key("did not come to the loss", "x", markeredgewidth=1.6),
        style.key("median", color=style.GREY),
        Patch(facecolor=_MEASURED, alpha=0.25, label="critical batch, measured"),
        Patch(facecolor=_NOISE, alpha=0.3, label="critical batch, from the noise scale"),
    ]
    if found.fitted is not None:
        handles.append(style.key("E = E_min (1 + B / B_crit)", color="#882255", linestyle=":"))
    return style.finish(figure, handles, out)


def _draw_needed(axes: Axes, found: MeasuredBatch, looks: dict[str, style.Look]) -> None:
    style.powers_axis(axes, found.batch_sizes, "batch (examples)")
    axes.set_ylabel("examples to the loss / the base's")
    style.tidy(axes)
    left, right = axes.get_xlim()
    most = 1.0 + found.tolerance
    ratios = [b.ratio for b in found.branches if b.ratio is not None]
    top = 1.06 * max([*ratios, most])
    bottom = min([*ratios, 1.0])
    axes.set_ylim(bottom - 0.2 * (top - bottom), top + 0.1 * (top - bottom))  # room for the bands
    for branch in found.branches:
        look = looks[f"batch {branch.batch_size:,}"]
        if branch.ratio is None:
            axes.plot([branch.batch_size], [top], "x", color=look.colour, ms=7, mew=1.6, zorder=3)
        else:
            style.draw_point(axes, branch.batch_size, branch.ratio, look, hollow=False)
    medians = {
        size: statistics.median([math.inf if b.ratio is None else b.ratio for b in found.of(size)])
        for size in found.batch_sizes
    }
    known = {size: middle for size, middle in medians.items() if math.isfinite(middle)}
    axes.plot(list(known), list(known.values()), color=style.GREY, linewidth=1.2, zorder=2)
    axes.axhline(most, color=style.GREY, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    high = float(right if found.high is None else found.high)
    axes.axvspan(found.low, high, ymax=0.06, color=_MEASURED, alpha=0.25, linewidth=0.0)
    if found.noise_low is not None and found.noise_high is not None:
        low, high = (min(max(end, left), right) for end in (found.noise_low, found.noise_high))
        axes.axvspan(low, high, ymin=0.07, ymax=0.13, color=_NOISE, alpha=0.3, linewidth=0.0)
    if found.fitted is not None:
        base = 1.0 + found.base_batch / found.fitted
        places = [left * (right / left) ** (i / 100.0) for i in range(101)]
        heights = [(1.0 + size / found.fitted) / base for size in places]
        axes.plot(places, heights, color="#882255", linestyle=":", linewidth=1.6, zorder=2)
    axes.set_xlim(left, right)
