"""The reports of a curation, and of the comparison that says whether it helped.

In: a curation folder, or a Comparison. Out: `report.html` with Table I of Gahlot et al. 2020, the
map, k-distances and examples of what is dropped; or `comparison.html`, `.svg` and `.json`.
Guaranteed: no two classes share colour and marker; a difference is called one only where the seeds
lie apart, and if they are so few that they often would by chance, the verdict says how often.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from samepath.console import SilentWatcher, Watcher, count, stops_at_once
from samepath.curation.cluster import k_distances
from samepath.curation.colours import LIGHT, class_colours
from samepath.curation.compare import FILTERED, FULL, RANDOM, ComparedRun, Comparison, to_json
from samepath.curation.folder import read_arrays
from samepath.curation.label_noise import none_seen
from samepath.curation.reasons import REASONS
from samepath.data.keep_list import KeepList, read_keep_list
from samepath.errors import UserError
from samepath.files import finite, write_atomically
from samepath.report import style
from samepath.report.page import Section, write_page
from samepath.report.study import with_origin
from samepath.report.study_verdict import metric_better, metric_interval, metric_text
from samepath.report.words import Rows, facts_rows, listed, number, rows_of
from samepath.study.results import Interval

_FIGURES = 4
PER_CLASS = 10
"""Examples of what is dropped, worst first."""
_TILE = 0.62
_MOST_CLASSES = 40
_TABLE_PAIRS, _DRAWN_PAIRS = 20, 12
"""Pairs of classes that are confused, in the table and in the figure."""
Ints = NDArray[np.int64]
Places = NDArray[np.float32]

_TITLE = {
    "dbscan": "DBSCAN of each class on the map",
    "hdbscan": "HDBSCAN of each class on the map",
    "grid": "stratified sampling on a grid over the map",
}


def write_curation_report(folder: Path, watcher: Watcher | None = None) -> Path:
    """Draw what a folder holds; the page's path. A figure is shown as begun, so that a person knows
    what is waited for."""
    watcher = watcher or SilentWatcher()
    what = "figures"

    def told(done: int, figure: str) -> None:
        watcher.progress(what, done, _FIGURES, f"{figure}, {done + 1} of {_FIGURES}")

    try:
        with stops_at_once():
            return _write_curation_report(folder, told)
    finally:
        watcher.end(what)


def _write_curation_report(folder: Path, told: Callable[[int, str], None]) -> Path:
    about = json.loads((folder / "curation.json").read_text())
    keep_list = read_keep_list(folder / "keep.csv")
    try:
        mapped = read_arrays(folder / "map.safetensors")
        known = read_arrays(folder / "features.safetensors")
        file = folder / "images.safetensors"
        images = read_arrays(file)["images"] if file.exists() else None
    except ValueError as error:
        raise UserError(f"{error}; run samepath curate again") from None
    names, number = about["class_names"], len(keep_list)
    labels = np.zeros(number, np.int64) if keep_list.labels is None else keep_list.labels
    name, places = Path(about["recipe"]).stem, mapped["map"]
    pictures = {}
    title = f"{name}: {number:,} training examples"
    told(0, "map")
    pictures["map"] = draw_map(places, labels, names, folder / "map.png", title=title)
    title = f"{name}: examples dropped from each class"
    out = folder / "classes.png"
    told(1, "classes")
    pictures["classes"] = draw_classes(places, labels, keep_list, names, out, title=title)
    for old in ("kdistance.png", "dropped.png", "label_noise.svg"):  # of other settings
        (folder / old).unlink(missing_ok=True)
    if about["settings"]["method"] != "grid":
        considered = keep_list.kept | np.isin(keep_list.reasons, REASONS)
        out, title = folder / "kdistance.png", f"{name}: k-distances and eps"
        told(2, "k-distances")
        pictures["kdistance"] = draw_k_distances(
            places, labels, considered, about["classes"], len(names), out, title=title
        )
    if (noise := about.get("label_noise")) is not None and noise["confusions"]:
        out, title = folder / "label_noise.svg", f"{name}: which label is written for which class"
        pictures["label_noise"] = draw_confusions(noise, out, title=title)
    if images is not None and not keep_list.kept.all():
        worst = mapped.get("suspicion", known.get("losses", np.zeros(number)))
        out = folder / "dropped.png"
        told(3, "dropped examples")
        pictures["dropped"] = draw_dropped(images, labels, names, keep_list, worst, out)
    page = folder / "report.html"
    write_page(page, f"{name}: curation", list(_sections(about, pictures)))
    return page


def _sections(about: dict[str, Any], pictures: dict[str, Path]) -> Iterator[Section]:
    kept, number = about["num_kept"], about["num_examples"]
    dropped = f"{100 * about['reduction']:.2f}%"
    words = (
        f"{kept:,} of {number:,} training examples are kept; {number - kept:,} are dropped "
        f"({dropped}). The features are those of the layer {about['layer']}."
    )
    file = str(about["network"])  # Table I of the paper: the network, and what it leaves
    network = Path(file).name if file.endswith(".py") else Path(about["recipe"]).stem
    left = f"{100 * kept / number:.2f}% or {kept:,} examples ({dropped})"
    head = ["Network used for feature extraction", "Filtered data size (reduction)"]
    yield Section(heading="What is kept", words=words, table=[head, [network, left]])
    note = f"{_TITLE[about['settings']['method']]}."
    yield Section(heading="Classes", table=classes_table(about), note=note)
    if (noise := about.get("label_noise")) is not None:
        yield Section(
            heading="Wrong labels",
            words=noise_words(noise, number),
            table=confusions_table(noise),
            picture=pictures.get("label_noise"),
            note=_NOISE_NOTE,
        )
    if len(about["rounds"]) > 1:
        names = {"round": "round", "examples": "num_examples", "kept": "num_kept"}
        lines = [
            {
                **{name: f"{each[key]:,}" for name, key in names.items()},
                "network": str(each["network"]),
            }
            for each in about["rounds"]
        ]
        yield Section(heading="Rounds", table=rows_of(lines))
    yield Section(heading="The map", picture=pictures["map"])
    yield Section(heading="Examples dropped from each class", picture=pictures["classes"])
    if "kdistance" in pictures:
        words = (
            "Distances to the k-th neighbour within the class, ascending, k being min_samples - 1; "
            "eps is where the curve bends upwards."
        )
        yield Section(heading="k-distances", words=words, picture=pictures["kdistance"])
    if "dropped" in pictures:
        words = f"Up to {PER_CLASS} of each class, the most suspicious first, with their reason."
        yield Section(heading="Dropped examples", words=words, picture=pictures["dropped"])
    settings = {**about["settings"], "layer": about["layer"], "network": about["network"]}
    given = {name: value for name, value in settings.items() if value != {}}
    table = facts_rows({**given, "command": " ".join(about["command"])})
    yield Section(heading="Settings", table=table)


def classes_table(about: dict[str, Any]) -> Rows:
    """Per class: before, after, clusters, eps, and how many for each reason."""
    found = {reason for facts in about["classes"] for reason in facts["reasons"]}
    reasons = [r for r in REASONS if r in found] + sorted(found - {*REASONS})
    grid = about["settings"]["method"] == "grid"

    def line(facts: dict[str, Any], clusters: list[str]) -> list[str]:
        number, kept = facts["num_examples"], facts["num_kept"]
        share = f"{100 * (1 - kept / number):.1f}%"
        counts = [f"{facts['reasons'].get(reason, 0):,}" for reason in reasons]
        return [facts["name"], f"{number:,}", f"{kept:,}", share, *clusters, *counts]

    middle = ["cells"] if grid else ["clusters", "eps"]
    rows = [["class", "examples", "kept", "dropped", *middle, *reasons]]
    for facts in about["classes"]:
        rows.append(line(facts, [f"{facts['num_clusters']:,}", _eps(facts)][: len(middle)]))
    totals = {r: sum(f["reasons"].get(r, 0) for f in about["classes"]) for r in reasons}
    rows.append(line({**about, "name": "all", "reasons": totals}, ["" for _ in middle]))
    return rows


def _eps(facts: dict[str, Any]) -> str:
    if facts["eps"] is None:
        return f"({facts['eps_from']})"
    how = "" if facts["eps_from"] == "knee" else f" ({facts['eps_from']})"
    return f"{facts['eps']:.3g}{how}"


_NOISE_NOTE = (
    "Expected numbers of examples of each pair, the most frequent first. Intervals (95%, by "
    "bootstrap) are of chance alone: the judge may be wrong too. What is taken for wrong is listed "
    "under Classes as label errors and outliers."
)


def noise_words(noise: dict[str, Any], number: int) -> str:
    """How many labels are wrong, by which judge, and how many were taken."""
    low, high = 100 * noise["rate_low"], 100 * noise["rate_high"]
    words = (
        f"An estimated {100 * noise['rate']:.1f}% of the labels are wrong ({low:.1f} to "
        f"{high:.1f}%)."
    )
    if (none := none_seen(noise, number)) is not None:
        words = f"{none[0].upper()}{none[1:]}."
    return (
        f"{words} The judge: {noise['judge']}. {count(noise['num_taken'], 'example')} "
        f"{'is' if noise['num_taken'] == 1 else 'are'} taken for wrong."
    )


def confusions_table(noise: dict[str, Any], most: int = _TABLE_PAIRS) -> Rows:
    """Which class is written for which, and how often, with intervals; nothing without any."""
    if not noise["confusions"]:
        return []
    rows = [["right class", "written as", "examples", "95% interval"]]
    for pair in noise["confusions"][:most]:
        interval = f"{pair['low']:,.0f} to {pair['high']:,.0f}"
        rows.append([pair["right"], pair["written"], f"{pair['number']:,.0f}", interval])
    return rows


# --------------------------------------------------------------------------- figures of a curation


def draw_confusions(noise: dict[str, Any], out: Path, *, title: str) -> Path:
    """The pairs of classes that are most often written for one another, with intervals."""
    pairs = noise["confusions"][:_DRAWN_PAIRS]
    figure = style.new_figure(8.2, 1.2 + 0.3 * len(pairs), title)
    axes = figure.add_subplot()
    numbers = np.array([[pair["number"], pair["low"], pair["high"]] for pair in pairs])
    reach = [numbers[:, 0] - numbers[:, 1], numbers[:, 2] - numbers[:, 0]]
    look = style.series(1)[0]
    how: dict[str, Any] = {"fmt": "o", "color": look.colour, "elinewidth": 1.4, "capsize": 3}
    axes.errorbar(numbers[:, 0], range(len(pairs)), xerr=np.maximum(reach, 0.0), **how)
    words = [f"{style.clip(p['right'], 20)} as {style.clip(p['written'], 20)}" for p in pairs]
    axes.set_yticks(range(len(pairs)), words, fontsize=9)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("examples, expected (bars: 95% intervals, chance alone)")
    style.tidy(axes)
    return style.save_figure(figure, out)


def draw_dropped(
    images: NDArray[np.uint8],
    labels: Ints,
    names: Sequence[str],
    keep_list: KeepList,
    worst: NDArray[Any],
    out: Path,
) -> Path:
    """A row of pictures for each class that something is dropped of."""
    chosen: dict[int, list[int]] = {}
    for label in np.unique(labels[~keep_list.kept])[:_MOST_CLASSES].tolist():
        rows = np.flatnonzero((labels == label) & ~keep_list.kept)
        chosen[label] = rows[np.argsort(-worst[rows], kind="stable")][:PER_CLASS].tolist()
    wide = images.shape[2] / images.shape[1]
    step, high = _TILE * wide + 0.34, _TILE + 0.42
    sheet = style.Sheet(1.5 + PER_CLASS * step + 0.1, len(chosen) * high + 0.2)
    for row, (label, examples) in enumerate(chosen.items()):
        top = 0.1 + row * high
        sheet.row_label(1.45, top + _TILE / 2, names[label])
        for column, example in enumerate(examples):
            left = 1.5 + column * step + 0.17
            sheet.tile(images[example], left, top, _TILE, wide=wide, white=255.0)
            middle = left + _TILE * wide / 2
            words = f"{example}\n{style.clip(keep_list.reasons[example], 15)}"
            sheet.text(middle, top + _TILE + 0.17, words, fontsize=6.5, color="0.25")
    return sheet.save(out)


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
_PANEL = 2.3


def class_looks(number: int) -> list[style.Look]:
    """A colour and a marker for each of so many classes, by label."""
    colours = [light for light, _ in class_colours(number)]
    markers = itertools.cycle(_MARKERS if number > len(LIGHT) else "o")
    return [style.Look(colour, marker) for colour, marker in zip(colours, markers, strict=False)]


def _present(labels: Ints, class_names: Sequence[str]) -> list[int]:
    return [label for label in range(len(class_names)) if (labels == label).any()]


def draw_map(
    places: Places, labels: Ints, class_names: Sequence[str], out: Path, *, title: str
) -> Path:
    """All examples on the map, by class."""
    present = _present(labels, class_names)
    every = class_looks(len(class_names))
    looks = {label: every[label] for label in present}
    columns = max(1, math.ceil(len(present) / 40))
    figure = style.new_figure(9.6 + 1.2 * (columns - 1), 7.0, title)
    axes = figure.add_subplot()
    # in one go and in the data's order: drawn class by class, the last would hide the others
    for marker in dict.fromkeys(look.marker for look in looks.values()):
        mine = np.isin(labels, [label for label in present if looks[label].marker == marker])
        colours = [looks[int(label)].colour for label in labels[mine]]
        _points(axes, places[mine], colours, _size(len(places)), marker, alpha=0.75)
    _plain(axes, places)
    handles = []
    for label, look in looks.items():
        words = f"{class_names[label]} ({int((labels == label).sum()):,})"
        handles.append(style.point_key(words, look.marker, color=look.colour, markersize=7))
    return style.finish(figure, handles, out)


def draw_classes(
    places: Places,
    labels: Ints,
    keep_list: KeepList,
    class_names: Sequence[str],
    out: Path,
    *,
    title: str,
) -> Path:
    """A panel for each class: what is kept and, by reason, what is dropped; the others behind."""
    present = _present(labels, class_names)
    columns = min(5, len(present))
    rows = math.ceil(len(present) / columns)
    width, height = max(columns * _PANEL + 2.4, 7.0), rows * (_PANEL + 0.35) + 0.6
    figure = style.new_figure(width, height, title)
    reasons = np.array([style.clip(reason, 40) for reason in keep_list.reasons], dtype=object)
    dropped = ~keep_list.kept
    shown: list[str] = []
    for place, label in enumerate(present):
        axes = figure.add_subplot(rows, columns, place + 1)
        mine = labels == label
        size = 0.35 * _size(len(places) // 2)
        _points(axes, places[~mine], _OTHERS, 0.6 * size, "o", alpha=1.0)
        _points(axes, places[mine & ~dropped], _KEPT, size, "o", alpha=0.8)
        for reason in _ordered(reasons[mine & dropped]):
            colour, marker = REASON_LOOKS.get(reason, _OTHER_REASON)
            some = mine & dropped & (reasons == reason)
            bigger = max(size, 2.5) * (1.5 if reason in ("noise", "sampled out") else 5.0)
            _points(axes, places[some], colour, bigger, marker, alpha=0.95)
            shown += [] if reason in shown else [reason]
        _plain(axes, places)
        number, kept = int(mine.sum()), int((mine & ~dropped).sum())
        share = f"{kept:,} of {number:,} ({100 * (1 - kept / number):.1f}% dropped)"
        heading = f"{style.clip(class_names[label], 24)}\n{share}"
        axes.set_title(heading, fontsize=8.5, loc="left", parse_math=False)
    looks = [("kept", _KEPT, "o"), ("other classes", _OTHERS, "o")]
    looks += [(reason, *REASON_LOOKS.get(reason, _OTHER_REASON)) for reason in _ordered(shown)]
    keys = [style.point_key(name, marker, color=c, markersize=7) for name, c, marker in looks]
    return style.finish(figure, keys, out)


def draw_k_distances(
    places: Places,
    labels: Ints,
    considered: NDArray[np.bool_],
    classes: Sequence[dict[str, Any]],
    num_classes: int,
    out: Path,
    *,
    title: str,
) -> Path:
    """The sorted k-distances of each class, and the eps that was chosen on it."""
    drawn = [facts for facts in classes if facts["eps"] is not None]
    figure = style.new_figure(9.6, 5.6, title)
    axes = figure.add_subplot()
    handles, highest = [], 0.0
    looks = class_looks(num_classes)
    for facts in drawn:
        colour, marker, _ = looks[facts["label"] or 0]
        mine = considered & (labels == (facts["label"] or 0))
        curve = k_distances(places[mine], facts["min_samples"] - 1)
        share = np.arange(1, len(curve) + 1) / len(curve)
        axes.plot(100 * share, curve, color=colour, linewidth=1.3)
        at = float(np.searchsorted(curve, facts["eps"], side="right") / len(curve))
        how: dict[str, Any] = {"markersize": 8, "markeredgecolor": "white"}
        axes.plot([100 * at], [facts["eps"]], marker, color=colour, zorder=3, **how)
        highest = max(highest, facts["eps"])
        words = f"{facts['name']}: eps {facts['eps']:.3g}"
        if facts["eps_from"] != "knee":
            words += f" ({facts['eps_from']})"
        handles.append(style.key(words, color=colour, marker=marker, markersize=6))
    axes.set_ylim(0, 4 * highest or 1.0)
    axes.set_xlim(0, 101)
    axes.set_xlabel("share of the class's points (%)")
    axes.set_ylabel("distance to the k-th neighbour on the map")
    note = "points to the right of a mark are not core points; curves are cut at the top"
    axes.text(0.02, 0.97, note, transform=axes.transAxes, va="top", fontsize=8.5, color="0.35")
    style.tidy(axes)
    return style.finish(figure, handles, out)


def _ordered(reasons: Sequence[str] | NDArray[Any]) -> list[str]:
    """Reasons, the most frequent kinds first drawn, so that marks of the rare lie on top."""
    order = ["sampled out", "noise", "duplicate", "near-duplicate", "outlier", "label error"]
    found = set(reasons)
    return sorted(found - {*order}) + [reason for reason in order if reason in found]


def _points(
    axes: Axes, places: Places, colour: str | list[str], size: float, marker: str, *, alpha: float
) -> None:
    """Points as a picture: fifty thousand take no longer to open than five."""
    if len(places):
        how: dict[str, Any] = {"alpha": alpha, "linewidths": 0, "rasterized": True}
        axes.scatter(places[:, 0], places[:, 1], c=colour, s=size, marker=marker, **how)


def _size(number: int) -> float:
    """The area of a point, in square points, with which so many neither vanish nor fill the map."""
    return float(np.clip(12_000 / max(number, 1), 1.5, 14.0))


def _plain(axes: Axes, places: Places) -> None:
    """Leave out numbers: t-SNE's coordinates have no meaning; the extent is the same everywhere."""
    low, high = places.min(0), places.max(0)
    room = 0.03 * np.maximum(high - low, 1e-6)
    axes.set_xlim(float(low[0] - room[0]), float(high[0] + room[0]))
    axes.set_ylim(float(low[1] - room[1]), float(high[1] + room[1]))
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set(color="0.8")


