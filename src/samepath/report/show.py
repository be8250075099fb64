"""The report of a run: `samepath show`.

In: a run's folder, and others to compare its losses with. Out: a folder with `losses.svg`,
`metrics.svg`, `noise.svg`, whatever the recipe draws (`Recipe.show`), what was found out about the
recipe, and `index.html`, which holds it all. Guaranteed: the runs themselves are not changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.ticker import MaxNLocator

from samepath.engine.state.metrics_log import TrainingClock
from samepath.engine.state.reopen import ReopenedRun, look_at
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.insight.folder import Kind, kind_of, read_finding
from samepath.report import style
from samepath.report.page import Section, pictures_in, typed, write_page
from samepath.report.words import (
    Rows,
    duration,
    facts_rows,
    listed,
    noise_meaning,
    noise_words,
    number,
    rows_of,
    time_unit,
)


def show_run(path: Path, out: Path | None = None, others: Sequence[Path] = ()) -> Path:
    """Draw a run; the page's path. `out` is the folder to draw into, RUN/show if not given."""
    run = look_at(path)
    draws = run.draws  # a recipe that has changed is refused before anything is drawn
    for other in others:
        RunFolder(other).read()
    folder = out or path / "show"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; give a folder")
    recipe, batch_size = run.config["recipe"], _batch_size(run)
    sections = [Section(heading="The run", table=_facts(run))]
    if others:
        words, table = compared_runs((path, *others))
        sections.append(Section(heading="Runs compared", words=words, table=table))
    if run.losses_by_epoch():
        runs = (path, *others)
        told_by_name = len({each.name for each in runs}) == len(runs)
        labels = {each.name if told_by_name else str(each): each for each in runs}
        picture = draw_losses(labels, folder / "losses.svg", title=f"{recipe}: loss")
        sections.append(Section(heading="Loss", picture=picture))
    metrics = run.folder.read_metrics()
    if metric_names(metrics):
        picture = draw_metrics(metrics, folder / "metrics.svg", f"{recipe}: metrics")
        sections.append(Section(heading="Metrics", picture=picture))
    noise = noise_lines(metrics)
    if len(noise) > 1:  # else there is no line to draw
        title = f"{recipe}: gradient noise scale"
        picture = draw_noise(metrics, batch_size, folder / "noise.svg", title)
        words = noise_meaning(noise[-1]["noise_scale"], batch_size)
        sections.append(Section(heading="Gradient noise scale", words=words, picture=picture))
    if draws:
        assert run.recipe.show is not None
        sections += run.recipe.show(run, folder)
    sections += finding_sections(path, recipe)
    write_page(folder / "index.html", f"{path.name}: {recipe}", sections)
    return folder / "index.html"


def compared_runs(runs: Sequence[Path]) -> tuple[str, Rows]:
    """Which runs ended with the same bits, and a line for each run; columns in which no run says
    anything are left out."""
    records = [RunFolder(each).read() for each in runs]
    told_by_name = len({each.name for each in runs}) == len(runs)
    names = [each.name if told_by_name else str(each) for each in runs]
    lines = []
    for path, name, record in zip(runs, names, records, strict=True):
        said, config = record["result"] or {}, record["config"]
        took = [line["time"] for line in _epochs_of(path)][-1:]
        lines.append(
            {
                "run": name,
                "status": str(record["status"]),
                "workers": str(said.get("num_workers") or ""),
                "batch": str(said.get("batch_size") or config.get("batch_size") or ""),
                "strategy": str(config.get("strategy") or ""),
                "seed": str(config.get("seed", "")),
                "epochs": number(said.get("epochs")),
                "training loss": number(_value(said.get("train_loss"))),
                "validation loss": number(_value(said.get("valid_loss"))),
                "time": duration(took[0]) if took else "",
                "digest": str(said.get("digest") or "")[:12],
            }
        )
    columns = [name for name in lines[0] if any(line[name] for line in lines)]
    groups: dict[str, list[str]] = {}
    for line in lines:
        groups.setdefault(line["digest"], []).append(line["run"])
    alike = [each for digest, each in groups.items() if digest and len(each) > 1]
    words = [f"{listed(each)} ended with the same bits: the same path." for each in alike]
    if not alike:
        words = ["No two of these runs ended with the same bits."]
    return " ".join(words), rows_of([{name: line[name] for name in columns} for line in lines])


def _value(said: object) -> float | None:
    """A loss of run.json, where NaN and infinities are text."""
    return None if said is None else float(str(said))


