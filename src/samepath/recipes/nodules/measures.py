"""Measures of shapes in volumes, all volumes at once.

In: volumes (N, s, s, s) with values in [0, 1]. Out: numbers for each. A volume's shape is where it
is at least `LEVEL`; voxels count as cubes, lengths are shares of the cube's side. A volume that is
nowhere that high is empty: its shape measures are 0, which no shape has.
"""

from __future__ import annotations

import itertools
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Volumes: TypeAlias = npt.NDArray[np.float32]
Floats: TypeAlias = npt.NDArray[np.floating]

LEVEL = 0.5  # half of the readers, or half of the window of intensities
MEASURES = ("volume", "extent", "sphericity", "elongation")

# Share of the sphere nearest to each of the 26 directions to a neighbouring voxel, by the number
# of axes along which it steps (Lehmann and Legland 2012).
_SHARES = {1: 0.04577789, 2: 0.03698063, 3: 0.03519564}


def measure(volumes: Volumes) -> Floats:
    """(N, 4): each volume's measures, in the order of `MEASURES`.

    volume: the mean of all voxels, which blur leaves alone. extent: longest side of the bounding
    box, its faces between voxels' centres where the density interpolates to `LEVEL`. sphericity:
    area of the ball of the shape's volume over `surface_area`. elongation: longest over shortest
    principal axis of the shape's second moments, 1 for a ball.
    """
    shapes = volumes >= LEVEL
    num_voxels = shapes.sum((1, 2, 3))
    area = np.where(num_voxels > 0, surface_area(shapes), 1.0)
    columns = [
        volumes.mean((1, 2, 3), dtype=np.float64),
        _extent(volumes) / volumes.shape[1],
        math.pi ** (1 / 3) * (6.0 * num_voxels) ** (2 / 3) / area,
        np.where(num_voxels > 0, _elongation(shapes), 0.0),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def surface_area(shapes: npt.NDArray[np.bool_]) -> Floats:
    """(N,) surface areas of (N, s, s, s) shapes, a voxel's face being 1, by Crofton's formula.

    Area is twice the mean, over all directions, of how often lines of one direction cross the
    surface, times the area that belongs to a line. Here the lines join voxels' centres in the 13
    directions to a neighbour (Lehmann and Legland 2012), each counted for all volumes at once.

    Tried on shapes of 4 to 13 voxels across, turned and shifted at random: balls come out 0 to 2%
    small, ellipsoids of 2:1 1%, of 3:1 2 to 3%; turning changes sphericity by less than 1%. Sharp
    edges are cut: cubes come out 7% small on average, 14% when aligned with the voxels.
    """
    # An empty layer on each side: what is shifted out on one side comes in as empty on the other
    padded = np.pad(shapes, ((0, 0), (1, 1), (1, 1), (1, 1)))
    area = np.zeros(len(shapes))
    for step in itertools.product((-1, 0, 1), repeat=3):
        if step <= (0, 0, 0):
            continue  # the opposite direction counts the same crossings
        crossings = np.sum(padded != np.roll(padded, step, (1, 2, 3)), axis=(1, 2, 3))
        num_axes = sum(map(abs, step))
        area += 2.0 * (2.0 * _SHARES[num_axes]) * crossings / math.sqrt(num_axes)
    return area


def _extent(volumes: Volumes) -> Floats:
    """(N,) longest sides of the bounding boxes of what is at least `LEVEL`, in voxels."""
    longest = np.zeros(len(volumes))
    for axis in (1, 2, 3):
        profile = volumes.max(axis=tuple({1, 2, 3} - {axis})).astype(np.float64)
        length = profile.shape[1] - _margin(profile) - _margin(profile[:, ::-1])
        longest = np.maximum(longest, np.where(profile.max(1) >= LEVEL, length, 0.0))
    return longest


def _margin(profile: Floats) -> Floats:
    """(N,) distances from a profile's start to where it first reaches `LEVEL`, in voxels."""
    rows = np.arange(len(profile))
    first = np.argmax(profile >= LEVEL, axis=1)
    high = profile[rows, first]
    low = np.pad(profile, ((0, 0), (1, 0)))[rows, first]
    return np.asarray(first + 0.5 - (high - LEVEL) / np.where(high > low, high - low, 1.0))


def _elongation(shapes: npt.NDArray[np.bool_]) -> Floats:
    side = shapes.shape[1]
    places = np.indices((side,) * 3, dtype=np.float32).reshape(3, -1) - (side - 1) / 2
    terms = np.concatenate([np.ones_like(places[:1]), places, *(places[:, None] * places)])
    sums = (shapes.reshape(len(shapes), -1).astype(np.float32) @ terms.T).astype(np.float64)
    means = sums[:, 1:] / np.maximum(sums[:, :1], 1.0)
    centres = means[:, :3]
    covariances = means[:, 3:].reshape(-1, 3, 3) - centres[:, :, None] * centres[:, None]
    # A voxel is a cube, not a point: its own variance keeps a plane of voxels from being flat
    variances = np.linalg.eigvalsh(covariances + np.eye(3) / 12.0)
    return np.asarray(np.sqrt(variances[:, -1] / variances[:, 0]))
