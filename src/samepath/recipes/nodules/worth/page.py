"""The report of `samepath worth`: `worth.json`, `worth.csv`, one figure and one page.

In: what it found. Out: the page's path. Guaranteed: `worth.html` opens without a network and
without the other files; `worth.csv` rounds nothing.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from samepath.console import count
from samepath.files import finite, write_atomically
from samepath.recipes.nodules.worth.compare import ARMS, Estimate, PairResult
from samepath.recipes.nodules.worth.runs import SCORES, Worth, to_json
from samepath.report import style
from samepath.report.page import Section, command_section, write_page
from samepath.report.words import Rows, Tables, facts_rows

JSON = "worth.json"
INTERVALS = (
    "AUC and accuracy are means over folds and seeds, of real nodules that neither the classifier "
    "nor the generator has seen. Interval: 95% of resamples of nodules (whole groups, within "
    "folds) and of seeds."
)
TESTS = (
    "p: no difference in AUC, from the same resamples for both; corrected by Holm for the "
    "comparisons that the verdict is about (generated nodules added). Over folds: Student's t with "
    "the variance of Nadeau and Bengio (2003). The verdict calls a difference certain where both "
    "say so, of at least three seeds."
)


def finish_worth(found: Worth, folder: Path) -> Path:
    """Write everything; the page's path."""
    _write_csv(found, folder / "worth.csv")
    page = folder / "worth.html"
    write_page(page, "What generated nodules are worth", _sections(found, folder))
    write_atomically(folder / JSON, json.dumps(finite(to_json(found)), indent=1) + "\n")
    return page


def tables_in_short(found: Worth) -> Tables:
    """What fits a terminal."""
    return [
        ("Classifiers", arms_table(found), INTERVALS),
        ("Differences", pairs_table(found), TESTS),
    ]


def arms_table(found: Worth) -> Rows:
    """A line per arm and share."""
    rows = [["trained on", "share", "real", "generated", "AUC", "accuracy"]]
    for each in found.arms:
        sizes = f"{each.num_real:,}", f"{each.num_generated:,}"
        values = _interval(each.auc), _interval(each.accuracy)
        rows.append([ARMS[each.arm], f"{each.percent}%", *sizes, *values])
    return rows


def pairs_table(found: Worth) -> Rows:
    """A line per comparison."""
    rows = [["", "against", "share", "AUC", "accuracy", "p", "corrected", "p over folds"]]
    for each in found.pairs:
        corrected = "" if each.p_corrected is None else f"{each.p_corrected:.2g}"
        p = f"{each.p:.2g}", corrected, f"{each.p_folds:.2g}"
        values = _interval(each.auc, "+"), _interval(each.accuracy, "+")
        rows.append([ARMS[each.arm], ARMS[each.against], f"{each.percent}%", *values, *p])
    return rows


def _interval(value: Estimate, sign: str = "") -> str:
    mean, low, high = (f"{x:{sign}.3f}" for x in (value.mean, value.low, value.high))
    return f"{mean} ({low} to {high})"


def _sections(found: Worth, folder: Path) -> list[Section]:
    return [
        Section(heading="Verdict", words=found.verdict),
        Section(
            heading="Classifiers",
            table=arms_table(found),
            note=INTERVALS,
            picture=draw_worth(found, folder / "worth.png"),
        ),
        Section(heading="Differences", table=pairs_table(found), note=TESTS),
        Section(heading="How it was done", table=_facts(found)),
        Section(
            heading="Digests",
            words="Of weights, buffers and optimizer state at the end of each run: the same at any "
            "number of workers.",
            table=[
                ["run", "digest"],
                *([folder, digest] for folder, digest in found.generators.items()),
                *([run.folder, run.digest] for run in found.runs),
            ],
            folded=True,
        ),
        *([command_section(found.command)] if found.command else []),
    ]


