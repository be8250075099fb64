"""What DeepDensity made of lung nodules, on paper.

In: volumes (N, s, s, s) in [0, 1] with axes (z, y, x), the numbers of their mixtures, measures of
nodules. Out: a PNG each, about 1300 pixels wide, its folder made if need be.
Guaranteed: grey means the same in every tile (black 0, white 1); a long name is wrapped and cut,
and never runs into a picture.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from samepath.data.formats.listing import Volumes
from samepath.report.style import DPI, Sheet, clip, save_figure, title_size
from samepath.threads import limited_threads

MASS_SHOWN = 0.99
"""Ellipsoids are drawn for the fewest components that carry this share of a nodule's mass."""

SHOWN_CUBES = 8
_GAP = 0.05  # inches between tiles
_MARGIN = 0.12


def draw_reconstructions(
    original: Floats,
    estimated: Floats,
    out: Path,
    *,
    names: Sequence[str],
    errors: Sequence[float],
    headings: tuple[str, str] = ("original", "estimated"),
    what: str = "error",
) -> None:
    """A row per nodule: central slices of the original and of the estimate (N, s, s, s).

    After Fig. 1 of Cunha et al. 2018. At the left stand the nodule's name and its error.
    """
    tile, label, between, head = 1.3, 1.75, 0.25, 0.7
    block = 3 * tile + 2 * _GAP
    lefts = (label, label + block + between)
    page = Sheet(lefts[1] + block + _MARGIN, head + len(original) * (tile + _GAP) + _MARGIN)
    for left, heading in zip(lefts, headings, strict=True):
        page.text(left + block / 2, 0.22, heading, fontsize=13, weight="bold")
        for column, plane in enumerate(("axial", "coronal", "sagittal")):
            page.text(left + column * (tile + _GAP) + tile / 2, 0.54, plane)
    rows = zip(original, estimated, names, errors, strict=True)
    for row, (shape, estimate, name, error) in enumerate(rows):
        top = head + row * (tile + _GAP)
        page.row_label(label, top + tile / 2, name, f"{what} {error:.3g}")
        for left, volume in zip(lefts, (shape, estimate), strict=True):
            for column, picture in enumerate(central_slices(volume)):
                page.tile(picture, left + column * (tile + _GAP), top, tile)
    page.save(out)


def draw_cubes(volumes: Volumes, out: Path) -> Path:
    """Central slices of some cubes, evenly chosen, with their names."""
    tile, label, head = 1.3, 1.75, 0.4
    rows = np.unique(np.linspace(0, len(volumes.names) - 1, SHOWN_CUBES).astype(int))
    width = label + 3 * (tile + _GAP) + _MARGIN
    page = Sheet(width, head + len(rows) * (tile + _GAP) + _MARGIN)
    for column, plane in enumerate(("axial", "coronal", "sagittal")):
        page.text(label + column * (tile + _GAP) + tile / 2, 0.2, plane)
    for line, row in enumerate(rows):
        top = head + line * (tile + _GAP)
        cube = np.asarray(volumes.cubes[row], np.float64)
        cube = cube / 255.0 if volumes.cubes.dtype == np.uint8 else cube
        mean = f"mean {cube.mean():.2f}"
        page.row_label(label, top + tile / 2, volumes.names[row], mean)
        for column, picture in enumerate(central_slices(cube)):
            page.tile(picture, label + column * (tile + _GAP), top, tile)
    page.save(out)
    return out


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
            _draw_cube(page, picture, left + column * panel, top, panel)
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


Floats = npt.NDArray[np.floating]

LEVEL = 0.5
"""A volume's surface is where it crosses this."""
CUBE_WIDTH = 1.5
"""The half width of pictures into which the whole cube fits."""

_AZIMUTH, _ELEVATION = math.radians(-55.0), math.radians(24.0)
_LAMP = np.array([-0.45, 0.65, 0.62])  # right, up, towards the camera: over the left shoulder
_COLOUR = np.array([0.87, 0.82, 0.75])  # of surfaces
_REACH = math.sqrt(3.0)  # of the cube's corners from its middle
_OVERSAMPLING = 2  # rays per pixel and axis: smooth edges
_MAX_SIDE = 64  # finer volumes are averaged first: a picture shows no more


def camera() -> Floats:
    """(3, 3): the directions right, up and towards the camera, as rows, each (z, y, x)."""
    sin_a, cos_a = math.sin(_AZIMUTH), math.cos(_AZIMUTH)
    sin_e, cos_e = math.sin(_ELEVATION), math.cos(_ELEVATION)
    return np.array(
        [
            [0.0, cos_a, -sin_a],
            [cos_e, -sin_e * sin_a, -sin_e * cos_a],
            [sin_e, cos_e * sin_a, cos_e * cos_a],
        ]
    )


