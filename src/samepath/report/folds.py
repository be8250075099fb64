"""The report of a cross-validation: `folds.json`, `folds.csv`, one figure and one page.

In: what `samepath folds` found. Out: the same with its verdict, and the page's path. Guaranteed:
`folds.html` opens without a network and without the other files; `folds.csv` rounds nothing.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from samepath.console import count, sentence
from samepath.files import finite, write_atomically
from samepath.output.predict import FOLDS, OUT_OF_FOLD
from samepath.report import style
from samepath.report.page import Section, command_section, write_page
from samepath.report.words import ENDED, Rows, Tables, facts_rows, listed, number, percent
from samepath.study.calibration import Calibration
from samepath.study.folds import FoldRun, Folds, to_json

INTERVAL_NOTE = (
    "Interval: 95%, by Student's t with the variance of Nadeau and Bengio (2003), since folds "
    "share most of their training data. With few folds it is wide, and it may reach beyond what a "
    "metric can be: it is not cut off."
)
BEST_NOTE = (
    "The weights of a fold are its best by the examples it held out, so that these numbers are "
    "somewhat better than those of new data will be."
)
CALIBRATION_NOTE = (
    "Examples by the highest probability that the model which has not seen them gives. Accuracy: "
    "how often that class is the right one. Expected calibration error: the mean difference of "
    "the two, each part weighed by its examples (Guo et al. 2017). With few examples in a part "
    "chance alone makes a difference."
)
LOSS = "loss"


def finish_folds(found: Folds, folder: Path) -> tuple[Folds, Path]:
    """Write everything; the cross-validation with its verdict, and the page's path."""
    found = replace(found, verdict=verdict(found))
    _write_csv(found, folder / "folds.csv")
    page = folder / "folds.html"
    title = f"{found.recipe}: {count(found.folds, 'fold')}"
    write_page(page, title, _sections(found, folder))
    write_atomically(folder / FOLDS, json.dumps(finite(to_json(found)), indent=1) + "\n")
    return found, page


def tables_in_short(found: Folds) -> Tables:
    """What fits a terminal."""
    tables = [("Examples held out", folds_table(found), _note(found))]
    if found.calibration is not None:
        said = f"Calibration: expected error {percent(found.calibration.error)} points"
        tables.append((said, calibration_table(found.calibration), CALIBRATION_NOTE))
    return tables


def verdict(found: Folds) -> str:
    """One or two sentences."""
    failed = [run for run in found.runs if run.ended == "diverged"]
    if failed:
        names = listed(name_of(found, run) for run in failed)
        return f"{sentence(names)} diverged; there is no mean over all folds."
    words = [
        f"{name} {number(each.mean)} (95%: {number(each.low)} to {number(each.high)})"
        for name, each in found.metrics.items()
    ]
    over = count(found.folds, "fold")
    if found.repeats > 1:
        over += f", {found.repeats} times"
    said = f"Mean over {over}: {listed(words)}."
    if found.pooled:
        pooled = listed(f"{name} {number(value)}" for name, value in found.pooled.items())
        said += f" All out-of-fold predictions together: {pooled}."
    return said


def name_of(found: Folds, run: FoldRun) -> str:
    """A fold in words."""
    return f"fold {run.fold}" + (f" of repeat {run.repeat}" if found.repeats > 1 else "")


def folds_table(found: Folds) -> Rows:
    """A line per fold, and the mean with its interval."""
    names = list(found.metrics)
    rows = [["", "trained on", "held out", "epochs", "ended", *names]]
    for run in found.runs:
        epochs = number(run.epochs) + (" (best)" if run.weights == "best" else "")
        values = [number(run.metrics.get(name, math.nan)) for name in names]
        sizes = f"{run.num_train:,}", f"{run.num_held_out:,}"
        rows.append([name_of(found, run), *sizes, epochs, ENDED[run.ended], *values])
    means = list(found.metrics.values())
    rows.append(["mean", "", "", "", "", *(number(each.mean) for each in means)])
    ends = [f"{number(each.low)} to {number(each.high)}" for each in means]
    rows.append(["95% interval", "", "", "", "", *ends])
    if found.pooled:
        together = [number(found.pooled[name]) if name in found.pooled else "" for name in names]
        rows.append(["all together", "", "", "", "", *together])
    return rows


def _note(found: Folds) -> str:
    notes = [INTERVAL_NOTE]
    if any(run.weights == "best" for run in found.runs):
        notes.append(BEST_NOTE)
    if found.pooled:
        notes.append(
            "All together: evaluate_all of the out-of-fold outputs of all examples"
            + (", mean over repeats." if found.repeats > 1 else ".")
        )
    return " ".join(notes)


def _sections(found: Folds, folder: Path) -> list[Section]:
    return [
        Section(heading="Verdict", words=found.verdict),
        Section(
            heading="Folds",
            table=folds_table(found),
            note=_note(found),
            picture=draw_folds(found, folder / "folds.svg"),
        ),
        *_calibration_sections(found, folder),
        Section(heading="The split", table=_facts(found)),
        Section(
            heading="Digests",
            words="Of weights, buffers and optimizer state at the end of each run: the same at any "
            "number of workers.",
            table=[["", "digest"], *([name_of(found, run), run.digest] for run in found.runs)],
            folded=True,
        ),
        *([command_section(found.command)] if found.command else []),
    ]


