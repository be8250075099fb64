"""Stratified sampling on a grid: fewer examples that still cover the map.

What Gahlot et al. 2020 leave to future work. In: places of one class on the map, how many to keep.
Out: which, and the cell each is in. Guaranteed: every occupied cell keeps at least one point, the
others are shared in proportion to what is in a cell; the choice within a cell comes from the seed
and the example's number alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from samepath.keys import key, keys_for

POINTS_PER_CELL = 10
"""On average, where points were spread evenly over the class's rectangle."""

Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]


def sample_grid(
    points: NDArray[np.floating], number: int, *, examples: Ints, seed: int = 0
) -> tuple[Truths, Ints]:
    """Which of a class's points are kept, `number` of them, and the cell of each.

    `examples` are the points' numbers in the data set.
    """
    if not len(points):
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)
    number = min(max(number, 0), len(points))
    side = max(1, int(np.sqrt(len(points) / POINTS_PER_CELL)))
    cells = grid_cells(points, side)
    while side > 1 and cells.max() >= number:  # more cells than may be kept
        side -= 1
        cells = grid_cells(points, side)
    shares = _shares(np.bincount(cells), number)
    keys = keys_for(key("grid", seed), examples)
    order = np.lexsort((keys, cells))
    place = np.arange(len(points)) - np.searchsorted(cells[order], cells[order])
    kept = np.zeros(len(points), dtype=bool)
    kept[order] = place < shares[cells[order]]
    return kept, cells


def grid_cells(points: NDArray[np.floating], side: int) -> Ints:
    """The cell of each point, of side x side over their rectangle; occupied ones count from 0."""
    low, high = points.min(0), points.max(0)
    scaled = (points - low) / np.maximum(high - low, 1e-30)
    column, row = np.minimum((scaled * side).astype(np.int64), side - 1).T
    return np.unique(row * side + column, return_inverse=True)[1].astype(np.int64)


def _shares(sizes: Ints, number: int) -> Ints:
    """How many of each cell, `number` in all: one, and a part in proportion, the largest remainders
    rounded up."""
    least = np.minimum(sizes, 1) if number >= len(sizes) else np.zeros_like(sizes)
    left, room = number - int(least.sum()), sizes - least
    exact = room * (left / max(int(room.sum()), 1))
    shares = np.floor(exact).astype(np.int64)
    upwards = np.argsort(shares - exact, kind="stable")[: left - int(shares.sum())]
    shares[upwards] += 1
    total: Ints = least + shares
    return total


def random_of_same_size(
    kept: Truths, candidates: Truths, labels: Ints | None, seed: int = 0
) -> Truths:
    """As many of each class as `kept` has, chosen at random among the candidates: the control."""
    chosen = np.zeros(len(kept), dtype=bool)
    groups = np.zeros(len(kept), dtype=np.int64) if labels is None else labels
    keys = keys_for(key("control", seed), np.arange(len(kept), dtype=np.int64))
    for group in np.unique(groups):
        rows = np.flatnonzero((groups == group) & candidates)
        number = int(kept[groups == group].sum())
        chosen[rows[np.argsort(keys[rows], kind="stable")[:number]]] = True
    return chosen