# These arrays are small: threads would cost more than they bring, much more where cores are busy
@limited_threads(1)
def picture_surface(volume: Floats, *, size: int, half_width: float) -> Floats:
    """The surface of a volume (s, s, s), opaque.

    Between voxels the volume is trilinear, outside the cube it is zero. The surface is where that
    crosses `LEVEL`; only the light on it comes from a smoothed copy, because a trilinear function
    has creases that the eye takes for steps.
    """
    grid = torch.from_numpy(np.ascontiguousarray(volume, dtype=np.float32))[None, None]
    side = min(volume.shape[0], _MAX_SIDE)
    if side < volume.shape[0]:
        grid = F.adaptive_avg_pool3d(grid, side)
    axes = torch.from_numpy(camera()).float()
    right, up = _screen(size * _OVERSAMPLING, half_width)
    depth, is_hit = _first_crossing(grid, axes, size * _OVERSAMPLING, half_width)
    points = torch.from_numpy(np.stack([right, up], axis=-1)).float() @ axes[:2]
    points += depth[..., None] * axes[2]
    back = axes[2] * (2.0 / 3.0 / side)  # to the slab before: the crossing is between the two
    before, after = _sample(grid, points + back), _sample(grid, points)
    share = (after - LEVEL) / (after - before).clamp_min(1e-6)
    points += share.clamp(0.0, 1.0)[..., None] * back

    smooth = F.avg_pool3d(F.avg_pool3d(F.pad(grid, [2] * 6), 3, stride=1), 3, stride=1)
    steps = torch.eye(3) * (2.0 / side)
    slopes = [_sample(smooth, points + step) - _sample(smooth, points - step) for step in steps]
    normals = -torch.stack(slopes, dim=-1) @ axes.T

    picture = np.empty((*right.shape, 4))
    picture[..., :3] = _light(normals.numpy())[..., None] * _COLOUR
    picture[..., 3] = is_hit.numpy()
    return _shrink(picture)


def picture_ellipsoids(
    means: Floats, covariances: Floats, colours: Floats, *, size: int, half_width: float
) -> Floats:
    """Gaussians as ellipsoids at one standard deviation, see-through, nearer ones in front.

    means (K, 3), covariances (K, 3, 3), colours (K, 4): RGBA, alpha the share of light stopped.
    """
    axes = camera()
    means = means @ axes.T
    covariances = axes @ covariances @ axes.T
    precisions = np.linalg.inv(covariances)
    heights = np.sqrt(covariances[:, 1, 1])  # of the ellipsoids above and below their middles
    right, up = _screen(size * _OVERSAMPLING, half_width)
    picture = np.zeros((*right.shape, 4))
    for row, level in enumerate(up[:, 0]):
        there = np.abs(means[:, 1] - level) < heights
        picture[row] = _look_through(
            means[there], precisions[there], colours[there], right[row], up[row]
        )
    return _shrink(picture)


def _look_through(
    means: Floats, precisions: Floats, colours: Floats, right: Floats, up: Floats
) -> Floats:
    """(P, 4): what P rays see. Everything is in the camera's axes.

    A point v from the middle is on the ellipsoid when v A v = 1, A the precision: a quadratic
    equation in v's third coordinate, of which the larger root is the nearer point.
    """
    x, y = right - means[:, :1], up - means[:, 1:2]  # (K, P)
    (xx, xy, xz), (_, yy, yz), (_, _, zz) = precisions.transpose(1, 2, 0)[..., None]
    b = xz * x + yz * y
    under_root = b * b - zz * (xx * x * x + 2.0 * xy * x * y + yy * y * y - 1.0)
    is_hit = under_root > 0.0
    nearer = (np.sqrt(np.where(is_hit, under_root, 0.0)) - b) / zz
    light = _light(np.stack([x, y, nearer], axis=-1) @ precisions)

    depth = np.where(is_hit, nearer + means[:, None, 2], -np.inf)
    order = np.argsort(-depth, axis=0)  # (K, P): nearest first
    alpha = np.take_along_axis(is_hit * colours[:, None, 3], order, axis=0)
    light = np.take_along_axis(light, order, axis=0)
    passed = np.cumprod(1.0 - alpha, axis=0)
    reaching = alpha * np.concatenate([np.ones_like(passed[:1]), passed[:-1]])
    opacity = reaching.sum(axis=0)
    seen = np.einsum("kp,kpc->pc", reaching * light, colours[order, :3])
    return np.concatenate([seen / np.maximum(opacity, 1e-12)[:, None], opacity[:, None]], axis=-1)


