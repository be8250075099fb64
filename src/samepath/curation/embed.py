"""Features to a map: PCA, then t-SNE to the plane.

In: features, one row per example. Out: `reduced_` (after PCA), the nearest neighbours in it, and
`map_`. Guaranteed: the same features and settings give the same map, bit for bit, at any number of
threads on one kind of machine. openTSNE's own search for neighbours is approximate and depends on
its threads; here neighbours are found exactly, which at 20,000 points is also quicker, and nothing
else in it depends on threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.keys import key, keys_for

Floats = NDArray[np.float32]
Index = NDArray[np.int64]
Search = Callable[[NDArray[Any], NDArray[Any], int], tuple[Index, Floats]]

LEAST_POINTS = 10
EARLY_ITERATIONS = 250
ITERATIONS = 500
"""openTSNE's own."""
_LARGE = 4096
"""Features and examples beyond this many: the exact decomposition takes too long."""
_FEW = 2000
_FOURIER = 5000
"""Points from which the gradient by Fourier transforms is the quicker one."""
_START_WIDTH = 1e-4
_ROWS = 256
"""Queries that scikit-learn looks at together: parts of a search are multiples of it."""
_PRODUCTS = 30_000_000
"""Distances that are computed between two looks at whether to stop: well below a second."""
_EVERY = 10


