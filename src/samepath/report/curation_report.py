"""The report of a curation: figures, Table I of Gahlot et al. 2020, examples of what is dropped.

In: a curation folder. Out: `map.png`, `classes.png`, `kdistance.png`, `dropped.png` and
`report.html`, which holds them all and opens without a network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.curation.folder import read_arrays
from samepath.curation.keep import REASONS
from samepath.data.keep_list import KeepList, read_keep_list
from samepath.errors import UserError
from samepath.report.curation_figures import draw_classes, draw_k_distances, draw_map
from samepath.report.page import Section, write_page
from samepath.report.sheet import Sheet, clip

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