# ------------------------------------------------------------------------------- the comparison

CHANCE = 0.05
_CALLED = {
    FULL: ("all examples", style.Look("#0072B2", "o")),
    FILTERED: ("filtered", style.Look("#D55E00", "s")),
    RANDOM: ("as many, kept at random", style.Look("#7F7F7F", "^")),
}


def finish_comparison(comparison: Comparison, folder: Path) -> tuple[Comparison, Path]:
    """Write everything; the comparison with its verdict, and the page's path."""
    comparison = replace(comparison, verdict=verdict(comparison))
    content = json.dumps(finite(to_json(comparison)), indent=1)
    write_atomically(folder / "comparison.json", content + "\n")
    note = (
        f"At the end of each run; {metric_better(comparison)} is better. With several seeds: "
        "median (lowest to highest). All runs have the same epochs, so runs on fewer examples "
        "take fewer steps. A difference counts only where the ranges of the seeds do not overlap."
    )
    lists = {
        _CALLED[v.name][0]: f"{v.num_examples} examples" + (f", {v.keep}" if v.keep else "")
        for v in comparison.variants
    }
    seeds = ", ".join(map(str, comparison.seeds))
    facts = {**lists, "seeds": seeds, "grain": str(comparison.grain_size)}
    sections = [
        Section(heading="Verdict", words=comparison.verdict),
        Section(
            heading=f"{comparison.metric.capitalize()} by batch size",
            picture=draw_comparison(comparison, folder / "comparison.svg"),
        ),
        Section(heading="In numbers", table=comparison_table(comparison), note=note),
        Section(heading="The comparison", table=with_origin(comparison, facts)),
    ]
    page = folder / "comparison.html"
    write_page(page, f"{Path(comparison.recipe).stem}: did curation help?", sections)
    return comparison, page


