"""Clusters on the map, and samples of it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN

from samepath.curation.cluster import (
    ClassClustering,
    PlaneClusters,
    cluster_class,
    grid_cells,
    k_distances,
    knee,
    sample_grid,
)
from samepath.errors import UserError


def blobs(*sizes: int, seed: int = 0, apart: float = 20.0) -> NDArray[np.float64]:
    draws = np.random.default_rng(seed)
    points = [draws.normal(size=(n, 2)) for n in sizes]
    for number, part in enumerate(points):
        part[:, 0] += apart * number
    return np.concatenate(points)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    number=st.integers(1, 120),
    kind=st.sampled_from(["plane", "grid", "line", "copies"]),
    eps=st.sampled_from([0.05, 0.3, 1.0, 3.0, 40.0]),
    min_samples=st.integers(1, 7),
)
def test_it_is_dbscan(seed: int, number: int, kind: str, eps: float, min_samples: int) -> None:
    points = np.random.default_rng(seed).normal(size=(number, 2)) * 4
    if kind == "grid":
        points = points.round()
    elif kind == "line":
        points[:, 1] = 1.0
    elif kind == "copies":
        points = np.repeat(points[:6], 9, axis=0)
    plane = PlaneClusters(points)
    plane.at(1.7, min_samples)  # what is kept of another eps does not show
    found = plane.at(eps, min_samples)
    theirs = DBSCAN(eps=eps, min_samples=min_samples).fit(points)
    assert np.array_equal(found < 0, theirs.labels_ < 0)
    core = theirs.core_sample_indices_
    pairs = set(zip(found[core].tolist(), theirs.labels_[core].tolist(), strict=True))
    assert len(pairs) == len(set(found[core])) == len(set(theirs.labels_[core]))
    sizes = np.bincount(found[found >= 0])
    assert (np.diff(sizes) <= 0).all(), "the largest cluster is 0"


def test_twenty_thousand_points_are_clustered_while_one_looks() -> None:
    points = blobs(4000, 4000, 4000, 4000, 4000)
    cluster_class(points[:100], 1.0, 5)
    took = []
    for eps in (0.2, 1.0, 10.0):  # sklearn takes gigabytes at the last
        began = time.process_time()
        cluster_class(points, eps, 5)
        took.append(time.process_time() - began)
    assert max(took) < 0.6, took


@pytest.mark.parametrize("sizes", [(5000,), (4000,) * 5])
def test_a_slider_that_moves_repeats_little(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted as work, which no other program slows: at 5,000 points (a class of 50,000 in ten) and
    20,000, every move after the first triangulates a small part of them again, and asks no tree
    for k-th neighbours."""
    import scipy.spatial

    work = {"triangulated": 0, "neighbours": 0}

    class Counted(scipy.spatial.Delaunay):  # type: ignore[misc]
        def __init__(self, points: NDArray[np.float64]) -> None:
            work["triangulated"] += len(points)
            super().__init__(points)

    class Tree(scipy.spatial.cKDTree):  # type: ignore[misc]
        def query(self, x: NDArray[np.float64], k: object = 1, **how: float) -> object:
            work["neighbours"] += len(x) if k != 1 else 0
            return super().query(x, k, **how)

    monkeypatch.setattr(scipy.spatial, "Delaunay", Counted)
    monkeypatch.setattr(scipy.spatial, "cKDTree", Tree)
    plane, number = PlaneClusters(blobs(*sizes)), sum(sizes)
    usual = float(np.quantile(plane.distances(4), 0.95))
    plane.at(usual, 5)
    assert work["neighbours"] == number
    for share in (0.7, 0.8, 0.9, 1.1, 1.3, 2.0):
        work["triangulated"] = 0
        plane.at(share * usual, 5)
        assert work["triangulated"] < 0.4 * number
    assert work["neighbours"] == number, "once for all eps"


def test_the_knee_parts_blobs_from_scattered_points() -> None:
    draws = np.random.default_rng(3)
    far = draws.uniform(-200, 200, size=(12, 2)) + 300
    points = np.concatenate([blobs(300, 300), far])
    eps, how = knee(k_distances(points, 4))
    assert how == "knee"
    fitted = ClassClustering().fit(points)
    assert (fitted.labels_[-12:] == -1).all()
    assert (fitted.labels_[:-12] == -1).mean() < 0.15
    assert fitted.classes_[0].eps == eps
    assert fitted.classes_[0].num_clusters >= 2


