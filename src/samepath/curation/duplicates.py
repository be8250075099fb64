"""Near-duplicates: examples that show the same, though not byte for byte.

In: nearest neighbours in feature space, classes, and pictures (or, of what is none, inputs as rows
of numbers). Out: pairs of the same class that show the same; which of them to drop. Guaranteed: the
same pairs at any number of threads.

The network only proposes: neighbours that are closer than is usual of their class. The pixels
decide. Two pictures show the same if their edges (differences between neighbouring pixels, which a
change of brightness scales at most) correlate at LIKE or more, one of them shifted by up to an
eighth of its side, and mirrored or not. Pictures of fewer than LEAST_SIDE pixels, and what is no
picture, must be close as they are: a tenth of what is usual between neighbours of their class in
features, and of what is usual between inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from samepath.keys import key, keys_for

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]

PROPOSED = 1.5
"""Distance in features, over the median to the nearest neighbour of the class, of pictures that are
compared."""
LIKE = 0.8
_HALF_LIKE = 0.5
"""The same at half the size, where most pairs are ruled out quickly."""
LEAST_SIDE = 16
_SHIFTS = 8
"""A shift is at most the side over this."""
NEAR = 0.1
_PAIRS = 512
_CANDIDATES = 10
"""Nearest neighbours that are looked at."""
_AT_ONCE = 256


def near_pairs(
    neighbors: Ints,
    distances: NDArray[np.floating],
    groups: Ints,
    images: NDArray[np.uint8] | None,
    inputs: Callable[[Ints], Floats],
    *,
    seed: int = 0,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Ints:
    """Pairs (P, 2) of a group that show the same, the lower number first.

    `neighbors`, `distances`: in feature space, without oneself, nearest first. `groups`: classes.
    `images`: thumbnails (N, H, W) or (N, H, W, 3). `inputs(rows)`: inputs as rows of numbers.
    `told(done, total)`: progress, in pairs.
    """
    pictures = images is not None and min(images.shape[1:3]) >= LEAST_SIDE
    pairs = _proposed(neighbors, distances, groups, PROPOSED if pictures else NEAR)
    if not len(pairs):
        return pairs
    if images is None or not pictures:
        return pairs[_close_as_they_are(pairs, len(groups), inputs, seed)]
    alike = np.zeros(len(pairs), dtype=bool)
    for start in range(0, len(pairs), _AT_ONCE):
        told(start, len(pairs))
        some = pairs[start : start + _AT_ONCE]
        alike[start : start + _AT_ONCE] = show_the_same(images[some[:, 0]], images[some[:, 1]])
    told(len(pairs), len(pairs))
    return pairs[alike]


def all_but_one(pairs: Ints, to_centre: NDArray[np.floating], candidates: Truths) -> Truths:
    """Of each set of near-duplicates among the candidates all but the one nearest to its cluster's
    centre."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = len(candidates)
    dropped = np.zeros(size, dtype=bool)
    pairs = pairs[candidates[pairs].all(1)]
    if not len(pairs):
        return dropped
    graph = coo_array((np.ones(len(pairs), np.int8), tuple(pairs.T)), shape=(size, size))
    _, part = connected_components(graph, directed=False)
    involved = np.unique(pairs)
    order = involved[np.lexsort((involved, to_centre[involved], part[involved]))]
    dropped[order[np.diff(part[order], prepend=-1) == 0]] = True
    return dropped


def show_the_same(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> Truths:
    """Whether each picture of `first` shows the same as that of `second` in the same place."""
    alike = np.zeros(len(first), dtype=bool)
    one, other = _grey(first), _grey(second)
    shift = max(1, min(one.shape[1:]) // _SHIFTS)
    rows = np.flatnonzero(likeness(_halved(one), _halved(other), -(-shift // 2)) >= _HALF_LIKE)
    if len(rows):
        alike[rows] = likeness(one[rows], other[rows], shift) >= LIKE
    return alike


def likeness(first: Floats, second: Floats, most_shift: int) -> Floats:
    """The highest correlation of edges, over shifts of up to so many pixels, mirrored or not."""
    best = np.full(len(first), -1.0, dtype=np.float32)
    edges = _edges(first)
    for other in (second, second[:, :, ::-1]):
        others = _edges(other)
        for down, right in _shifts(most_shift):
            one, two = _overlap(edges, down, right), _overlap(others, -down, -right)
            product = np.einsum("nchw,nchw->n", one, two)
            sizes = np.einsum("nchw,nchw->n", one, one) * np.einsum("nchw,nchw->n", two, two)
            np.maximum(best, product / np.sqrt(np.maximum(sizes, 1.0)), out=best)
    return best


def _shifts(most: int) -> Iterator[tuple[int, int]]:
    for down in range(-most, most + 1):
        for right in range(-most, most + 1):
            yield down, right


def _overlap(edges: Floats, down: int, right: int) -> Floats:
    """The part of pictures that is left when they are moved so far over others."""
    height, width = edges.shape[2:]
    rows = slice(max(down, 0), height + min(down, 0))
    return edges[:, :, rows, max(right, 0) : width + min(right, 0)]


def _grey(images: NDArray[np.uint8]) -> Floats:
    grey = images.astype(np.float32)
    return grey.mean(3) if grey.ndim == 4 else grey


def _halved(images: Floats) -> Floats:
    height, width = (size // 2 for size in images.shape[1:])
    cut = images[:, : 2 * height, : 2 * width]
    halved: Floats = cut.reshape(len(cut), height, 2, width, 2).mean((2, 4))
    return halved


def _edges(images: Floats) -> Floats:
    """(N, 2, H - 1, W - 1): differences to the right and downwards."""
    right = images[:, :-1, 1:] - images[:, :-1, :-1]
    down = images[:, 1:, :-1] - images[:, :-1, :-1]
    return np.stack([right, down], axis=1)


def _proposed(neighbors: Ints, distances: NDArray[np.floating], groups: Ints, limit: float) -> Ints:
    """Pairs of a group that are closer in feature space than its neighbours usually are, each
    once."""
    usual = np.zeros(len(groups))
    for group in np.unique(groups):
        usual[groups == group] = np.median(distances[groups == group, 0])
    near = neighbors[:, :_CANDIDATES]
    close = distances[:, :_CANDIDATES] <= limit * usual[:, None]
    close &= groups[near] == groups[:, None]
    row, column = np.nonzero(close)
    pairs = np.sort(np.stack([row, near[row, column]], axis=1), axis=1)
    return np.unique(pairs, axis=0).astype(np.int64).reshape(-1, 2)


def _close_as_they_are(
    pairs: Ints, num_examples: int, inputs: Callable[[Ints], Floats], seed: int
) -> Truths:
    """Whether the inputs of each pair are much closer than those of a pair at random."""
    sample = np.argsort(keys_for(key("pairs", seed), np.arange(num_examples)))[: 2 * _PAIRS]
    shown = inputs(np.sort(sample))
    half = len(shown) // 2
    usual = np.median(np.linalg.norm(shown[:half] - shown[half : 2 * half], axis=1))
    rows, place = np.unique(pairs, return_inverse=True)
    ends = inputs(rows)[place.reshape(pairs.shape)]
    close: Truths = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1) <= NEAR * usual
    return close
