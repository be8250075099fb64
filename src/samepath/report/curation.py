"""The reports of a curation, and of the comparison that says whether it helped.

In: a curation folder, or a Comparison. Out: `report.html` with Table I of Gahlot et al. 2020, the
map, k-distances and examples of what is dropped; or `comparison.html`, `.png` and `.json`.
Guaranteed: no two classes share colour and marker; a difference is called one only where the seeds
lie apart, and if they are so few that they often would by chance, the verdict says how often.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from samepath.curation.cache import read_arrays
from samepath.curation.cluster import k_distances
from samepath.curation.compare import FILTERED, FULL, RANDOM, ComparedRun, Comparison, to_json
from samepath.curation.keep import REASONS
from samepath.data.keep_list import KeepList, read_keep_list
from samepath.engine.state.checkpoint import write_atomically
from samepath.engine.state.run_folder import finite
from samepath.errors import UserError
from samepath.report.page import Section, write_page
from samepath.report.study import data_facts, origin_facts
from samepath.report.study_verdict import final_metric, metric_better, metric_text
from samepath.report.style import (
    Sheet,
    clip,
    cross_key,
    key,
    legend_beside,
    new_figure,
    powers_axis,
    save_figure,
    side_by_side,
    spread_key,
    tidy,
)
from samepath.report.words import Rows, listed, number
from samepath.study.results import Interval

PER_CLASS = 10
"""Examples of what is dropped, worst first."""
_TILE = 0.62
_MOST_CLASSES = 40
_TITLE = {
    "dbscan": "DBSCAN of each class on the map",
    "hdbscan": "HDBSCAN of each class on the map",
    "grid": "stratified sampling on a grid over the map",
}


def write_curation_report(folder: Path) -> Path:
    """Draw what a folder holds; the page's path."""
    about = json.loads((folder / "curation.json").read_text())
    keep_list = read_keep_list(folder / "keep.csv")
    try:
        mapped = read_arrays(folder / "map.safetensors")
        known = read_arrays(folder / "features.safetensors")
        file = folder / "images.safetensors"
        images = read_arrays(file)["images"] if file.exists() else None
    except ValueError as error:
        raise UserError(f"{error}; run samepath curate again") from None
    names = about["class_names"]
    number = len(keep_list)
    labels = np.zeros(number, np.int64) if keep_list.labels is None else keep_list.labels
    name = Path(about["recipe"]).stem
    pictures = {part: folder / f"{part}.png" for part in ("map", "classes", "kdistance", "dropped")}
    draw_map(
        mapped["map"], labels, names, pictures["map"], title=f"{name}: {number:,} training examples"
    )
    draw_classes(
        mapped["map"], labels, keep_list, names, pictures["classes"],
        title=f"{name}: what is dropped of each class",
    )  # fmt: skip
    if about["settings"]["method"] == "grid":
        pictures["kdistance"].unlink(missing_ok=True)
    else:
        considered = keep_list.kept | np.isin(keep_list.reasons, REASONS)
        draw_k_distances(
            mapped["map"], labels, considered, about["classes"], pictures["kdistance"],
            title=f"{name}: k-distances and eps",
        )  # fmt: skip
    worst = mapped.get("suspicion", known.get("losses", np.zeros(number)))
    if images is None or not _draw_dropped(images, labels, names, keep_list, worst, pictures):
        pictures["dropped"].unlink(missing_ok=True)
    page = folder / "report.html"
    write_page(page, f"{name}: curation", list(_sections(about, pictures)))
    return page