class Embedding:
    """PCA to a few dozen dimensions, then t-SNE to two."""

    def __init__(
        self,
        *,
        num_components: int = 50,
        perplexity: float = 30.0,
        seed: int = 0,
        num_threads: int | None = None,
    ) -> None:
        self.num_components = num_components
        self.perplexity = perplexity
        self.seed = seed
        self.num_threads = num_threads

    def fit(
        self,
        features: NDArray[Any],
        progress: Callable[[int], None] = lambda iterations: None,
        search: Search | None = None,
    ) -> Embedding:
        """Learn the map; `progress` is told iterations, of EARLY_ITERATIONS + ITERATIONS. `search`
        finds neighbours in place of `nearest`: it may know them already."""
        from openTSNE import TSNE
        from openTSNE.affinity import PerplexityBasedNN

        if len(features) < LEAST_POINTS:
            raise UserError(
                f"{len(features)} examples are too few for a map; give at least {LEAST_POINTS}"
            )
        self.reduced_ = self._reduce(features)
        perplexity = min(self.perplexity, (len(features) - 1) / 3)
        num_neighbors = int(3 * perplexity)
        search = search or nearest
        self.neighbors_, self.distances_ = search(self.reduced_, self.reduced_, num_neighbors + 1)
        _drop_self(self.neighbors_, self.distances_)
        self.neighbors_, self.distances_ = self.neighbors_[:, 1:], self.distances_[:, 1:]
        few = len(features) < _FEW  # threads would wait for one another
        threads = self.num_threads or (1 if few else len(os.sched_getaffinity(0)))
        index = _exact_index(self.reduced_, self.neighbors_, self.distances_)
        affinities = PerplexityBasedNN(knn_index=index, perplexity=perplexity, n_jobs=threads)
        done = -_EVERY  # the first call comes before anything is done, in both phases

        def told(iteration: int, error: float, places: NDArray[Any]) -> None:
            nonlocal done
            done += _EVERY
            progress(done)

        self._tsne = TSNE(
            n_iter=ITERATIONS,
            early_exaggeration_iter=EARLY_ITERATIONS,
            n_jobs=threads,
            negative_gradient_method="bh" if len(features) < _FOURIER else "fft",
            callbacks=told,
            callbacks_every_iters=_EVERY,
        ).fit(affinities=affinities, initialization=self._start())
        self.map_: Floats = np.asarray(self._tsne, dtype=np.float32)
        return self

    def transform(self, features: NDArray[Any]) -> Floats:
        """Places on the map for other examples; those it was learned from stay where they are."""
        return np.asarray(self._tsne.transform(self.reduce(features)), dtype=np.float32)

    def reduce(self, features: NDArray[Any]) -> Floats:
        """Other examples after the same PCA."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        with threadpool_limits(1, user_api="blas"):
            reduced = self._pca.transform(features.astype(np.float32))
        return np.ascontiguousarray(reduced, dtype=np.float32)

    def _reduce(self, features: NDArray[Any]) -> Floats:
        from sklearn.decomposition import PCA
        from threadpoolctl import threadpool_limits

        num_examples, width = features.shape
        number = min(self.num_components, width, num_examples - 1)
        solver = "covariance_eigh" if width <= num_examples else "full"
        if min(num_examples, width) > _LARGE:
            solver = "randomized"
        state = key("pca", self.seed) % 2**32
        self._pca = PCA(number, svd_solver=solver, random_state=state)
        # sums are cut by threads; features that are all equal have no variance to take shares of
        with threadpool_limits(1, user_api="blas"), np.errstate(invalid="ignore"):
            reduced: Floats = self._pca.fit_transform(features.astype(np.float32))
        return np.ascontiguousarray(reduced, dtype=np.float32)

    def _start(self) -> NDArray[np.float64]:
        """The first two components, tiny, and parted by the seed where points coincide."""
        start = np.zeros((len(self.reduced_), 2))
        first = self.reduced_[:, :2].astype(np.float64)
        start[:, : first.shape[1]] = first * (_START_WIDTH / max(float(first[:, 0].std()), 1e-30))
        bits = keys_for(key("map", self.seed), np.arange(start.size))
        jitter = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
        return start + jitter.reshape(start.shape) * (0.01 * _START_WIDTH)


def nearest(
    points: NDArray[Any],
    queries: NDArray[Any],
    number: int,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Index, Floats]:
    """Exact nearest points of each query: their numbers and distances, nearest first. In parts, so
    that a person is told (queries done, of all) and can stop it."""
    from sklearn.neighbors import NearestNeighbors

    number = min(number, len(points))
    found = NearestNeighbors(n_neighbors=number, algorithm="brute").fit(points)
    at_once = max(_ROWS, _PRODUCTS // max(len(points), 1) // _ROWS * _ROWS)
    parts = []
    for start in range(0, len(queries), at_once):
        told(start, len(queries))
        parts.append(found.kneighbors(queries[start : start + at_once]))
    told(len(queries), len(queries))
    distances, neighbors = (np.concatenate(each) for each in zip(*parts, strict=True))
    # among equals the lower number first, whatever order they were found in
    order = np.lexsort((neighbors, distances), axis=1)
    neighbors = np.take_along_axis(neighbors, order, 1)
    return neighbors.astype(np.int64), np.take_along_axis(distances, order, 1).astype(np.float32)


def _drop_self(neighbors: Index, distances: Floats) -> None:
    """Put every point first among its own neighbours (one of many duplicates may not be)."""
    own = neighbors == np.arange(len(neighbors))[:, None]
    place = np.where(own.any(1), own.argmax(1), neighbors.shape[1] - 1)
    for row in np.flatnonzero(place):
        there = place[row]
        neighbors[row, 1 : there + 1] = neighbors[row, :there].copy()
        distances[row, 1 : there + 1] = distances[row, :there].copy()
        neighbors[row, 0], distances[row, 0] = row, 0.0


def _exact_index(points: Floats, neighbors: Index, distances: Floats) -> Any:
    """Neighbours that are already known, as openTSNE asks for them; new points are searched for."""
    from openTSNE.nearest_neighbors import KNNIndex

    class Exact(KNNIndex):  # type: ignore[misc]
        VALID_METRICS = ("euclidean",)

        def build(self) -> tuple[Index, NDArray[np.float64]]:
            return neighbors, distances.astype(np.float64)

        def query(self, query: NDArray[Any], k: int) -> tuple[Index, NDArray[np.float64]]:
            found, far = nearest(points, query, k)
            return found, far.astype(np.float64)

    return Exact(points, neighbors.shape[1])