def comparison_table(comparison: Comparison) -> Rows:
    """The metric at the end by weight decay and batch size, a column for each kind of data."""
    names = _variant_names(comparison)
    rows = [["weight decay", "batch size", *names.values()]]
    for decay in comparison.weight_decays:
        for batch in comparison.batch_sizes:
            runs = [_runs(comparison, name, batch, decay) for name in names]
            cells = [metric_text(comparison, each) for each in runs]
            rows.append([number(decay), str(batch), *cells])
    return rows


def _variant_names(comparison: Comparison) -> dict[str, str]:
    return {v.name: f"{_CALLED[v.name][0]} ({v.num_examples})" for v in comparison.variants}


def verdict(comparison: Comparison) -> str:
    """Filtered against all, and against as many at random, over every batch size and decay; and how
    far to believe it."""
    seeds = len(comparison.seeds)
    if seeds == 1:
        return "One seed cannot tell a difference from chance. Add --seeds 4 and run it again."
    kept = {v.name: v.num_examples for v in comparison.variants}
    share = 100.0 * kept[FILTERED] / kept[FULL]
    words = (
        f"Trained on the {share:.1f}% of the data that curation kept, {comparison.metric} after "
        f"{comparison.epochs} epochs is {_balance(comparison, FULL)} than all of it. It is "
        f"{_balance(comparison, RANDOM)} than as much kept at random."
    )
    by_chance = 2.0 / math.comb(2 * seeds, seeds)
    if by_chance > CHANCE:
        words += (
            f" With {seeds} seeds, chance alone makes a difference at {100.0 * by_chance:.0f}% of "
            "the places: add --seeds 4 before believing it."
        )
    return words