def _sections(about: dict[str, Any], pictures: dict[str, Path]) -> Iterator[Section]:
    kept, number = about["num_kept"], about["num_examples"]
    words = (
        f"{kept:,} of {number:,} training examples are kept; {number - kept:,} are dropped "
        f"({100 * about['reduction']:.2f}%). The features are those of the layer {about['layer']}."
    )
    yield Section(heading="What is kept", words=words, table=reduction_table(about))
    yield Section(heading="Classes", table=classes_table(about), note=_TITLE[_method(about)] + ".")
    if len(about["rounds"]) > 1:
        yield Section(heading="Rounds", table=rounds_table(about))
    yield Section(heading="The map", picture=pictures["map"])
    yield Section(heading="What is dropped of each class", picture=pictures["classes"])
    if pictures["kdistance"].exists():
        words = (
            "Distances to the k-th neighbour within the class, ascending, k being min_samples - 1; "
            "eps is where the curve bends upwards."
        )
        yield Section(heading="k-distances", words=words, picture=pictures["kdistance"])
    if pictures["dropped"].exists():
        words = f"Up to {PER_CLASS} of each class, the most suspicious first, with their reason."
        yield Section(
            heading="Examples of what is dropped", words=words, picture=pictures["dropped"]
        )
    settings = {**about["settings"], "layer": about["layer"], "network": about["network"]}
    rows = [[name, str(value)] for name, value in settings.items() if value not in (None, {})]
    yield Section(
        heading="Settings", table=[["", ""], *rows, ["command", " ".join(about["command"])]]
    )


def _method(about: dict[str, Any]) -> str:
    return str(about["settings"]["method"])


def reduction_table(about: dict[str, Any]) -> list[list[str]]:
    """As Table I of the paper: the network, and what it leaves."""
    kept, share = about["num_kept"], 100 * about["num_kept"] / about["num_examples"]
    left = f"{share:.2f}% or {kept:,} examples ({100 * about['reduction']:.2f}%)"
    network = Path(about["recipe"]).stem
    if str(about["network"]).endswith(".py"):
        network = Path(about["network"]).name
    return [["Network used for feature extraction", "Filtered data size (reduction)"],
            [network, left]]  # fmt: skip


def classes_table(about: dict[str, Any]) -> list[list[str]]:
    """Per class: before, after, clusters, eps, and how many for each reason."""
    found = {reason for facts in about["classes"] for reason in facts["reasons"]}
    reasons = [r for r in REASONS if r in found] + sorted(found - {*REASONS})
    grid = _method(about) == "grid"
    middle = ["cells"] if grid else ["clusters", "eps"]
    rows = [["class", "examples", "kept", "dropped", *middle, *reasons]]
    for facts in about["classes"]:
        number, kept = facts["num_examples"], facts["num_kept"]
        clusters = [str(facts["num_clusters"])]
        if not grid:
            clusters.append(_eps(facts))
        counts = [str(facts["reasons"].get(reason, 0)) for reason in reasons]
        share = f"{100 * (1 - kept / number):.1f}%"
        rows.append([facts["name"], f"{number:,}", f"{kept:,}", share, *clusters, *counts])
    total = [sum(f["reasons"].get(reason, 0) for f in about["classes"]) for reason in reasons]
    number, kept = about["num_examples"], about["num_kept"]
    share = f"{100 * about['reduction']:.1f}%"
    rows.append(["all", f"{number:,}", f"{kept:,}", share, *("" for _ in middle), *map(str, total)])
    return rows


def _eps(facts: dict[str, Any]) -> str:
    if facts["eps"] is None:
        return f"({facts['eps_from']})"
    how = "" if facts["eps_from"] == "knee" else f" ({facts['eps_from']})"
    return f"{facts['eps']:.3g}{how}"


def rounds_table(about: dict[str, Any]) -> list[list[str]]:
    rows = [["round", "examples", "kept", "network"]]
    for facts in about["rounds"]:
        before, kept = f"{facts['num_examples']:,}", f"{facts['num_kept']:,}"
        rows.append([str(facts["round"]), before, kept, str(facts["network"])])
    return rows


def _draw_dropped(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    names: Sequence[str],
    keep_list: KeepList,
    worst: NDArray[Any],
    pictures: dict[str, Path],
) -> bool:
    """A row of pictures for each class that something is dropped of; False if nothing is."""
    chosen: dict[int, NDArray[np.int64]] = {}
    for label in range(len(names)):
        rows = np.flatnonzero((labels == label) & ~keep_list.kept)
        if len(rows):
            chosen[label] = rows[np.argsort(-worst[rows], kind="stable")][:PER_CLASS]
    if not chosen:
        return False
    chosen = dict(list(chosen.items())[:_MOST_CLASSES])
    wide = images.shape[2] / images.shape[1]
    step, high = _TILE * wide + 0.34, _TILE + 0.42
    sheet = Sheet(1.5 + PER_CLASS * step + 0.1, len(chosen) * high + 0.2)
    for row, (label, rows) in enumerate(chosen.items()):
        top = 0.1 + row * high
        sheet.row_label(1.45, top + _TILE / 2, names[label])
        for column, example in enumerate(rows.tolist()):
            left = 1.5 + column * step + 0.17
            axes = sheet.axes(left, top, _TILE * wide, _TILE)
            axes.imshow(images[example], cmap="gray", vmin=0, vmax=255, aspect="auto")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(color="0.6", linewidth=0.5)
            middle = left + _TILE * wide / 2
            words = f"{example}\n{clip(keep_list.reasons[example], 15)}"
            sheet.text(middle, top + _TILE + 0.17, words, fontsize=6.5, color="0.25")
    sheet.save(pictures["dropped"])
    return True


