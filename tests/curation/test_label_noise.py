"""How many labels are wrong, and which: on predictions whose errors are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from samepath.curation.label_noise import label_noise, sized

NUMBER, CLASSES = 1000, 4


def judged(
    share: float, *, to_next: float = 0.0, weakness: float = 0.7
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Probabilities of a judge that is less sure than it could be, labels, and right labels."""
    draw = np.random.default_rng(1)
    clean = draw.dirichlet(np.full(CLASSES, 0.15 * weakness), size=NUMBER)
    right = (clean.cumsum(1) > draw.random((NUMBER, 1))).argmax(1)
    noise = np.full((CLASSES, CLASSES), share * (1 - to_next) / (CLASSES - 1))
    noise[np.arange(CLASSES), (np.arange(CLASSES) + 1) % CLASSES] += share * to_next
    np.fill_diagonal(noise, 1 - share)
    labels = (noise[right].cumsum(1) > draw.random((NUMBER, 1))).argmax(1)
    told = np.sqrt(clean)
    return told / told.sum(1, keepdims=True), labels, right


def learned(
    pairs: dict[int, int], share: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Probabilities of a judge that has learned that a share of some classes is written as another,
    nearly; labels, and right labels."""
    draw = np.random.default_rng(2)
    right = draw.integers(0, CLASSES, NUMBER)
    logits = draw.normal(0, 1.5, (NUMBER, CLASSES))
    logits[np.arange(NUMBER), right] += 8.0
    unsure = np.exp(logits / 2)
    clean = unsure / unsure.sum(1, keepdims=True)
    noise = np.eye(CLASSES)
    for source, target in pairs.items():
        noise[source, [source, target]] = 1 - share, share
    labels = (noise[right].cumsum(1) > draw.random((NUMBER, 1))).argmax(1)
    told = clean @ noise * np.exp(draw.normal(0, 0.4, (NUMBER, CLASSES)))
    return told / told.sum(1, keepdims=True), labels, right


@pytest.mark.parametrize(("share", "to_next"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.2, 0.9)])
def test_the_share_of_wrong_labels_and_which(share: float, to_next: float) -> None:
    told, labels, right = judged(share, to_next=to_next)
    found = label_noise(told, labels)
    wrong = labels != right
    assert abs(found.rate - wrong.mean()) < 0.04
    assert np.isclose(found.counts.sum(), NUMBER)
    assert np.allclose(found.counts.sum(0), np.bincount(labels))
    assert np.isclose(found.rate, found.wrong.mean())
    chosen = sized(found.wrong)
    if not share:
        assert chosen.mean() < 0.01, "on clean data little is dropped"
        return
    assert found.reach > 0
    assert (chosen & wrong).sum() / chosen.sum() > 0.6
    assert (chosen & wrong).sum() / wrong.sum() > 0.6
    by_hand = told[np.arange(NUMBER), labels]
    first, theirs = np.argsort(-found.wrong)[:100], np.argsort(by_hand)[:100]
    assert wrong[first].sum() >= wrong[theirs].sum() - 2
    if to_next:
        off = found.counts - np.diag(np.diag(found.counts))
        assert off.argmax(1).tolist() == [1, 2, 3, 0], "which label is written for which"


@pytest.mark.parametrize("pairs", [{3: 0}, {0: 1, 2: 3}])
def test_noise_of_some_classes_into_others(pairs: dict[int, int]) -> None:
    told, labels, right = learned(pairs, 0.2)
    wrong = labels != right
    found = label_noise(told, labels)
    assert abs(found.rate - wrong.mean()) < 0.02
    off = found.counts - np.diag(np.diag(found.counts))
    for source, target in pairs.items():
        planted = (wrong & (right == source)).sum()
        assert abs(off[source, target] - planted) < 0.3 * planted
        off[source, target] = 0.0
    assert off.sum() < 0.2 * wrong.sum(), "classes without noise have little"
    chosen = sized(found.wrong)
    assert (chosen & wrong).sum() / chosen.sum() > 0.75
    assert (chosen & wrong).sum() / wrong.sum() > 0.75


def test_labels_that_the_judge_surely_contradicts() -> None:
    told, labels, right = learned({3: 0}, 0.2)
    found = label_noise(told, labels).contradicted
    assert (labels != right)[found].mean() > 0.6
    clean = label_noise(*learned({}, 0.0)[:2])
    assert clean.contradicted.mean() < 0.01
    assert clean.rate < 0.005


def test_progress_is_told_to_its_end() -> None:
    told, labels, _ = judged(0.1)
    seen: list[tuple[int, int]] = []
    label_noise(told[:200], labels[:200], told=lambda done, total: seen.append((done, total)))
    done = [each for each, _ in seen]
    assert done == sorted(done)
    assert done[0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert len({total for _, total in seen}) == 1


def test_a_weak_judge_is_not_taken_for_noise() -> None:
    told, labels, _ = judged(0.0, weakness=6.0)
    assert (told.argmax(1) == labels).mean() < 0.85
    found = label_noise(told, labels)
    assert found.rate < 0.03
    assert sized(found.wrong).mean() < 0.02


def test_the_same_again_and_one_class() -> None:
    told, labels, _ = judged(0.1)
    one, other = label_noise(told, labels), label_noise(told, labels)
    assert one.wrong.tobytes() == other.wrong.tobytes()
    assert one.reach == other.reach
    alone = label_noise(np.ones((5, 1)), np.zeros(5, np.int64))
    assert alone.rate == 0.0
    assert not sized(alone.wrong).any()


def test_as_many_as_a_person_asks_for() -> None:
    wrong = np.array([0.9, 0.1, 0.8, 0.5, 0.0, 0.0])
    assert np.flatnonzero(sized(wrong, budget=2)).tolist() == [0, 2]
    assert np.flatnonzero(sized(wrong, budget=0.5)).tolist() == [0, 2, 3]
    assert not sized(wrong, budget=0).any()
    assert np.flatnonzero(sized(wrong, precision=0.7)).tolist() == [0, 2, 3]
    assert np.flatnonzero(sized(wrong, precision=0.85)).tolist() == [0, 2]
    assert np.flatnonzero(sized(wrong)).tolist() == [0, 2, 3]
