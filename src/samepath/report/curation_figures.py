"""Pictures of a curation: the map by class, each class with what is dropped of it, k-distances.

In: places, labels, a keep-list, what curation.json says. Out: PNG files. Guaranteed: no two classes
share colour and marker; legends stand beside the axes; points are drawn as a picture, so that fifty
thousand take no longer to open than five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from samepath.curation.cluster import k_distances
from samepath.data.keep_list import KeepList
from samepath.report.sheet import clip, save_figure
from samepath.report.study_style import key, legend_beside, new_figure, tidy

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