def _batch_size(run: ReopenedRun) -> int:
    """The batch of the last epoch, which a strategy may have made larger than the recipe's."""
    said = run.record["result"] or run.record["starts"][-1]
    return int(said.get("batch_size") or run.config["batch_size"])


_CALLED = {
    "steps": "steps",
    "epochs": "epochs",
    "train_loss": "training loss",
    "valid_loss": "validation loss",
    "num_workers": "workers",
    "digest": "digest",
}


def _facts(run: ReopenedRun) -> Rows:
    start, result = run.record["starts"][-1], run.record["result"] or {}
    values = {name: result.get(name) for name in _CALLED}
    metrics: dict[str, dict[str, float]] = {
        # NaN and infinities are text in run.json
        kind: {n: float(v) for n, v in (result.get(kind) or {}).items() if n != "loss"}
        for kind in ("train_metrics", "metrics")
    }
    noise: list[Any] = [result.get(f"noise_{name}") for name in ("scale", "low", "high")]
    asked = ("recipe", "data", "batch_size", "grain_size", "seed", "threads")
    return facts_rows(
        {
            "status": run.record["status"],
            **{_CALLED[n]: f"{v:.6g}" if isinstance(v, float) else v for n, v in values.items()},
            **{f"training {name}": f"{v:.6g}" for name, v in metrics["train_metrics"].items()},
            **{f"validation {name}": f"{v:.6g}" for name, v in metrics["metrics"].items()},
            "target": run.config.get("target"),
            "elapsed": duration(_elapsed(run)),
            "noise scale": None if noise[0] is None else noise_words(*noise),
            **{name.replace("_", " "): run.config.get(name) for name in asked},
            "batch size": _batch_size(run),
            "command": typed(start["command"]),
            "torch": start["versions"]["torch"],
        }
    )


def _elapsed(run: ReopenedRun) -> float:
    """Seconds of training so far, over all starts of the run."""
    clock = TrainingClock()
    for line in run.folder.read_metrics():
        clock.advance(line.get("seconds", clock.last))
    return max(clock.total, float((run.record["result"] or {}).get("seconds") or 0.0))


# --------------------------------------------------------------------------------------- figures


def draw_loss_curves(runs: Mapping[str, Path], out: Path, *, title: str) -> Path:
    """Training loss by step, and validation loss at the end of each epoch, of up to four runs.

    Curves that lie on each other are drawn one inside the other, wide and pale below, narrow and
    dark on top, so that each can be seen.
    """
    figure = style.new_figure(9.6, 4.5, title)
    axes = figure.add_subplot()
    handles = []
    looks = ((9.0, "#9ecae1"), (6.0, "#08519c"), (3.2, "#fec44f"), (1.0, "#000000"))
    for (label, folder), (width, colour) in zip(runs.items(), looks, strict=False):
        lines = RunFolder(folder).read_metrics()
        train = [(line["step"], line["train_loss"]) for line in lines if "train_loss" in line]
        valid = [(line["step"], line["valid_loss"]) for line in lines if "valid_loss" in line]
        axes.plot(*zip(*train, strict=True), color=colour, linewidth=width)
        how: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 3}
        for step, loss in valid:
            axes.plot([step], [loss], "o", color=colour, markersize=1.5 * width + 2, **how)
        handles.append(style.key(label, color=colour, linewidth=width))
    handles.append(style.point_key("validation", color="white", markeredgecolor="black"))
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    style.tidy(axes)
    return style.finish(figure, handles, out)


def draw_losses(runs: Mapping[str, Path], out: Path, *, title: str) -> Path:
    """Training and validation loss by epoch, and validation loss by time, of runs by label.

    Runs on the same path lie on each other at the left, wide and pale below, narrow and dark on
    top, and apart at the right if they took different times.
    """
    figure = style.new_figure(10.0, 4.6, title)
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
            losses = [float(line[key]) for line in there]
            how: dict[str, Any] = {"color": colormaps[hue](shade)}
            how["marker"] = "o" if len(there) <= 30 else ""
            epochs = [line["epoch"] + 1 for line in there]
            words = f"{name}, {label}"
            by_epoch.plot(epochs, losses, label=words, lw=width, ms=width + 3.0, **how)
            if key == "valid_loss":
                times, third = [line["time"] / seconds for line in there], width / 3.0
                by_time.plot(times, losses, lw=1.0 + third, ms=3.0 + third, **how)
    by_epoch.set(xlabel="epoch", ylabel="loss", yscale="log", title="by epoch")
    by_time.set(xlabel=unit, title="validation, by time")
    by_epoch.xaxis.get_major_locator().set_params(integer=True)
    for axes in (by_epoch, by_time):
        style.tidy(axes)
    return style.finish(figure, by_epoch.get_lines(), out)


