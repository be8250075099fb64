"""The map: the same twice, at any number of threads, and true to the features."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from samepath.curation import embed
from samepath.curation.embed import Embedding, nearest
from samepath.errors import UserError

DIGITS = load_digits()
FEATURES = DIGITS.data[:500].astype(np.float32)


@pytest.fixture(scope="module")
def fitted() -> Embedding:
    return Embedding(num_threads=1).fit(FEATURES)


def test_the_same_map_twice_at_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "EARLY_ITERATIONS", 30)  # threads that share cores are slow
    monkeypatch.setattr(embed, "ITERATIONS", 30)
    first, second, third = (Embedding(num_threads=n).fit(FEATURES[:80]) for n in (1, 1, 2))
    assert first.map_.tobytes() == second.map_.tobytes() == third.map_.tobytes()
    assert first.reduced_.tobytes() == third.reduced_.tobytes()


def test_another_seed_is_another_map() -> None:
    one, other = (Embedding(seed=seed).fit(FEATURES[:60]) for seed in (0, 1))
    assert one.map_.tobytes() != other.map_.tobytes()


def test_neighbours_on_the_map_are_of_one_class(fitted: Embedding) -> None:
    labels = DIGITS.target[:500]
    judge = KNeighborsClassifier(6).fit(fitted.map_, labels)
    near = judge.kneighbors(fitted.map_, return_distance=False)[:, 1:]
    assert (labels[near] == labels[:, None]).mean() > 0.88  # 0.92 when this was written


def test_neighbours_are_exact_and_without_oneself(fitted: Embedding) -> None:
    reduced = fitted.reduced_.astype(np.float64)
    all_distances = np.linalg.norm(reduced[:, None] - reduced[None], axis=2)
    np.fill_diagonal(all_distances, np.inf)
    assert np.array_equal(fitted.neighbors_[:, 0], all_distances.argmin(1))
    assert (fitted.neighbors_ != np.arange(500)[:, None]).all()


def test_duplicates_are_not_their_own_neighbours() -> None:
    points = np.repeat(FEATURES[:30], 3, axis=0)
    found = Embedding(perplexity=5).fit(points)
    assert (found.neighbors_ != np.arange(90)[:, None]).all()
    assert np.isfinite(found.map_).all()


def test_new_points_are_placed_beside_their_like(fitted: Embedding) -> None:
    new, labels = DIGITS.data[500:560].astype(np.float32), DIGITS.target[500:560]
    places = fitted.transform(new)
    assert fitted.transform(new).tobytes() == places.tobytes()
    near, _ = nearest(fitted.map_, places, 5)
    agree = (DIGITS.target[near] == labels[:, None]).mean()
    assert agree > 0.75  # 0.86 when this was written


@pytest.mark.parametrize("width", [1, 2, 700])
def test_few_and_many_features(width: int) -> None:
    features = np.random.default_rng(0).normal(size=(40, width)).astype(np.float32)
    found = Embedding().fit(features)
    assert found.map_.shape == (40, 2)
    assert np.isfinite(found.map_).all()
    assert found.reduced_.shape == (40, min(width, 39))


def test_features_that_are_all_equal() -> None:
    assert np.isfinite(Embedding().fit(np.ones((30, 4), np.float32)).map_).all()


def test_too_few_examples() -> None:
    with pytest.raises(UserError, match="9 examples are too few"):
        Embedding().fit(FEATURES[:9])
