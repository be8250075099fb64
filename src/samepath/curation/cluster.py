"""Clusters of each class on the map, and the points outside of them.

In: places on the map and labels. Out: for every point a cluster number, -1 for noise. As in Gahlot
et al. 2020, DBSCAN (Ester et al. 1996) runs on each class by itself.

min_samples is 5: Ester et al. found k = 4 neighbours enough in the plane, the point itself counts,
and it is what the paper used. eps is where the sorted distances to the k-th neighbour, k =
min_samples - 1, bend upwards (the knee; Satopaa et al. 2011): a point is at the heart of a cluster
exactly when its distance to that neighbour is at most eps, so the curve shows what an eps leaves
out. Where there is no knee, eps is the distance that 95 of 100 points stay below.

DBSCAN is our own: in the plane, by Delaunay's triangulation, it takes as long at every eps, and
most of it is done once for all eps (the explorer's slider asks at each move); scikit-learn's lists
all pairs within eps.

A stratified sample on a grid is what the paper leaves to future work: fewer examples that still
cover the map. Every occupied cell keeps at least one point, the others are shared in proportion to
what is in a cell; the choice within a cell comes from the seed and the example's number alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.keys import key, keys_for

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]

MIN_SAMPLES = 5
NO_KNEE_SHARE = 0.95
LEAST_POINTS = 10
"""A class with fewer is kept whole: in so few points no density can be told from chance."""
_KNEE_POINTS = 2000
POINTS_PER_CELL = 10
"""Points in a cell on average, where points were spread evenly over the class's rectangle."""


@dataclass(frozen=True, kw_only=True)
class ClassClusters:
    """What was found of one class."""

    label: int | None
    """None is everything, where there are no labels; settings for it are those of 0."""
    eps: float | None
    """None where the class is too small to be clustered."""
    min_samples: int
    how: str
    """Where eps is from: knee, no knee, given, or too few points."""
    num_clusters: int


class ClassClustering:
    """DBSCAN (or HDBSCAN) of each class on the map."""

    def __init__(
        self,
        *,
        method: Literal["dbscan", "hdbscan"] = "dbscan",
        eps: Mapping[int, float] | None = None,
        min_samples: int = MIN_SAMPLES,
    ) -> None:
        self.method = method
        self.eps = eps
        """The eps of each class by label; the knee's where not given."""
        self.min_samples = min_samples

    def fit(self, points: NDArray[np.floating], labels: Ints | None = None) -> ClassClustering:
        """Learn `labels_` (a cluster per point, numbered within its class) and `classes_`."""
        self.labels_: Ints = np.full(len(points), -1, dtype=np.int64)
        self.classes_: list[ClassClusters] = []
        groups: list[int | None] = [None] if labels is None else np.unique(labels).tolist()
        for label in groups:
            rows = np.arange(len(points)) if labels is None else np.flatnonzero(labels == label)
            found, facts = self._fit_class(points[rows].astype(np.float64), label)
            self.labels_[rows] = found
            self.classes_.append(facts)
        return self

    def _fit_class(self, points: Floats, label: int | None) -> tuple[Ints, ClassClusters]:
        min_samples, how = self.min_samples, "given"
        eps = (self.eps or {}).get(label or 0)
        if len(points) < max(LEAST_POINTS, min_samples + 1):
            found, how, eps = np.zeros(len(points), np.int64), "too few points", None
        else:
            if eps is None:
                eps, how = knee(k_distances(points, min_samples - 1))
            method = _hdbscan if self.method == "hdbscan" else cluster_class
            found = method(points, eps, min_samples)
        number = int(found.max(initial=-1)) + 1
        return found, ClassClusters(
            label=label, eps=eps, min_samples=min_samples, how=how, num_clusters=number
        )


def k_distances(points: NDArray[np.floating], k: int) -> Floats:
    """Distance of each point to its k-th neighbour, ascending."""
    return np.sort(PlaneClusters(points).distances(k)) if k >= 1 else np.zeros(len(points))


def knee(curve: Floats) -> tuple[float, str]:
    """eps of a k-distance curve, and whether it is the knee's."""
    from kneed import KneeLocator

    thinned = np.unique(np.linspace(0, len(curve) - 1, _KNEE_POINTS).round().astype(int))
    curve = curve[thinned]  # kneed takes seconds for tens of thousands
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when it finds none, and says None
        found = KneeLocator(
            np.arange(len(curve)), curve, curve="convex", direction="increasing"
        ).knee
    # A bend in the lower half is one between dense and less dense points, not the way to noise
    if found is not None and found >= len(curve) // 2 and curve[int(found)] > 0:
        return float(curve[int(found)]), "knee"
    fallback = float(np.quantile(curve, NO_KNEE_SHARE))
    return (fallback if fallback > 0 else float(np.nextafter(0, 1))), "no knee"


def cluster_class(places: NDArray[np.floating], eps: float, min_samples: int) -> Ints:
    """DBSCAN of one class's points in the plane; see PlaneClusters."""
    return PlaneClusters(places).at(eps, min_samples)