def _first_crossing(
    grid: Tensor, axes: Tensor, count: int, half_width: float
) -> tuple[Tensor, Tensor]:
    """(count, count) each: how near the camera the surface is, and whether there is one.

    The volume is turned into the camera's axes on a grid three times finer than its own; slabs of
    that are then enlarged to the screen one by one, nearest first.
    """
    fine = 3.0 * grid.shape[-1] / 2.0  # points per unit of length
    right, up = _screen(math.ceil(2.0 * half_width * fine), half_width)
    flat = torch.from_numpy(np.stack([right, up], axis=-1)).float() @ axes[:2]
    depths = torch.linspace(_REACH, -_REACH, math.ceil(2.0 * _REACH * fine))
    turned = _sample(grid, flat + depths[:, None, None, None] * axes[2])  # (T, p, p)

    depth = torch.full((count, count), -_REACH)
    is_hit = torch.zeros(count, count, dtype=torch.bool)
    for start, slab in zip(depths.tolist(), turned, strict=True):
        if slab.max() >= LEVEL:
            here = F.interpolate(slab[None, None], size=(count, count), mode="bilinear")[0, 0]
            is_new = (here >= LEVEL) & ~is_hit
            depth.masked_fill_(is_new, start)
            is_hit |= is_new
    return depth, is_hit


def _screen(count: int, half_width: float) -> tuple[Floats, Floats]:
    """The ends of rays on the screen: (count, count) each for right and up, first row on top."""
    centres = half_width * ((2.0 * np.arange(count) + 1.0) / count - 1.0)
    right, down = np.meshgrid(centres, centres)
    return right, -down


def _sample(grid: Tensor, points: Tensor) -> Tensor:
    """Trilinear values of a grid (1, 1, s, s, s) of [-1, 1]^3 at points (..., 3)."""
    where = points.flip(-1).reshape(1, 1, 1, -1, 3)  # grid_sample wants (x, y, z)
    return F.grid_sample(grid, where, align_corners=False).view(points.shape[:-1])


def _light(normals: Floats) -> Floats:
    """Brightness in (0, 1] of surfaces with these normals (..., 3), in the camera's axes."""
    lengths = np.linalg.norm(normals, axis=-1, keepdims=True)
    normals = normals / np.maximum(lengths, 1e-12)
    lamp = _LAMP / np.linalg.norm(_LAMP)
    diffuse = np.clip(normals @ lamp, 0.0, 1.0)
    facing = np.clip(normals[..., 2], 0.0, 1.0)  # dark rims set shapes off from each other
    light: Floats = np.clip(0.22 + 0.62 * diffuse + 0.26 * facing, 0.0, 1.0)
    return light


def _shrink(picture: Floats) -> Floats:
    """Average the rays of each pixel; colours count by their opacity."""
    size = len(picture) // _OVERSAMPLING
    picture = picture.copy()
    picture[..., :3] *= picture[..., 3:]
    blocks = picture.reshape(size, _OVERSAMPLING, size, _OVERSAMPLING, 4)
    mean: Floats = blocks.mean(axis=(1, 3))
    mean[..., :3] /= np.maximum(mean[..., 3:], 1e-12)
    return np.clip(mean, 0.0, 1.0)


def cube_edges() -> list[Floats]:
    """Ends (right, up) of nine edges of [-1, 1]^3: not the three that meet at the near corner."""
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    seen = corners @ camera().T
    near = int(seen[:, 2].argmax())
    return [
        seen[[one, other], :2]
        for one, other in itertools.combinations(range(8), 2)
        if np.abs(corners[one] - corners[other]).sum() == 2 and near not in (one, other)
    ]


def _draw_cube(page: Sheet, picture: Floats, left: float, top: float, size: float) -> None:
    """A picture made with CUBE_WIDTH, with the cube's edges, but for those in front of it."""
    axes = page.axes(left, top, size, size)
    axes.imshow(picture, extent=(-CUBE_WIDTH, CUBE_WIDTH, -CUBE_WIDTH, CUBE_WIDTH), zorder=2)
    axes.add_collection(LineCollection(cube_edges(), colors="0.75", lw=1.0, zorder=1))
    axes.set(xlim=(-CUBE_WIDTH, CUBE_WIDTH), ylim=(-CUBE_WIDTH, CUBE_WIDTH))
    axes.set_axis_off()


def central_slices(volume: Floats) -> Iterator[Floats]:
    """Axial, coronal and sagittal, the last two with z upwards."""
    middle = volume.shape[0] // 2
    yield volume[middle]
    yield volume[::-1, middle]
    yield volume[::-1, :, middle]
