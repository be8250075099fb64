"""Examples that say what others say already.

In: digests of inputs, labels, features after PCA with their neighbours, and the inputs themselves.
Out: exact duplicates (the same bytes; the first is kept), which of those with different labels are
wrong, and near-duplicates. Near ones must be close in both senses: a tenth of what is usual between
neighbours of their class, in features, and of what is usual between inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from samepath.keys import key, keys_for

Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]

NEAR = 0.1
_PAIRS = 512
_CANDIDATES = 5
"""Nearest neighbours that are looked at."""


def exact_duplicates(digests: NDArray[np.uint8], labels: Ints | None) -> tuple[Truths, Truths]:
    """Copies of an earlier example with the same label; and copies whose label most others of the
    same inputs do not have (of a tie, the first label stands)."""
    _, group = np.unique(digests, axis=0, return_inverse=True)
    group = group.ravel()
    copies, contradicted = np.zeros(len(group), dtype=bool), np.zeros(len(group), dtype=bool)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows) < 2:
            continue
        wrong = np.zeros(len(rows), dtype=bool)
        if labels is not None:
            found, first, counts = np.unique(labels[rows], return_index=True, return_counts=True)
            wrong = labels[rows] != found[np.lexsort((first, -counts))[0]]
        contradicted[rows[wrong]] = True
        copies[rows[~wrong][1:]] = True
    return copies, contradicted


def near_duplicates(
    neighbors: Ints,
    distances: NDArray[np.floating],
    groups: Ints,
    to_centre: NDArray[np.floating],
    inputs: Callable[[Ints], NDArray[np.float32]],
    *,
    candidates: Truths,
    seed: int = 0,
) -> Truths:
    """Those that are nearly another example of the same group; of such, the one nearest to its
    cluster's centre is not among them.

    `neighbors`, `distances`: in feature space, without oneself, nearest first. `groups`: classes.
    `inputs(rows)`: inputs as rows of numbers. Only `candidates` are looked at.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    dropped = np.zeros(len(groups), dtype=bool)
    pairs = _close_pairs(neighbors, distances, groups, candidates)
    if not len(pairs):
        return dropped
    sample = np.argsort(keys_for(key("pairs", seed), np.arange(len(groups))))[: 2 * _PAIRS]
    shown = inputs(np.sort(sample))
    half = len(shown) // 2
    usual = np.median(np.linalg.norm(shown[:half] - shown[half : 2 * half], axis=1))
    rows, place = np.unique(pairs, return_inverse=True)
    shown = inputs(rows)
    ends = shown[place.reshape(pairs.shape)]
    pairs = pairs[np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1) <= NEAR * usual]
    size = len(groups)
    graph = coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(size, size))
    _, part = connected_components(graph, directed=False)
    involved = np.unique(pairs)
    order = involved[np.lexsort((involved, to_centre[involved], part[involved]))]
    dropped[order[np.diff(part[order], prepend=-1) == 0]] = True
    return dropped


def _close_pairs(
    neighbors: Ints, distances: NDArray[np.floating], groups: Ints, candidates: Truths
) -> Ints:
    """Pairs of a group that are much closer in feature space than its neighbours usually are."""
    usual = np.zeros(len(groups))
    for group in np.unique(groups):
        usual[groups == group] = np.median(distances[groups == group, 0])
    near = neighbors[:, :_CANDIDATES]
    close = distances[:, :_CANDIDATES] <= NEAR * usual[:, None]
    close &= (groups[near] == groups[:, None]) & candidates[near] & candidates[:, None]
    row, column = np.nonzero(close)
    return np.stack([row, near[row, column]], axis=1).astype(np.int64)