def test_without_a_knee_a_share_is_kept() -> None:
    eps, how = knee(np.ones(100))
    assert (eps, how) == (1.0, "no knee")


def test_settings_by_class() -> None:
    points, labels = blobs(50, 50), np.repeat([0, 1], 50)
    fitted = ClassClustering(eps={1: 0.01}, min_samples=3).fit(points, labels)
    zero, one = fitted.classes_
    assert (zero.how, zero.min_samples) == ("knee", 3)
    assert (one.how, one.eps, one.min_samples) == ("given", 0.01, 3)
    assert (fitted.labels_[50:] == -1).all(), "nothing is that close"


def test_a_class_of_few_points_is_kept_whole() -> None:
    labels = np.array([0] * 60 + [7] * 4)
    fitted = ClassClustering().fit(blobs(60, 4), labels)
    small = fitted.classes_[1]
    assert (small.label, small.how, small.eps) == (7, "too few points", None)
    assert (fitted.labels_[60:] == 0).all()


def test_hdbscan_leaves_single_blobs_in_one_piece() -> None:
    points, labels = blobs(400, 400), np.repeat([0, 1], 400)
    fitted = ClassClustering(method="hdbscan").fit(points, labels)
    assert [facts.num_clusters for facts in fitted.classes_] == [1, 1]
    assert (fitted.labels_ < 0).mean() < 0.2


def test_hdbscan_of_large_maps_joins_what_is_closer_than_eps() -> None:
    """scikit-learn's own cluster_selection_epsilon raises a TypeError on such maps (#33219)."""
    draws = np.random.default_rng(0)
    close = [draws.normal((2.0 * k, 0), 0.25, (700, 2)) for k in range(4)]
    far = draws.normal((40, 0), 0.5, (900, 2))
    alone = draws.uniform(60, 160, (40, 2))
    points = np.concatenate([*close, far, alone])
    apart = ClassClustering(method="hdbscan", eps={0: 0.15}).fit(points)
    assert apart.classes_[0].num_clusters == 5
    joined = ClassClustering(method="hdbscan", eps={0: 1.2}).fit(points)
    assert joined.classes_[0].num_clusters == 2
    assert set(joined.labels_[:2800]) == {0}
    assert set(joined.labels_[2800:3700]) == {1}
    assert (joined.labels_[3700:] < 0).all()


@pytest.mark.parametrize(("eps", "min_samples"), [(0.0, 5), (-1.0, 5), (1.0, 0)])
def test_settings_that_mean_nothing(eps: float, min_samples: int) -> None:
    with pytest.raises(UserError, match="above 0"):
        cluster_class(blobs(20), eps, min_samples)


def test_a_grid_sample_covers_the_map() -> None:
    points = np.concatenate([blobs(900), blobs(3, seed=1) + 50.0])
    examples = np.arange(len(points)) * 7
    kept, cells = sample_grid(points, 300, examples=examples, seed=1)
    assert kept.sum() == 300
    assert set(cells[kept]) == set(cells), "every occupied cell is represented"
    other, _ = sample_grid(points, 300, examples=examples, seed=2)
    again, _ = sample_grid(points, 300, examples=examples, seed=1)
    assert np.array_equal(kept, again)
    assert not np.array_equal(kept, other)
    order = np.random.default_rng(0).permutation(len(points))
    moved, _ = sample_grid(points[order], 300, examples=examples[order], seed=1)
    assert np.array_equal(moved, kept[order]), "an example's fate has nothing to do with its place"


def test_a_grid_sample_of_any_size() -> None:
    points, examples = blobs(40), np.arange(40)
    for number in (0, 1, 3, 39, 40, 99):
        kept, _ = sample_grid(points, number, examples=examples)
        assert kept.sum() == min(number, 40)
    assert len(sample_grid(points[:0], 5, examples=examples[:0])[0]) == 0
    assert len(set(grid_cells(points, 4))) > 4
