"""The gradient noise scale along a run, on paper and in words.

In: a run's metrics and its batch size. Out: a PNG, and what it means for larger batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from samepath.report.sheet import clip, save_figure


def noise_lines(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that say something of the noise scale."""
    return [line for line in metrics if line.get("noise_scale") is not None]


def noise_words(value: float, low: float | None, high: float | None) -> str:
    """Such as "320 examples (95%: 250 to 410)"."""
    if low is None:
        return f"{value:.3g} examples"
    if high is None:
        return f"{value:.3g} examples (95%: at least {low:.3g})"
    return f"{value:.3g} examples (95%: {low:.3g} to {high:.3g})"


def draw_noise(metrics: Sequence[dict[str, Any]], batch_size: int, out: Path, title: str) -> None:
    """The scale by step with its interval, and the batch size it is to be held against."""
    lines = noise_lines(metrics)
    figure = Figure(figsize=(8.0, 3.8), layout="constrained")
    axes = figure.add_subplot()
    steps = [line["step"] for line in lines]
    top = 4.0 * max(max(line["noise_scale"] for line in lines), batch_size)
    told = [line for line in lines if line.get("noise_low") is not None]
    axes.fill_between(
        [line["step"] for line in told],
        [max(line["noise_low"], 1.0) for line in told],
        [top if line["noise_high"] is None else min(line["noise_high"], top) for line in told],
        color="#9ecae1",
        alpha=0.6,
        linewidth=0.0,
        label="95% interval",
    )
    axes.plot(steps, [line["noise_scale"] for line in lines], color="#08519c", label="noise scale")
    axes.axhline(batch_size, color="#d95f02", linestyle="--", label=f"batch size {batch_size}")
    axes.set(xlabel="step", ylabel="examples", yscale="log")
    axes.set_ylim(top=top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(clip(title, 80), parse_math=False)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper left")
    save_figure(figure, out)


def noise_meaning(value: float, batch_size: int) -> str:
    """What the scale says of the batch size."""
    ratio = value / batch_size
    if ratio >= 4.0:
        what = "a larger batch would save steps nearly in proportion"
    elif ratio >= 1.0:
        what = "a larger batch would still save steps, but less than in proportion"
    else:
        what = "a larger batch would hardly save steps"
    return (
        f"With a batch of {value:.3g} the gradient is half signal, half noise. "
        f"The batch has {batch_size}: {what}. The scale usually grows while a model learns."
    )