class PlaneClusters:
    """DBSCAN of points in the plane, again and again: what does not depend on eps is kept.

    A point with min_samples points (itself among them) within eps is a core point; core points
    within eps of one another are of one cluster; others belong to the nearest core point if it is
    within eps, and else are noise. Noise and core points are those of every DBSCAN.

    Two core points within eps are joined by edges of the Delaunay triangulation of all points, or
    lie near a point that is none: if no edge joins them, the disc over them holds another point. A
    core point there is nearer to both than they are to one another, so they are joined through it;
    if there is none, both are within eps of a point that is no core point. Only those are
    triangulated again at every eps, and each triangulation contains a minimum spanning tree, which
    connects the same points at every length.
    """

    def __init__(self, places: NDArray[np.floating]) -> None:
        self.points: Floats = np.ascontiguousarray(places, dtype=np.float64)
        self._far: dict[int, Floats] = {}

    def at(self, eps: float, min_samples: int) -> Ints:
        """Clusters from 0, the largest first; -1 is noise."""
        if eps <= 0 or min_samples < 1:
            raise UserError(f"eps {eps} and min_samples {min_samples}: both must be above 0")
        found = np.full(len(self.points), -1, dtype=np.int64)
        if len(self.points) < min_samples:
            return found
        is_core = self.distances(min_samples - 1) <= eps
        core, others = np.flatnonzero(is_core), np.flatnonzero(~is_core)
        if not len(core):
            return found
        edges, lengths = self._mesh
        joined = [edges[(lengths <= eps) & is_core[edges].all(1)]]
        if len(others):
            joined.append(self._past(core, others, eps))
        parts = _connected(np.concatenate(joined), len(self.points))
        if len(others):
            far, nearest = _nearest_of(self.points[core], self.points[others], eps)
            within = far <= eps
            found[others[within]] = parts[core[nearest[within]]]
        found[core] = parts[core]
        return _largest_first(found)

    def distances(self, k: int) -> Floats:
        """Distance of each point to its k-th neighbour, in the points' order."""
        if k not in self._far:
            far, _ = self._tree.query(self.points, [k + 1])
            self._far[k] = far[:, 0]
        return self._far[k]

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self.points)

    @cached_property
    def _mesh(self) -> tuple[Ints, Floats]:
        """Edges of the triangulation of all points, and their lengths."""
        edges = _edges(self.points)
        return edges, _lengths(self.points, edges)

    def _past(self, core: Ints, others: Ints, eps: float) -> Ints:
        """Edges within eps between core points that are near a point that is none."""
        far, _ = _nearest_of(self.points[others], self.points[core], eps)
        some = core[far <= eps]
        if len(some) < 2:
            return np.zeros((0, 2), dtype=np.int64)
        edges = _edges(self.points[some])
        found: Ints = some[edges[_lengths(self.points[some], edges) <= eps]]
        return found


def _nearest_of(points: Floats, queries: Floats, eps: float) -> tuple[Floats, Ints]:
    """Distance of each query to its nearest point, and which; infinite beyond eps."""
    from scipy.spatial import cKDTree

    found: tuple[Floats, Ints] = cKDTree(points).query(
        queries, distance_upper_bound=np.nextafter(eps, np.inf)
    )
    return found


def _lengths(points: Floats, edges: Ints) -> Floats:
    found: Floats = np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1)
    return found


def _connected(edges: Ints, number: int) -> Ints:
    """The component of each of so many points."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    start, stop = edges.T
    graph = coo_array((np.ones(len(start), np.int8), (start, stop)), shape=(number, number))
    _, parts = connected_components(graph, directed=False)
    return np.asarray(parts, dtype=np.int64)


def _edges(points: Floats) -> NDArray[np.int64]:
    """Pairs that contain a minimum spanning tree of points in the plane."""
    from scipy.spatial import Delaunay, QhullError

    if len(points) <= 3:
        return np.array([(i, j) for j in range(len(points)) for i in range(j)] or [(0, 0)])
    try:
        mesh = Delaunay(points)
    except QhullError:  # all on a line: neighbours along it
        order = np.lexsort(points.T)
        return np.stack([order[:-1], order[1:]], axis=1)
    corners = mesh.simplices
    pairs = [corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]]
    pairs.append(mesh.coplanar[:, [0, 2]])  # too close to a corner to be one
    return np.concatenate(pairs).astype(np.int64)


def _hdbscan(points: Floats, eps: float, min_samples: int) -> Ints:
    """HDBSCAN (Campello et al. 2013), told that one class may be one cluster, and not to split
    what is closer than eps (Malzer and Baum 2020): where several of its clusters are parts of one
    DBSCAN cluster at eps, that one takes their place.

    With its default settings it cuts single blobs to pieces and calls most of them noise.
    scikit-learn's own cluster_selection_epsilon raises a TypeError beside numpy 2.4 (scikit-learn
    #33219), as soon as two clusters are to be joined.
    """
    from sklearn.cluster import HDBSCAN

    least = max(2 * min_samples, len(points) // 50)
    model = HDBSCAN(
        min_cluster_size=least, min_samples=min_samples, allow_single_cluster=True, copy=True
    )
    found = np.asarray(model.fit(points).labels_, dtype=np.int64)
    dense = cluster_class(points, eps, min_samples)
    sizes = np.bincount(dense[dense >= 0])
    if found.max() < 1:  # all of the class is one cluster, which HDBSCAN cuts at its densest point
        return np.where(np.append(sizes >= least, False)[dense], 0, -1)
    parts = np.bincount(found[found >= 0])
    for number in range(len(sizes)):
        inside = dense == number
        mine = np.bincount(found[inside & (found >= 0)], minlength=len(parts))
        joined = np.flatnonzero(2 * mine > parts)
        if len(joined) > 1:
            found[inside | np.isin(found, joined)] = joined[0]
    return _largest_first(found)


def _largest_first(found: Ints) -> Ints:
    """Number clusters anew, the largest 0."""
    present, place, sizes = np.unique(found[found >= 0], return_inverse=True, return_counts=True)
    rank = np.empty(len(present), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(present))
    numbered = found.copy()
    numbered[found >= 0] = rank[place]
    return numbered


def sample_grid(
    points: NDArray[np.floating], number: int, *, examples: Ints, seed: int = 0
) -> tuple[Truths, Ints]:
    """Choose which of a class's points are kept, `number` of them, and the cell of each.

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
