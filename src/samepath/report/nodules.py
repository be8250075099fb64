"""What DeepDensity made of lung nodules, on paper.

In: volumes (N, s, s, s) in [0, 1] with axes (z, y, x), the numbers of their mixtures, measures of
nodules. Out: a PNG each, about 1300 pixels wide, its folder made if need be.
Guaranteed: grey means the same in every tile (black 0, white 1); a long name is wrapped and cut,
and never runs into a picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from samepath.report.ellipsoids import (
    CUBE_WIDTH,
    Floats,
    picture_ellipsoids,
    picture_surface,
)
from samepath.report.sheet import DPI, Sheet, central_slices, clip, save_figure, title_size

MASS_SHOWN = 0.99
"""Ellipsoids are drawn for the fewest components that carry this share of a nodule's mass."""

_GAP = 0.05  # inches between tiles
_MARGIN = 0.12


def draw_reconstructions(
    original: Floats, estimated: Floats, out: Path, *, names: Sequence[str], errors: Sequence[float]
) -> None:
    """A row per nodule: central slices of the original and of the estimate (N, s, s, s).

    After Fig. 1 of Cunha et al. 2018. At the left stand the nodule's name and its error.
    """
    tile, label, between, head = 1.3, 1.75, 0.25, 0.7
    block = 3 * tile + 2 * _GAP
    lefts = (label, label + block + between)
    page = Sheet(lefts[1] + block + _MARGIN, head + len(original) * (tile + _GAP) + _MARGIN)
    for left, heading in zip(lefts, ("original", "estimated"), strict=True):
        page.text(left + block / 2, 0.22, heading, fontsize=13, weight="bold")
        for column, plane in enumerate(("axial", "coronal", "sagittal")):
            page.text(left + column * (tile + _GAP) + tile / 2, 0.54, plane)
    rows = zip(original, estimated, names, errors, strict=True)
    for row, (shape, estimate, name, error) in enumerate(rows):
        top = head + row * (tile + _GAP)
        page.row_label(label, top + tile / 2, name, f"error {error:.3g}")
        for left, volume in zip(lefts, (shape, estimate), strict=True):
            for column, picture in enumerate(central_slices(volume)):
                page.tile(picture, left + column * (tile + _GAP), top, tile)
    page.save(out)


def draw_sharpening(
    original: Floats,
    estimates: Floats,
    epochs: Sequence[int],
    out: Path,
    *,
    names: Sequence[str],
    losses: Sequence[float],
) -> None:
    """A row per nodule (N, s, s, s): its central axial slice, then what was made of it over time.

    `estimates` is (E, N, s, s, s), with E `epochs` and E validation `losses`: coarse shapes come
    first, detail late.
    """
    label, between, head = 1.75, 0.15, 0.75
    tile = min(1.6, (10.2 - label - between) / (len(epochs) + 1) - _GAP)
    lefts = [label] + [label + between + n * (tile + _GAP) for n in range(1, len(epochs) + 1)]
    page = Sheet(lefts[-1] + tile + _MARGIN, head + len(original) * (tile + _GAP) + _MARGIN)
    headings = [("original", "")] + [
        (f"epoch {epoch}", f"{loss:.2g}") for epoch, loss in zip(epochs, losses, strict=True)
    ]
    page.text(label - 0.12, 0.55, "validation loss", ha="right", color="0.35")
    for left, (heading, loss) in zip(lefts, headings, strict=True):
        page.text(left + tile / 2, 0.25, heading, weight="bold", fontsize=min(10, 11.5 * tile))
        page.text(left + tile / 2, 0.55, loss, color="0.35", fontsize=min(10, 11.5 * tile))
    for row, name in enumerate(names):
        top = head + row * (tile + _GAP)
        page.row_label(label, top + tile / 2, name)
        for left, volume in zip(lefts, [original[row], *estimates[:, row]], strict=True):
            page.tile(next(central_slices(volume)), left, top, tile)
    page.save(out)


def draw_ellipsoids(
    original: Floats,
    weights: Floats,
    means: Floats,
    covariances: Floats,
    out: Path,
    *,
    names: Sequence[str],
) -> None:
    """Nodules (N, s, s, s) as surfaces at one half, each beside its mixture as ellipsoids.

    Weights (N, K), means (N, K, 3) and covariances (N, K, 3, 3) over [-1, 1]^3, axes (z, y, x).
    An ellipsoid is a component at one standard deviation; its colour and how much it hides say
    its share of the mass. Both panels of a pair have the same camera and the same cube.
    """
    pairs = min(2, len(original))
    panel, head, foot, between = (2.45 if pairs == 2 else 4.0), 0.62, 0.75, 0.1
    height = head + panel
    page = Sheet(
        2 * _MARGIN + 2 * pairs * panel + (pairs - 1) * between,
        math.ceil(len(original) / pairs) * height + foot,
    )
    shares = weights / weights.sum(axis=1, keepdims=True)
    scale, colours = Normalize(0.0, float(shares.max())), colormaps["viridis_r"]
    carry = f"carry {MASS_SHOWN:.0%} of the mass"
    parts = zip(original, shares, means, covariances, names, strict=True)
    for number, (volume, share, mean, covariance, name) in enumerate(parts):
        left = _MARGIN + number % pairs * (2 * panel + between)
        top = number // pairs * height + head
        order = np.argsort(-share)
        shown = order[: 1 + np.searchsorted(np.cumsum(share[order]), MASS_SHOWN - 1e-9)]
        rgba = colours(scale(share[shown]))
        rgba[:, 3] = 0.3 + 0.6 * share[shown] / share.max()
        size = round(panel * DPI)
        surface = picture_surface(volume, size=size, half_width=CUBE_WIDTH)
        mixture = picture_ellipsoids(
            mean[shown], covariance[shown], rgba, size=size, half_width=CUBE_WIDTH
        )
        captions = (
            (surface, clip(name, 26), "original", "bold"),
            (mixture, f"{len(shown)} of {len(share)} components", carry, "normal"),
        )
        for column, (picture, above, below, weight) in enumerate(captions):
            page.cube(picture, left + column * panel, top, panel)
            middle = left + (column + 0.5) * panel
            page.text(middle, top - 0.32, above, weight=weight)
            page.text(middle, top - 0.1, below)
    bar = page.axes(page.width / 2 - 1.6, page.height - foot + 0.15, 3.2, 0.13)
    page.figure.colorbar(ScalarMappable(scale, colours), cax=bar, orientation="horizontal")
    bar.set_xlabel("a component's share of the mass")
    bar.xaxis.set_major_formatter(_per_cent)
    page.save(out)


