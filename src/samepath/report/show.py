"""The report of a run: `samepath show`.

In: a run's folder, and others to compare its losses with. Out: a folder with `losses.png`,
`noise.png`, whatever the recipe draws (`Recipe.show`), what was found out about the recipe, and
`index.html`, which holds it all. Guaranteed: the runs themselves are not changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from samepath.engine.state.metrics_log import TrainingClock
from samepath.engine.state.reopen import ReopenedRun, look_at
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.insight.folder import Kind, kind_of, read_finding
from samepath.report import style
from samepath.report.page import Section, write_page
from samepath.report.words import Rows, noise_meaning, noise_words, time_unit


def show_run(path: Path, out: Path | None = None, others: Sequence[Path] = ()) -> Path:
    """Draw a run; the page's path. `out` is the folder to draw into, RUN/show if not given."""
    run = look_at(path)
    draws = run.draws  # a recipe that has changed is refused before anything is drawn
    for other in others:
        RunFolder(other).read()
    folder = out or path / "show"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; give a folder")
    sections = [Section(heading="The run", table=_facts(run))]
    if run.losses_by_epoch():
        picture = folder / "losses.png"
        runs = (path, *others)
        told_by_name = len({each.name for each in runs}) == len(runs)
        labels = {each.name if told_by_name else str(each): each for each in runs}
        draw_losses(labels, picture, title=f"{run.config['recipe']}: loss")
        sections.append(Section(heading="Loss", picture=picture))
    sections += _noise_sections(run, folder)
    if draws:
        assert run.recipe.show is not None
        sections += run.recipe.show(run, folder)
    sections += finding_sections(path, run.config["recipe"])
    page = folder / "index.html"
    write_page(page, f"{path.name}: {run.config['recipe']}", sections)
    return page


def _noise_sections(run: ReopenedRun, folder: Path) -> list[Section]:
    metrics = run.folder.read_metrics()
    lines = noise_lines(metrics)
    if len(lines) < 2:  # no line to draw
        return []
    picture, batch_size = folder / "noise.png", run.config["batch_size"]
    draw_noise(metrics, batch_size, picture, f"{run.config['recipe']}: gradient noise scale")
    words = noise_meaning(lines[-1]["noise_scale"], batch_size)
    return [Section(heading="Gradient noise scale", words=words, picture=picture)]


def _facts(run: ReopenedRun) -> Rows:
    config, result = run.config, run.record["result"] or {}
    rows = [["", ""], ["status", run.record["status"]]]
    for name in ("steps", "epochs", "train_loss", "valid_loss", "num_workers", "digest"):
        if result.get(name) is not None:
            value = result[name]
            rows.append([name, f"{value:.6g}" if isinstance(value, float) else str(value)])
    if result.get("noise_scale") is not None:
        words = (result[f"noise_{name}"] for name in ("scale", "low", "high"))
        rows.append(["noise scale", noise_words(*words)])
    for name in ("recipe", "data", "batch_size", "grain_size", "seed", "threads"):
        if config.get(name) is not None:
            rows.append([name, str(config[name])])
    rows.append(["command", " ".join(run.record["starts"][-1]["command"])])
    rows.append(["torch", run.record["starts"][-1]["versions"]["torch"]])
    return rows


# --------------------------------------------------------------------------------------- figures


def draw_loss_curves(runs: Mapping[str, Path], out: Path, *, title: str) -> None:
    """Training loss by step, and validation loss at the end of each epoch, of up to four runs.

    Curves that lie on each other are drawn one inside the other, wide and pale below, narrow and
    dark on top, so that each can be seen.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    looks = ((9.0, "#9ecae1"), (6.0, "#08519c"), (3.2, "#fec44f"), (1.0, "#000000"))
    for (label, folder), (width, colour) in zip(runs.items(), looks, strict=False):
        lines = RunFolder(folder).read_metrics()
        train = [(line["step"], line["train_loss"]) for line in lines if "train_loss" in line]
        valid = [(line["step"], line["valid_loss"]) for line in lines if "valid_loss" in line]
        axes.plot(*zip(*train, strict=True), color=colour, linewidth=width, label=label)
        how: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 3}
        for step, loss in valid:
            axes.plot([step], [loss], "o", color=colour, markersize=1.5 * width + 2, **how)
    axes.plot([], [], "o", color="white", markeredgecolor="black", label="validation")
    axes.set(xlabel="step", ylabel="loss", yscale="log", title=title)
    axes.legend(frameon=False)
    _grid(axes)
    style.save_figure(figure, out)


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
    kinds = (("training", "epoch_train_loss", "Oranges"), ("validation", "valid_loss", "Blues"))
    for (label, lines), width, shade in zip(found.items(), widths, shades, strict=True):
        for name, key, hue in kinds:
            there = [line for line in lines if line.get(key) is not None]
            epochs = [line["epoch"] + 1 for line in there]
            losses = [float(line[key]) for line in there]
            marker = "o" if len(there) <= 30 else ""
            how: dict[str, Any] = {"color": colormaps[hue](shade), "marker": marker}
            words = f"{name}, {style.clip(label, 60)}"
            by_epoch.plot(epochs, losses, label=words, lw=width, ms=width + 3.0, **how)
            if key == "valid_loss":
                times, third = [line["time"] / seconds for line in there], width / 3.0
                by_time.plot(times, losses, lw=1.0 + third, ms=3.0 + third, **how)
    by_epoch.set(xlabel="epoch", ylabel="loss", yscale="log", title="by epoch")
    by_time.set(xlabel=unit, title="validation, by time")
    by_epoch.xaxis.get_major_locator().set_params(integer=True)
    for axes in (by_epoch, by_time):
        _grid(axes)
    figure.suptitle(title, fontsize=style.title_size(title), weight="bold", parse_math=False)
    fitting = 110 // (max(map(len, runs)) + len("validation, and a line"))
    fitting = max(1, min(len(runs), fitting))
    legend = figure.legend(loc="outside lower center", ncols=fitting, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    style.save_figure(figure, out)


def _epochs_of(folder: Path) -> list[dict[str, Any]]:
    """A run's lines at ends of epochs, each with `time`: seconds of training up to it."""
    clock = TrainingClock()
    timed = [(line, clock.advance(line["seconds"])) for line in RunFolder(folder).read_metrics()]
    return [{**line, "time": time} for line, time in timed if "epoch_train_loss" in line]


