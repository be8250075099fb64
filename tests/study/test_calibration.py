"""Calibration, against numbers computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from samepath.study.calibration import calibration, calibration_of


def test_the_error_is_what_a_hand_computes() -> None:
    """0.9 and 0.9, one right: 50% against 90%. 0.65, right: 100% against 65%. 0.55 and 0.51, none
    right: 0% against 53%. (2 * 0.4 + 0.35 + 2 * 0.53) / 5 = 0.442."""
    confidences = np.array([0.9, 0.55, 0.65, 0.9, 0.51])
    found = calibration(confidences, np.array([True, False, True, False, False]))
    assert found.error == pytest.approx(0.442)
    assert [part.num_examples for part in found.parts] == [2, 1, 2]
    assert [part.accuracy for part in found.parts] == [0.0, 1.0, 0.5]
    assert [part.confidence for part in found.parts] == pytest.approx([0.53, 0.65, 0.9])
    for part in found.parts:
        assert part.low <= part.confidence <= part.high


@pytest.mark.parametrize("is_right", [True, False])
def test_all_right_or_all_wrong(is_right: bool) -> None:
    found = calibration(np.array([1.0, 1.0, 0.0]), np.full(3, is_right))
    assert sum(part.num_examples for part in found.parts) == 3
    assert found.error == pytest.approx(1 / 3 if is_right else 2 / 3)


def test_scores_become_probabilities() -> None:
    """Scores of ln 3 and 0 are 75% and 25%; a row of probabilities stays as it is."""
    scores = np.array([[np.log(3.0), 0.0], [0.2, 0.8]], np.float32)
    found = calibration_of({"output": scores, "label": np.array([0, 0])}, 2)
    assert found is not None
    assert [part.confidence for part in found.parts] == pytest.approx([0.75, 0.8])
    assert found.error == pytest.approx((0.25 + 0.8) / 2)


@pytest.mark.parametrize(
    ("arrays", "classes"),
    [
        ({"output": np.ones((4, 2))}, 2),
        ({"output": np.ones((4, 2)), "label": np.zeros(4), "more": np.ones(4)}, 2),
        ({"mask": np.ones((4, 2)), "label": np.zeros(4)}, 2),
        ({"output": np.ones(4), "label": np.zeros(4)}, 2),
        ({"output": np.ones((4, 2)), "label": np.zeros((4, 2))}, 2),
        ({"output": np.ones((4, 2)), "label": np.zeros(4)}, 3),
        ({"output": np.ones((4, 2)), "label": np.zeros(4)}, 0),
        ({"output": np.full((4, 2), np.nan), "label": np.zeros(4)}, 2),
    ],
    ids=["no label", "two answers", "a name", "a number", "targets", "classes", "none", "nan"],
)
def test_what_is_no_classification_has_none(arrays: dict[str, Any], classes: int) -> None:
    assert calibration_of({"index": np.arange(4), **arrays}, classes) is None