# Okabe and Ito's, Tol's, then what is left: ten that differ by hue and lightness
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9",
    "#D55E00", "#882255", "#999933", "#332288", "#6E6E6E",
)  # fmt: skip
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*", "<", ">")
REASON_LOOKS = {
    "noise": ("#111111", "o"),
    "label error": ("#D00000", "X"),
    "outlier": ("#E69F00", "D"),
    "duplicate": ("#8E44AD", "s"),
    "near-duplicate": ("#8E44AD", "P"),
    "sampled out": ("#777777", "o"),
}
_OTHER_REASON = ("#8C564B", "v")
_KEPT = "#5B9BD0"
_OTHERS = "#E6E6E6"
_COLUMNS = 5
_PANEL = 2.3

Ints = NDArray[np.int64]


def class_looks(number: int) -> list[tuple[str, str]]:
    """A colour and a marker for each of so many classes."""
    if number <= len(COLOURS):
        return [(colour, "o") for colour in COLOURS[:number]]
    hues = [to_hex(colormaps["turbo"](0.04 + 0.92 * i / (number - 1))) for i in range(number)]
    return [(hue, _MARKERS[i % len(_MARKERS)]) for i, hue in enumerate(hues)]


def draw_map(
    places: NDArray[np.float32],
    labels: Ints,
    class_names: Sequence[str],
    out: Path,
    *,
    title: str,
) -> None:
    """All examples on the map, by class."""
    present = [label for label in range(len(class_names)) if (labels == label).any()]
    looks = class_looks(len(present))
    rows = max(1, math.ceil(len(present) / 40))
    figure = new_figure(9.6 + 1.2 * (rows - 1), 7.0, title)
    axes = figure.add_subplot()
    size = _size(len(places))
    # in one go and in the data's order: drawn class by class, the last would hide the others
    for marker in dict.fromkeys(marker for _, marker in looks):
        some = [label for label, look in zip(present, looks, strict=True) if look[1] == marker]
        colour_of = {label: looks[present.index(label)][0] for label in some}
        mine = np.isin(labels, some)
        colours = [colour_of[int(label)] for label in labels[mine]]
        _points(axes, places[mine], colours, size, marker, alpha=0.75)
    _plain(axes, places)
    handles = [
        key(f"{class_names[label]} ({int((labels == label).sum()):,})", color=colour,
            marker=marker, linestyle="", markersize=7)
        for label, (colour, marker) in zip(present, looks, strict=True)
    ]  # fmt: skip
    legend_beside(figure, handles)
    save_figure(figure, out)