def noise_lines(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that say something of the noise scale."""
    return [line for line in metrics if line.get("noise_scale") is not None]


def draw_noise(metrics: Sequence[dict[str, Any]], batch_size: int, out: Path, title: str) -> None:
    """The noise scale by step with its interval, and the batch size to hold it against."""
    lines = noise_lines(metrics)
    figure = Figure(figsize=(8.0, 3.8), layout="constrained")
    axes = figure.add_subplot()
    scales = [line["noise_scale"] for line in lines]
    top = 4.0 * max(*scales, batch_size)
    known = [line for line in lines if line.get("noise_low") is not None]
    low = [max(line["noise_low"], 1.0) for line in known]
    high = [top if line["noise_high"] is None else min(line["noise_high"], top) for line in known]
    steps = [line["step"] for line in known]
    how: dict[str, Any] = {"color": "#9ecae1", "alpha": 0.6, "linewidth": 0.0}
    axes.fill_between(steps, low, high, label="95% interval", **how)
    axes.plot([line["step"] for line in lines], scales, color="#08519c", label="noise scale")
    axes.axhline(batch_size, color="#d95f02", linestyle="--", label=f"batch size {batch_size}")
    axes.set(xlabel="step", ylabel="examples", yscale="log")
    axes.set_ylim(top=top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(style.clip(title, 80), parse_math=False)
    _grid(axes)
    axes.legend(frameon=False, ncols=3, loc="upper left")
    style.save_figure(figure, out)


def _grid(axes: Axes) -> None:
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)


# -------------------------------------------------------------------------------------- findings


def finding_sections(run: Path, recipe: str) -> list[Section]:
    """What was found out about a run's recipe: of each kind the newest finding that is about it.

    Curvature must be of this very run; advice, a profile or a simulation of its recipe. Findings
    are looked for in the run's folder and in `insight/`, beside `runs/` and here. Each has a
    section with its verdict, and one for each picture.
    """
    newest: dict[Kind, tuple[Path, dict[str, Any]]] = {}
    sections = []
    for folder, kind in _finding_folders(run):
        try:
            content = read_finding(folder, kind)
        except UserError as error:
            sections.append(Section(heading=kind.capitalize(), words=str(error)))
            continue
        is_newer = kind not in newest or content["time"] > newest[kind][1]["time"]
        if is_newer and _is_about(content, run, recipe):
            newest[kind] = folder, content
    for kind, (folder, content) in newest.items():
        command = " ".join(map(str, content["command"]))
        sections.append(
            Section(
                heading=kind.capitalize(),
                words=str(content.get("verdict") or content.get("summary", "")),
                note=f"{folder}: {command}",
            )
        )
        for picture in sorted(folder.glob("*.png")):
            heading = f"{kind.capitalize()}: {picture.stem.replace('_', ' ')}"
            sections.append(Section(heading=heading, picture=picture))
    return sections


def _finding_folders(run: Path) -> Iterator[tuple[Path, Kind]]:
    places = {run.resolve(), run.resolve().parent.parent / "insight", Path("insight").resolve()}
    for place in sorted(places):
        for folder in _inside(place):
            kind = kind_of(folder)
            if kind is not None:
                yield folder, kind


def _is_about(content: dict[str, Any], run: Path, recipe: str) -> bool:
    if content["kind"] != "curvature":
        return bool(content["recipe"] == recipe)
    here = os.path.realpath(run)
    return any(os.path.realpath(each["path"]) == here for each in content["runs"])


def _inside(place: Path) -> list[Path]:
    """What a folder holds; nothing where there is none, or where it cannot be read."""
    try:
        return sorted(place.iterdir())
    except OSError:
        return []
