"""Pictures of 3-D shapes.

In: a volume on the grid of [-1, 1]^3, or Gaussians in that domain, axes in the order (z, y, x).
Out: a square picture (size, size, 4), RGBA in [0, 1], of what parallel rays from a fixed camera
(z up) meet first, lit by a lamp; transparent where they meet nothing. Guaranteed: pictures made
with the same `half_width` can be laid on each other; nothing is sorted by its middle, so every
pixel sees what is in front.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from samepath.threads import limited_threads

Floats = npt.NDArray[np.floating]

LEVEL = 0.5
"""A volume's surface is where it crosses this."""
CUBE_WIDTH = 1.5
"""The half width of pictures into which the whole cube fits."""

_AZIMUTH, _ELEVATION = math.radians(-55.0), math.radians(24.0)
_LAMP = np.array([-0.45, 0.65, 0.62])  # right, up, towards the camera: over the left shoulder
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
def picture_surface(
    volume: Floats,
    *,
    size: int,
    half_width: float,
    colour: tuple[float, float, float] = (0.87, 0.82, 0.75),
) -> Floats:
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
    picture[..., :3] = _light(normals.numpy())[..., None] * np.array(colour)
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
    """Where the rays go: (count, count) each for right and up, first row on top."""
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