def draw_classes(
    places: NDArray[np.float32],
    labels: Ints,
    keep_list: KeepList,
    class_names: Sequence[str],
    out: Path,
    *,
    title: str,
) -> None:
    """A panel for each class: what is kept and, by reason, what is dropped; the others behind."""
    present = [label for label in range(len(class_names)) if (labels == label).any()]
    columns = min(_COLUMNS, len(present))
    rows = math.ceil(len(present) / columns)
    figure = new_figure(max(columns * _PANEL + 2.4, 7.0), rows * (_PANEL + 0.35) + 0.6, title)
    reasons = np.array([clip(reason, 40) for reason in keep_list.reasons], dtype=object)
    dropped = ~keep_list.kept
    shown: list[str] = []
    for place, label in enumerate(present):
        axes = figure.add_subplot(rows, columns, place + 1)
        mine = labels == label
        size = 0.35 * _size(len(places) // 2)
        some = ~mine
        _points(axes, places[some], [_OTHERS] * int(some.sum()), 0.6 * size, "o", alpha=1.0)
        some = mine & ~dropped
        _points(axes, places[some], [_KEPT] * int(some.sum()), size, "o", alpha=0.8)
        for reason in _ordered(reasons[mine & dropped]):
            colour, marker = REASON_LOOKS.get(reason, _OTHER_REASON)
            some = mine & dropped & (reasons == reason)
            bigger = max(size, 2.5) * (1.5 if reason in ("noise", "sampled out") else 5.0)
            _points(axes, places[some], [colour] * int(some.sum()), bigger, marker, alpha=0.95)
            shown += [] if reason in shown else [reason]
        _plain(axes, places)
        number, kept = int(mine.sum()), int((mine & ~dropped).sum())
        share = f"{kept:,} of {number:,} ({100 * (1 - kept / number):.1f}% dropped)"
        axes.set_title(
            f"{clip(class_names[label], 24)}\n{share}", fontsize=8.5, loc="left", parse_math=False
        )
    looks = [("kept", _KEPT, "o"), ("other classes", _OTHERS, "o")]
    looks += [(reason, *REASON_LOOKS.get(reason, _OTHER_REASON)) for reason in _ordered(shown)]
    legend_beside(
        figure,
        [key(n, color=colour, marker=m, linestyle="", markersize=7) for n, colour, m in looks],
    )
    save_figure(figure, out)


def draw_k_distances(
    places: NDArray[np.float32],
    labels: Ints,
    considered: NDArray[np.bool_],
    classes: Sequence[dict[str, Any]],
    out: Path,
    *,
    title: str,
) -> None:
    """The sorted k-distances of each class, and the eps that was chosen on it."""
    drawn = [facts for facts in classes if facts["eps"] is not None]
    figure = new_figure(9.6, 5.6, title)
    axes = figure.add_subplot()
    handles, highest = [], 0.0
    for facts, (colour, marker) in zip(drawn, class_looks(len(drawn)), strict=True):
        mine = considered & (labels == (facts["label"] or 0))
        curve = k_distances(places[mine], facts["min_samples"] - 1)
        share = np.arange(1, len(curve) + 1) / len(curve)
        axes.plot(100 * share, curve, color=colour, linewidth=1.3)
        at = float(np.searchsorted(curve, facts["eps"], side="right") / len(curve))
        style: dict[str, Any] = {"markersize": 8, "markeredgecolor": "white"}
        axes.plot([100 * at], [facts["eps"]], marker, color=colour, zorder=3, **style)
        highest = max(highest, facts["eps"])
        words = f"{facts['name']}: eps {facts['eps']:.3g}"
        if facts["eps_from"] != "knee":
            words += f" ({facts['eps_from']})"
        handles.append(key(words, color=colour, marker=marker, markersize=6))
    axes.set_ylim(0, 4 * highest or 1.0)
    axes.set_xlim(0, 101)
    axes.set_xlabel("part of the class's points, in percent")
    axes.set_ylabel("distance to the k-th neighbour on the map")
    note = "points to the right of a mark are not at the heart of a cluster; curves go on upwards"
    axes.text(0.02, 0.97, note, transform=axes.transAxes, va="top", fontsize=8.5, color="0.35")
    tidy(axes)
    legend_beside(figure, handles)
    save_figure(figure, out)


def _ordered(reasons: Sequence[str] | NDArray[Any]) -> list[str]:
    """Reasons, the most frequent kinds first drawn, so that marks of the rare lie on top."""
    order = ["sampled out", "noise", "duplicate", "near-duplicate", "outlier", "label error"]
    found = set(reasons)
    return sorted(found - {*order}) + [reason for reason in order if reason in found]


def _points(
    axes: Axes,
    places: NDArray[np.float32],
    colours: Sequence[str],
    size: float,
    marker: str,
    *,
    alpha: float,
) -> None:
    if len(places):
        axes.scatter(
            places[:, 0], places[:, 1], c=colours, s=size, marker=marker, alpha=alpha,
            linewidths=0, rasterized=True,
        )  # fmt: skip


def _size(number: int) -> float:
    """The area of a point, in square points, with which so many neither vanish nor fill the map."""
    return float(np.clip(12_000 / max(number, 1), 1.5, 14.0))


def _plain(axes: Axes, places: NDArray[np.float32]) -> None:
    """No numbers: t-SNE's coordinates have no meaning. The same extent everywhere."""
    low, high = places.min(0), places.max(0)
    room = 0.03 * np.maximum(high - low, 1e-6)
    axes.set_xlim(float(low[0] - room[0]), float(high[0] + room[0]))
    axes.set_ylim(float(low[1] - room[1]), float(high[1] + room[1]))
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set(color="0.8")


CHANCE = 0.05
_VARIANT_LOOKS = {FULL: ("#0072B2", "o"), FILTERED: ("#D55E00", "s"), RANDOM: ("#7F7F7F", "^")}
_CALLED = {
    FULL: "all examples",
    FILTERED: "filtered",
    RANDOM: "as many, kept at random",
}


def finish_comparison(comparison: Comparison, folder: Path) -> tuple[Comparison, Path]:
    """Write everything; the comparison with its verdict, and the page's path."""
    comparison = replace(comparison, verdict=verdict(comparison))
    content = json.dumps(finite(to_json(comparison)), indent=1)
    write_atomically(folder / "comparison.json", content + "\n")
    page = folder / "comparison.html"
    title = f"{Path(comparison.recipe).stem}: did curation help?"
    write_page(page, title, list(_comparison_sections(comparison, folder)))
    return comparison, page


def comparison_table(comparison: Comparison) -> Rows:
    """The metric at the end by weight decay and batch size, a column for each kind of data."""
    names = [f"{_CALLED[v.name]} ({v.num_examples})" for v in comparison.variants]
    rows = [["weight decay", "batch size", *names]]
    for decay in comparison.weight_decays:
        for batch in comparison.batch_sizes:
            cells = [
                metric_text(comparison, _runs(comparison, variant.name, batch, decay))
                for variant in comparison.variants
            ]
            rows.append([number(decay), str(batch), *cells])
    return rows


def verdict(comparison: Comparison) -> str:
    """Filtered against all, and against as many at random, over every batch size and decay; and how
    far to believe it."""
    seeds = len(comparison.seeds)
    if seeds == 1:
        return "One seed cannot tell a difference from chance. Add --seeds 4 and run it again."
    places = [(b, d) for d in comparison.weight_decays for b in comparison.batch_sizes]
    against = [
        f"{_balance(comparison, places, FULL)} than all of it",
        f"{_balance(comparison, places, RANDOM)} than as much kept at random",
    ]
    kept = {v.name: v.num_examples for v in comparison.variants}
    share = 100.0 * kept[FILTERED] / kept[FULL]
    words = (
        f"Trained on the {share:.1f}% of the data that curation kept, {comparison.metric} after "
        f"{comparison.epochs} epochs is {against[0]}. It is {against[1]}."
    )
    by_chance = 2.0 / math.comb(2 * seeds, seeds)
    if by_chance > CHANCE:
        words += (
            f" With {seeds} seeds, two kinds of data that do not differ would seem to at "
            f"{100.0 * by_chance:.0f}% of the places: add --seeds 4 before believing it."
        )
    return words


def _balance(comparison: Comparison, places: Sequence[tuple[int, float]], other: str) -> str:
    """ "better at batch 64 and 256, the same within seeds at 1024 and worse nowhere"."""
    found: dict[str, list[str]] = {"better": [], "no different": [], "worse": []}
    unknown = 0
    for batch, decay in places:
        mine = interval(comparison, FILTERED, batch, decay)
        theirs = interval(comparison, other, batch, decay)
        if mine is None or theirs is None:
            unknown += 1
            continue
        sign = -1.0 if comparison.metric == "loss" else 1.0
        apart = mine.low > theirs.high or mine.high < theirs.low
        apart = apart and mine.median != theirs.median
        word = "no different" if not apart else "worse"
        if apart and sign * mine.median > sign * theirs.median:
            word = "better"
        several = len(comparison.weight_decays) > 1
        found[word].append(f"{batch}" + (f" (decay {number(decay)})" if several else ""))
    parts = [f"{word} at batch {listed(where)}" for word, where in found.items() if where]
    if unknown:
        parts.append(f"not known at {unknown} {'place' if unknown == 1 else 'places'}")
    return listed(parts)


def interval(comparison: Comparison, variant: str, batch: int, decay: float) -> Interval | None:
    """The metric over seeds; None unless more than half came through."""
    runs = _runs(comparison, variant, batch, decay)
    values = [v for v in (final_metric(comparison, run) for run in runs) if not math.isnan(v)]
    if 2 * len(values) <= len(runs):
        return None
    return Interval(median=statistics.median(values), low=min(values), high=max(values))


def draw_comparison(comparison: Comparison, out: Path) -> None:
    """A panel per weight decay: the metric against batch size, a line for each kind of data."""
    decays = comparison.weight_decays
    columns = min(len(decays), 3)
    rows = -(-len(decays) // columns)
    title = f"{Path(comparison.recipe).stem}: {comparison.metric} after {comparison.epochs} epochs"
    figure = new_figure(4.9 * columns + 2.8, 3.9 * rows + 0.4, title)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    beside = side_by_side(list(_VARIANT_LOOKS), comparison.batch_sizes)
    lost = False
    for axes, decay in zip(panels, decays, strict=False):
        for name, (colour, marker) in _VARIANT_LOOKS.items():
            found = {b: interval(comparison, name, b, decay) for b in comparison.batch_sizes}
            there = {b: v for b, v in found.items() if v is not None}
            lost = lost or len(there) < len(found)
            missing = [b * beside[name] for b in found if b not in there]
            across = axes.get_xaxis_transform()
            axes.plot(missing, [0.02] * len(missing), "x", color=colour, transform=across, mew=1.8)
            medians = [v.median for v in there.values()]
            spread = [
                [v.median - v.low for v in there.values()],
                [v.high - v.median for v in there.values()],
            ]
            axes.errorbar(
                [b * beside[name] for b in there],
                medians,
                spread if len(comparison.seeds) > 1 else None,
                color=colour,
                marker=marker,
                linewidth=1.6,
                markersize=5.5,
                elinewidth=1.1,
                capsize=2.5,
            )
        powers_axis(axes, comparison.batch_sizes, "batch size")
        if len(decays) > 1:
            axes.set_title(f"weight decay {number(decay)}", fontsize=10, loc="left")
        tidy(axes)
    for axes in panels[len(decays) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(f"{comparison.metric} ({metric_better(comparison)} is better)")
    counts = {v.name: v.num_examples for v in comparison.variants}
    handles = [
        key(f"{_CALLED[name]} ({counts[name]})", color=colour, marker=marker)
        for name, (colour, marker) in _VARIANT_LOOKS.items()
    ]
    if len(comparison.seeds) > 1:
        handles.append(spread_key())
    if lost:
        handles.append(cross_key("did not come through"))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _comparison_sections(comparison: Comparison, folder: Path) -> Iterator[Section]:
    yield Section(heading="Verdict", words=comparison.verdict)
    picture = folder / "comparison.png"
    draw_comparison(comparison, picture)
    yield Section(heading=f"{comparison.metric.capitalize()} by batch size", picture=picture)
    note = (
        f"At the end of each run; {metric_better(comparison)} is better. With several seeds: "
        "median (lowest to highest). All runs have the same epochs, so runs on fewer examples "
        "take fewer steps. A difference is called one where the seeds do not overlap."
    )
    yield Section(heading="In numbers", table=comparison_table(comparison), note=note)
    yield Section(heading="The comparison", table=_comparison_facts(comparison))


def _comparison_facts(comparison: Comparison) -> Rows:
    lists = [
        [f"{_CALLED[v.name]}", f"{v.num_examples} examples" + (f", {v.keep}" if v.keep else "")]
        for v in comparison.variants
    ]
    return [
        ["", ""],
        *data_facts(comparison),
        *lists,
        ["optimizer", comparison.optimizer],
        ["seeds", ", ".join(map(str, comparison.seeds))],
        ["grain", str(comparison.grain_size)],
        *origin_facts(comparison),
    ]


def _runs(comparison: Comparison, variant: str, batch: int, decay: float) -> list[ComparedRun]:
    wanted = (variant, batch, decay)
    return [r for r in comparison.runs if (r.variant, r.batch_size, r.weight_decay) == wanted]
