"""Duplicates, label errors, and looking at the examples themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from samepath.curation.embed import nearest
from samepath.curation.inputs import look
from samepath.curation.reasons import (
    exact_duplicates,
    far_from_all,
    first_reasons,
    label_errors,
    random_control,
)
from samepath.data.keep_list import KeepList


def clusters(
    per_class: int = 60, num_classes: int = 4
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    draws = np.random.default_rng(0)
    centres = draws.normal(size=(num_classes, 8)) * 4
    labels = np.repeat(np.arange(num_classes), per_class)
    points = centres[labels] + draws.normal(size=(len(labels), 8))
    return points.astype(np.float32), labels


def test_flipped_labels_are_found_and_mended() -> None:
    points, truth = clusters()
    labels = truth.copy()
    wrong = np.arange(0, len(labels), 20)
    labels[wrong] = (labels[wrong] + 1) % 4
    found = label_errors(points, labels)
    flagged = set(np.flatnonzero(found.flagged))
    assert flagged <= set(wrong)
    assert len(flagged) >= len(wrong) - 1
    assert np.array_equal(found.suggested[wrong], truth[wrong])
    assert found.suspicion[wrong].min() > np.delete(found.suspicion, wrong).max()
    assert found.suggested[found.flagged].tolist() == truth[found.flagged].tolist()
    assert found.doubt[wrong].min() >= 100 * (1 - len(wrong) / len(labels)) - 1
    assert abs(found.rate[0] - 0.05) < 0.02


def test_predictions_that_are_given_are_the_judge() -> None:
    points, truth = clusters()
    wrong = np.arange(0, len(truth), 20)
    labels = truth.copy()
    labels[wrong] = (labels[wrong] + 1) % 4
    told = np.full((len(labels), 4), 0.01)
    told[np.arange(len(labels)), truth] = 0.97
    found = label_errors(np.zeros_like(points), labels, probabilities=told)
    assert np.flatnonzero(found.flagged).tolist() == wrong.tolist()
    assert np.allclose(found.confidence[wrong], 0.01)
    assert np.allclose(found.margin[wrong], np.log(0.01 / 0.97))
    few = label_errors(np.zeros_like(points), labels, probabilities=told, budget=3)
    assert (few.flagged | few.outliers).sum() == 3


def test_what_no_class_claims_is_an_outlier() -> None:
    points, labels = clusters()
    draws = np.random.default_rng(1)
    points[::40] = 40 + 0.1 * draws.normal(size=points[::40].shape)  # of all classes alike
    found = label_errors(points, labels)
    strange = np.zeros(len(labels), dtype=bool)
    strange[::40] = True
    assert found.suspicion[strange].mean() > 2 * found.suspicion[~strange].mean() - 0.5
    assert not (found.flagged & ~strange).any()


def test_a_point_far_from_all_is_an_outlier_without_labels_too() -> None:
    points, labels = clusters()
    points[7] = 100.0
    _, distances = nearest(points, points, 11)
    for groups in (labels, np.zeros_like(labels)):
        assert np.flatnonzero(far_from_all(distances[:, 1:], groups)).tolist() == [7]


def test_clean_labels_are_left_alone() -> None:
    points, labels = clusters()
    found = label_errors(points, labels)
    assert not found.flagged.any()
    assert not found.outliers.any()


def test_one_class_and_tiny_classes_are_not_judged() -> None:
    points, labels = clusters()
    assert not label_errors(points, np.zeros_like(labels)).flagged.any()
    labels = labels.copy()
    labels[[0, 70]] = 9  # two examples of it, amid other classes
    assert not label_errors(points, labels).flagged[[0, 70]].any()


def test_copies_and_contradictions() -> None:
    digests = np.array([[1], [2], [1], [3], [2], [1], [4]], dtype=np.uint8)
    labels = np.array([0, 5, 0, 1, 6, 7, 2])
    copies, contradicted = exact_duplicates(digests, labels)
    assert np.flatnonzero(copies).tolist() == [2]
    assert np.flatnonzero(contradicted).tolist() == [4, 5], "of a tie the first stands"
    copies, contradicted = exact_duplicates(digests, None)
    assert np.flatnonzero(copies).tolist() == [2, 4, 5]
    assert not contradicted.any()


def test_an_example_has_its_most_telling_reason() -> None:
    yes, no = np.array([True, True, False]), np.array([False, True, False])
    found = first_reasons({"noise": yes, "label error": no}, 3)
    assert found.tolist() == ["noise", "label error", ""]


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((5, 1, 8, 8), torch.float32, (5, 8, 8)),
        ((5, 3, 32, 32), torch.uint8, (5, 32, 32, 3)),
        ((5, 9, 12), torch.float32, (5, 9, 12)),
        ((5, 3, 200, 100), torch.float32, (5, 64, 32, 3)),
        ((5, 1, 16, 16, 16), torch.float32, (5, 16, 48)),
        ((5, 10, 20, 30), torch.float32, (5, 20, 90)),
        ((5, 1, 128, 128, 128), torch.float32, (5, 64, 192)),
        ((5, 40), torch.float32, None),
        ((5, 2, 8, 8), torch.float32, None),
        ((5, 1, 2, 8), torch.float32, None),
    ],
)
def test_thumbnails(
    shape: tuple[int, ...], dtype: torch.dtype, expected: tuple[int, ...] | None
) -> None:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    inputs = (values * 127 + 128).to(dtype) if dtype == torch.uint8 else values
    found = look((inputs, torch.zeros(5, dtype=torch.int64)))
    assert found["digests"].shape == (5, 16)
    images = found.get("images")
    assert (None if images is None else images.shape) == expected
    if images is not None:
        assert images.dtype == np.uint8
        assert images.max() > 180
    if dtype == torch.uint8 and images is not None:
        assert np.array_equal(images, inputs.permute(0, 2, 3, 1).numpy())


def test_digests_are_of_the_inputs_alone() -> None:
    inputs = torch.arange(12.0).reshape(4, 3)
    inputs[3] = inputs[0]
    found = look((inputs, torch.tensor([0, 1, 2, 3])))["digests"]
    assert len(np.unique(found, axis=0)) == 3
    assert np.array_equal(found[0], found[3])


def test_the_control_is_chosen_among_candidates() -> None:
    labels, kept = np.repeat([0, 1, 2], [50, 30, 20]), np.arange(100) % 3 == 0
    candidates = np.arange(100) % 10 != 0
    keep_list = KeepList(
        labels=labels,
        positions=np.zeros((100, 2), np.float32),
        clusters=np.zeros(100, np.int64),
        kept=kept,
        reasons=["" if each else "noise" for each in kept],
    )
    chosen = random_control(keep_list, candidates, seed=4).kept
    for label in range(3):
        assert chosen[labels == label].sum() == kept[labels == label].sum()
    assert not chosen[~candidates].any()
    assert not np.array_equal(chosen, kept)