def _facts(found: Worth) -> Rows:
    groups = f"{found.num_groups:,}, never on both sides" if found.has_groups else None
    made = f"{found.generator_epochs} epochs on the training part of each fold and share"
    steps = f"{found.epochs} epochs on all real nodules; others about as many steps"
    return facts_rows(
        {
            "classifier": found.recipe,
            "its epochs": steps,
            "batches": f"{found.batch_size}, {found.optimizer}",
            "generator": found.generator,
            "the generator's epochs": f"{made}; weights of its lowest loss on a sixth of that",
            "real nodules": f"{found.num_examples:,}",
            "groups": groups,
            "generated": f"{found.times:g} for each real one",
            "folds": found.folds,
            "seeds": f"{found.seeds} of the classifiers; one generator per fold and share",
            "runs": f"{count(len(found.runs), 'classifier')}, "
            f"{count(len(found.generators), 'generator')}",
            "seed of the split": found.seed,
            "scores": f"{SCORES}, SHA-256 {found.predictions[:16]}...",
        }
    )


def _write_csv(found: Worth, out: Path) -> None:
    """A line per arm and share, with every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = ("mean", "low", "high")
    metrics = ("auc", "accuracy")
    head = ["arm", "percent", "num_real", "num_generated"]
    writer.writerow([*head, *(f"{metric}_{end}" for metric in metrics for end in ends)])
    for each in found.arms:
        values = [getattr(getattr(each, metric), end) for metric in metrics for end in ends]
        writer.writerow([*(getattr(each, name) for name in head), *values])
    write_atomically(out, text.getvalue())


# ---- the figure


def draw_worth(found: Worth, out: Path) -> Path:
    """Draw each arm's AUC by share of the real data, and what generated nodules change."""
    figure = style.new_figure(11.0, 4.4, "What generated nodules are worth to a classifier")
    left, right = figure.subplots(1, 2)
    percents = sorted({each.percent for each in found.arms})
    arms = [arm for arm in ARMS if any(each.arm == arm for each in found.arms)]
    looks = style.series_looks(arms)
    for place, arm in enumerate(arms):
        away = (place - (len(arms) - 1) / 2) * 0.13
        mine = {each.percent: each.auc for each in found.arms if each.arm == arm}
        _draw(left, [percents.index(p) + away for p in mine], list(mine.values()), looks[arm])
    left.axhline(0.5, zorder=1, **style.GUIDE)
    left.set(ylabel="AUC of real nodules held out")
    asked = [pair for pair in found.pairs if pair.p_corrected is not None]
    kinds = list(dict.fromkeys(pair.against for pair in asked))
    for place, against in enumerate(kinds):
        away = (place - (len(kinds) - 1) / 2) * 0.2
        pairs: list[PairResult] = [pair for pair in asked if pair.against == against]
        where = [percents.index(pair.percent) + away for pair in pairs]
        _draw(right, where, [pair.auc for pair in pairs], looks[pairs[0].arm])
    right.axhline(0.0, zorder=1, **style.GUIDE)
    right.set(ylabel="AUC gained by adding generated nodules")
    for axes in (left, right):
        axes.set(xlabel="share of the real training nodules", xlim=(-0.6, len(percents) - 0.4))
        axes.set_xticks(range(len(percents)), [f"{percent}%" for percent in percents])
        style.tidy(axes)
    keys = style.look_keys({ARMS[arm]: look for arm, look in looks.items()})
    keys.append(style.key("no skill; no gain", **style.GUIDE))
    keys.append(style.key("bars: 95% interval", color=style.GREY, lw=1.2))
    return style.finish(figure, keys, out)


def _draw(axes: Axes, places: list[float], values: list[Estimate], look: style.Look) -> None:
    means = [value.mean for value in values]
    bars = [
        [max(v.mean - v.low, 0.0) for v in values],
        [max(v.high - v.mean, 0.0) for v in values],
    ]
    how: dict[str, Any] = {"elinewidth": 1.2, "capsize": 2.5, "ecolor": look.colour, "zorder": 2}
    axes.errorbar(places, means, bars, fmt="none", **how)
    for place, mean in zip(places, means, strict=True):
        style.draw_point(axes, place, mean, look, hollow=False)