def draw_real_and_generated(real: Floats, generated: Floats, out: Path, *, title: str) -> None:
    """Nodules (N, s, s, s), real ones left and generated ones right, up to 36 of each.

    Above, their surfaces at one half, lit; below, the central axial slices of the same nodules in
    the same places. A tile without a surface is a volume that nowhere reaches one half.
    """
    columns = min(6, math.ceil(math.sqrt(max(len(real), len(generated)))))
    rows = math.ceil(min(max(len(real), len(generated)), columns**2) / columns)
    block, head, label, between = 4.7, 0.75, 0.35, 0.3
    tile, height = block / columns, block * rows / columns
    left = label + _MARGIN
    page = Sheet(left + 2 * block + between + _MARGIN, head + 2 * height + between + _MARGIN)
    page.text(page.width / 2, 0.22, title, fontsize=title_size(title), weight="bold")
    for row, name in enumerate(("surface", "central slice")):
        middle = head + row * (height + between) + height / 2
        page.text(_MARGIN + 0.1, middle, name, fontsize=11, rotation=90)
    for side, (name, volumes) in enumerate((("real", real), ("generated", generated))):
        at = left + side * (block + between)
        page.text(at + block / 2, 0.56, name, fontsize=12, weight="bold")
        shown = volumes[: columns * rows]
        size = min(300, round(tile * DPI))
        lit = [picture_surface(v, size=size, half_width=1.12) for v in shown]
        slices = [next(central_slices(volume)) for volume in shown]
        for row, pictures in enumerate((lit, slices)):
            for number, picture in enumerate(pictures):
                across, down = number % columns * tile, number // columns * tile
                top = head + row * (height + between)
                page.tile(picture, at + across, top + down, tile - 0.03)
    page.save(out)


def draw_measures(
    generated: Mapping[str, Floats],
    held_out: Mapping[str, Floats],
    out: Path,
    *,
    labels: tuple[str, str],
) -> None:
    """How measures (name to one number per nodule) spread: held out filled, generated a line.

    `labels` are what the legend calls generated and held out. Bins are the same for both and reach
    over all values but the outermost half per cent at each end; NaN and infinity are left out.
    """
    rows = math.ceil(len(held_out) / 4)
    columns = math.ceil(len(held_out) / rows)
    figure = Figure(figsize=(10.0 if columns > 2 else 5.0 * columns, 2.4 * rows + 0.5))
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    for number, name in enumerate(held_out):
        axes = figure.add_subplot(rows, columns, number + 1)
        sets = [np.asarray(each[name], dtype=float) for each in (generated, held_out)]
        sets = [values[np.isfinite(values)] for values in sets]
        edges = _bins(np.concatenate(sets))
        made, held = (np.histogram(v, edges)[0] / max(len(v), 1) for v in sets)
        axes.stairs(held, edges, fill=True, color="#b8c4cf", label=labels[1])
        axes.stairs(made, edges, color="#b2182b", linewidth=2.0, label=labels[0])
        axes.set_title(clip(name, 30), fontsize=11, parse_math=False)
        axes.yaxis.set_major_formatter(_per_cent)
        axes.locator_params(nbins=5)
        axes.spines[["top", "right"]].set_visible(False)
        if number % columns == 0:
            axes.set_ylabel("share of nodules")
    entries = figure.axes[0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper center", ncols=2, frameon=False, fontsize=11)
    save_figure(figure, out)


def _bins(values: Floats) -> Floats:
    """Edges of bins: one for each value where few come again and again, else equal ones."""
    low, high = np.quantile(values, (0.005, 0.995), method="nearest") if len(values) else (0.0, 0.0)
    if high - low <= 1e-9 * abs(high):
        return np.array([low - 0.5, low + 0.5])
    different = np.unique(values[(values >= low) & (values <= high)])
    if len(different) > min(24, len(values) // 2):
        return np.linspace(low, high, 1 + min(24, 4 + len(values) // 5))
    middles = (different[1:] + different[:-1]) / 2.0
    margin = (high - low) / (2 * len(middles))
    return np.concatenate([[low - margin], middles, [high + margin]])


def _per_cent(share: float, _: object = None) -> str:
    return f"{100.0 * share:.3g}%"
