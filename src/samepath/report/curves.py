"""Loss curves of runs, on paper.

In: run folders by label. Out: a PNG. Curves that lie on each other are drawn one inside the other,
wide and pale below, narrow and dark on top, so that each can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from samepath.engine.state.metrics_log import TrainingClock
from samepath.engine.state.run_folder import RunFolder
from samepath.report.sheet import clip, save_figure, title_size
from samepath.report.study_words import time_unit

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
    save_figure(figure, out)


def draw_losses(runs: Mapping[str, Path], out: Path, *, title: str) -> None:
    """Training and validation loss by epoch, and validation loss by time, of runs by label.

    Runs on the same path lie on each other at the left, wide and pale below, narrow and dark on
    top, and apart at the right if they took different times.
    """
    figure = Figure(figsize=(10.0, 4.6))
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    by_epoch, by_time = figure.subplots(1, 2, sharey=True)
    found = {label: _epochs_of(folder) for label, folder in runs.items()}
    longest = max((line["time"] for lines in found.values() for line in lines), default=0.0)
    unit, seconds = time_unit(longest)
    widths = np.geomspace(8.0, 1.6, len(runs)) if len(runs) > 1 else np.array([2.0])
    shades = np.linspace(0.32, 1.0, len(runs)) if len(runs) > 1 else np.array([0.85])
    for (label, lines), width, shade in zip(found.items(), widths, shades, strict=True):
        for name, key, hue in (
            ("training", "epoch_train_loss", "Oranges"),
            ("validation", "valid_loss", "Blues"),
        ):
            there = [line for line in lines if line.get(key) is not None]
            losses = [float(line[key]) for line in there]
            how: dict[str, Any] = {
                "color": colormaps[hue](shade),
                "linewidth": width,
                "marker": "o" if len(there) <= 30 else "",
                "markersize": width + 3.0,
            }
            epochs = [line["epoch"] + 1 for line in there]
            by_epoch.plot(epochs, losses, label=f"{name}, {clip(label, 60)}", **how)
            if key == "valid_loss":
                how |= {"linewidth": 1.0 + width / 3.0, "markersize": 3.0 + width / 3.0}
                by_time.plot([line["time"] / seconds for line in there], losses, **how)
    by_epoch.set(xlabel="epoch", ylabel="loss", yscale="log", title="by epoch")
    by_time.set(xlabel=unit, title="validation, by time")
    by_epoch.xaxis.get_major_locator().set_params(integer=True)
    for axes in (by_epoch, by_time):
        axes.grid(alpha=0.3, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=title_size(title), weight="bold", parse_math=False)
    fitting = 110 // (max(map(len, runs)) + len("validation, and a line"))
    fitting = max(1, min(len(runs), fitting))
    legend = figure.legend(loc="outside lower center", ncols=fitting, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    save_figure(figure, out)


def _epochs_of(folder: Path) -> list[dict[str, Any]]:
    """A run's lines at ends of epochs, each with `time`: seconds of training up to it."""
    clock = TrainingClock()
    timed = [(line, clock.advance(line["seconds"])) for line in RunFolder(folder).read_metrics()]
    return [{**line, "time": time} for line, time in timed if "epoch_train_loss" in line]