def _calibration_sections(found: Folds, folder: Path) -> list[Section]:
    if found.calibration is None:
        return []
    error = f"{percent(found.calibration.error)} percentage points"
    words = f"Expected calibration error of the out-of-fold predictions: {error}."
    return [
        Section(
            heading="Calibration",
            words=words,
            table=calibration_table(found.calibration),
            note=CALIBRATION_NOTE,
            picture=draw_calibration(found.recipe, found.calibration, folder / "calibration.svg"),
        )
    ]


def calibration_table(calibration: Calibration) -> Rows:
    """A line for each part of the confidence that has examples, in percent."""
    rows = [["confidence", "examples", "mean confidence (%)", "accuracy (%)"]]
    for part in calibration.parts:
        between = f"{100 * part.low:.0f} to {100 * part.high:.0f}%"
        shares = percent(part.confidence), percent(part.accuracy)
        rows.append([between, f"{part.num_examples:,}", *shares])
    return rows


def _facts(found: Folds) -> Rows:
    what = {"all": "training and validation data together", "train": "training data"}
    return facts_rows(
        {
            "recipe": found.recipe,
            "examples": f"{found.num_examples:,} ({what[found.examples]})",
            "never on both sides": found.groups,
            "balanced": found.stratify,
            "batch size": found.batch_size,
            "optimizer": found.optimizer,
            "seed": found.seed,
            "out-of-fold predictions": f"{OUT_OF_FOLD}, SHA-256 {found.predictions[:16]}...",
        }
    )


def _write_csv(found: Folds, out: Path) -> None:
    """A line per fold, with every digit."""
    names = list(found.metrics)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["repeat", "fold", "num_train", "num_held_out", "epochs", "weights", "ended", "digest"]
    writer.writerow([*head, *names])
    for run in found.runs:
        values = [run.metrics.get(name, math.nan) for name in names]
        writer.writerow([*(getattr(run, name) for name in head), *values])
    write_atomically(out, text.getvalue())


# ---- the figure


def draw_folds(found: Folds, out: Path) -> Path:
    """Draw the validation loss of each fold by epoch, with a point at the weights that are judged;
    and a metric of each fold with the mean and its interval."""
    metric = next((name for name in found.metrics if name != LOSS), LOSS)
    figure = style.new_figure(11.0, 4.4, f"{found.recipe}: {count(found.folds, 'fold')}")
    curves, values = figure.subplots(1, 2, width_ratios=[1.3, 1.0])
    looks = style.series(found.folds)
    for run in found.runs:
        look = looks[run.fold - 1]
        alpha = 1.0 if run.repeat == 1 else 0.4
        ends = {end.epoch: end.valid_loss for end in run.curve}
        known = {epoch: v for epoch, v in ends.items() if v is not None and math.isfinite(v)}
        curves.plot(list(known), list(known.values()), color=look.colour, lw=1.4, alpha=alpha)
        if run.epochs in known:
            curves.plot([run.epochs], [known[int(run.epochs)]], look.marker, color=look.colour)
        value = run.metrics.get(metric, math.nan)
        place = run.fold + (run.repeat - (found.repeats + 1) / 2) * 0.6 / found.repeats
        values.plot([place], [value], look.marker, color=look.colour, alpha=alpha, zorder=3)
    curves.set(xlabel="epoch", ylabel="loss of the examples held out")
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    mean = found.metrics[metric]
    if math.isfinite(mean.mean):
        values.axhline(mean.mean, zorder=1, **style.GUIDE)
        values.axhspan(mean.low, mean.high, color="0.9", zorder=0, lw=0)
    values.set(xlabel="fold", ylabel=metric, xlim=(0.4, found.folds + 0.6))
    values.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    for axes in (curves, values):
        style.tidy(axes)
    named = {f"fold {place + 1}": look for place, look in enumerate(looks[:12])}
    keys = style.look_keys(named)
    keys += [style.key("mean", **style.GUIDE), style.key("95% interval", color="0.88", lw=7)]
    if found.repeats > 1:
        keys.append(style.key("pale: further repeats", color=style.GREY, alpha=0.4))
    return style.finish(figure, keys, out)


def draw_calibration(recipe: str, calibration: Calibration, out: Path) -> Path:
    """Draw accuracy against confidence, with the number of examples of each part below."""
    figure = style.new_figure(6.4, 5.6, f"{recipe}: calibration")
    shares, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3.0, 1.0])
    (look,) = style.series(1)
    parts = calibration.parts
    confidences = [part.confidence for part in parts]
    shares.plot([0, 1], [0, 1], zorder=1, **style.GUIDE)
    accuracies = [part.accuracy for part in parts]
    shares.plot(confidences, accuracies, color=look.colour, marker=look.marker, lw=1.4)
    shares.set(ylabel="accuracy", xlim=(0.0, 1.0), ylim=(-0.03, 1.03))
    for part in parts:
        width = part.high - part.low
        counts.bar(part.low, part.num_examples, width, align="edge", color=look.colour, alpha=0.5)
    counts.set(xlabel="confidence (highest probability)", ylabel="examples")
    counts.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
    for axes in (shares, counts):
        style.tidy(axes)
    keys = style.look_keys({"out-of-fold predictions": look})
    keys.append(style.key("accuracy is confidence", **style.GUIDE))
    return style.finish(figure, keys, out)