def _balance(comparison: Comparison, other: str) -> str:
    """ "better at batch 64 and 256, no different at batch 1024 and worse at batch 4096"."""
    found: dict[str, list[str]] = {"better": [], "no different": [], "worse": []}
    unknown = 0
    sign = -1.0 if metric_better(comparison) == "lower" else 1.0
    several = len(comparison.weight_decays) > 1
    for decay, batch in itertools.product(comparison.weight_decays, comparison.batch_sizes):
        mine = interval(comparison, FILTERED, batch, decay)
        theirs = interval(comparison, other, batch, decay)
        if mine is None or theirs is None:
            unknown += 1
            continue
        word = "no different"
        if mine.low > theirs.high or mine.high < theirs.low:
            word = "better" if sign * mine.median > sign * theirs.median else "worse"
        found[word].append(f"{batch}" + (f" (decay {number(decay)})" if several else ""))
    parts = [f"{word} at batch {listed(where)}" for word, where in found.items() if where]
    return listed(parts + ([f"not known at {count(unknown, 'place')}"] if unknown else []))


def interval(comparison: Comparison, variant: str, batch: int, decay: float) -> Interval | None:
    """The metric over seeds; None unless more than half have a result."""
    return metric_interval(comparison, _runs(comparison, variant, batch, decay))


