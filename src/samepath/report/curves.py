"""Loss curves of runs, on paper.

In: run folders by label. Out: a PNG. Curves that lie on each other are drawn one inside the other,
wide and pale below, narrow and dark on top, so that each can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from samepath.engine.rundir import RunFolder

_COLOURS = ("#9ecae1", "#08519c", "#fec44f", "#000000")


def draw_loss_curves(runs: Mapping[str, Path], out: Path, *, title: str) -> None:
    """Training loss by step, and validation loss at the end of each epoch."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    widths = (9.0, 6.0, 3.2, 1.0)
    for (label, folder), width, colour in zip(runs.items(), widths, _COLOURS, strict=False):
        lines = RunFolder(folder).read_metrics()
        train = [(line["step"], line["train_loss"]) for line in lines if "train_loss" in line]
        valid = [(line["step"], line["valid_loss"]) for line in lines if "valid_loss" in line]
        axes.plot(*zip(*train, strict=True), color=colour, linewidth=width, label=label)
        if valid:
            axes.plot(
                *zip(*valid, strict=True),
                "o",
                color=colour,
                markeredgecolor="black",
                markeredgewidth=0.6,
                markersize=1.5 * width + 2,
                zorder=3,
            )
    axes.plot([], [], "o", color="white", markeredgecolor="black", label="validation")
    axes.set(xlabel="step", ylabel="loss", yscale="log", title=title)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3, which="both")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