def _epochs_of(folder: Path) -> list[dict[str, Any]]:
    """A run's lines at ends of epochs, each with `time`: seconds of training up to it."""
    clock = TrainingClock()
    timed = [(line, clock.advance(line["seconds"])) for line in RunFolder(folder).read_metrics()]
    return [{**line, "time": time} for line, time in timed if "epoch_train_loss" in line]


def metric_names(metrics: Sequence[dict[str, Any]]) -> list[str]:
    """Names of what is known of epochs beside their losses: of training, validation or both."""
    names = {name for line in metrics for name in line if "epoch_train_loss" in line}
    found = {
        name.removeprefix(kind)
        for name in names
        for kind in ("epoch_train_", "valid_")
        if name.startswith(kind)
    }
    return sorted(found - {"loss"})


def draw_metrics(metrics: Sequence[dict[str, Any]], out: Path, title: str) -> Path:
    """Every metric by epoch, of training and validation."""
    names = metric_names(metrics)
    figure = style.new_figure(8.6, 1.4 + 2.4 * len(names), title)
    columns = figure.subplots(len(names), 1, squeeze=False, sharex=True)[:, 0]
    kinds = (("training", "epoch_train_", "#d95f02"), ("validation", "valid_", "#08519c"))
    for axes, name in zip(columns, names, strict=True):
        for label, kind, colour in kinds:
            there = [line for line in metrics if line.get(kind + name) is not None]
            epochs = [line["epoch"] + 1 for line in there]
            values = [float(line[kind + name]) for line in there]
            axes.plot(epochs, values, color=colour, marker="o", ms=4.0, label=label)
        axes.set(ylabel=name.replace("_", " "))
        style.tidy(axes)
    columns[-1].set(xlabel="epoch")
    columns[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return style.finish(figure, columns[0].get_lines(), out)


def noise_lines(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that say something of the noise scale."""
    return [line for line in metrics if line.get("noise_scale") is not None]


def draw_noise(metrics: Sequence[dict[str, Any]], batch_size: int, out: Path, title: str) -> Path:
    """The noise scale by step with its interval, and the batch size to hold it against."""
    lines = noise_lines(metrics)
    figure = style.new_figure(8.6, 3.8, title)
    axes = figure.add_subplot()
    scales = [line["noise_scale"] for line in lines]
    top = 4.0 * max(*scales, batch_size)
    known = [line for line in lines if line.get("noise_low") is not None]
    low = [max(line["noise_low"], 1.0) for line in known]
    high = [top if line["noise_high"] is None else min(line["noise_high"], top) for line in known]
    steps = [line["step"] for line in known]
    how: dict[str, Any] = {"color": "#9ecae1", "alpha": 0.6, "linewidth": 0.0}
    handles: list[Artist] = [axes.fill_between(steps, low, high, label="95% interval", **how)]
    steps = [line["step"] for line in lines]
    handles += axes.plot(steps, scales, color="#08519c", label="noise scale")
    words = f"batch size {batch_size}"
    handles.append(axes.axhline(batch_size, color="#d95f02", linestyle="--", label=words))
    axes.set(xlabel="step", ylabel="examples", yscale="log")
    axes.set_ylim(top=top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.tidy(axes)
    return style.finish(figure, handles, out)


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
        name = kind.capitalize()
        words = str(content.get("verdict") or content.get("summary", ""))
        note = f"{folder}: {' '.join(map(str, content['command']))}"
        sections.append(Section(heading=name, words=words, note=note))
        for picture in pictures_in(folder):
            heading = f"{name}: {picture.stem.replace('_', ' ')}"
            sections.append(Section(heading=heading, picture=picture))
    return sections


def _finding_folders(run: Path) -> Iterator[tuple[Path, Kind]]:
    """Folders with a finding; a place that is not there, or cannot be read, has none."""
    places = {run.resolve(), run.resolve().parent.parent / "insight", Path("insight").resolve()}
    folders: list[Path] = []
    for place in sorted(places):
        with suppress(OSError):
            folders += sorted(place.iterdir())
    for folder in folders:
        if (kind := kind_of(folder)) is not None:
            yield folder, kind


def _is_about(content: dict[str, Any], run: Path, recipe: str) -> bool:
    if content["kind"] != "curvature":
        return bool(content["recipe"] == recipe)
    here = os.path.realpath(run)
    return any(os.path.realpath(each["path"]) == here for each in content["runs"])