def _runs(comparison: Comparison, variant: str, batch: int, decay: float) -> list[ComparedRun]:
    wanted = (variant, batch, decay)
    return [r for r in comparison.runs if (r.variant, r.batch_size, r.weight_decay) == wanted]


def draw_comparison(comparison: Comparison, out: Path) -> Path:
    """A panel per weight decay: the metric against batch size, a line for each kind of data."""
    decays = comparison.weight_decays
    columns = min(len(decays), 3)
    rows = -(-len(decays) // columns)
    title = f"{Path(comparison.recipe).stem}: {comparison.metric} after {comparison.epochs} epochs"
    figure = style.new_figure(4.9 * columns + 2.8, 3.9 * rows + 0.4, title)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    beside = style.side_by_side(list(_CALLED), comparison.batch_sizes)
    lost = False
    for axes, decay in zip(panels, decays, strict=False):
        for name, (_, look) in _CALLED.items():
            found = {
                b * beside[name]: interval(comparison, name, b, decay)
                for b in comparison.batch_sizes
            }
            style.draw_intervals(axes, found, look)
            missing = [place for place, v in found.items() if v is None]
            lost = lost or bool(missing)
            how: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "mew": 1.8}
            axes.plot(missing, [0.02] * len(missing), "x", color=look.colour, **how)
        style.powers_axis(axes, comparison.batch_sizes, "batch size")
        if len(decays) > 1:
            axes.set_title(f"weight decay {number(decay)}", fontsize=10, loc="left")
        style.tidy(axes)
    for axes in panels[len(decays) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(f"{comparison.metric} ({metric_better(comparison)} is better)")
    names = _variant_names(comparison)
    handles = style.look_keys({names[name]: look for name, (_, look) in _CALLED.items()})
    handles += [style.spread_key()] if len(comparison.seeds) > 1 else []
    if lost:
        handles.append(style.point_key("no result", "x", markeredgewidth=1.8))
    return style.finish(figure, handles, out)
