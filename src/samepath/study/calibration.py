"""Calibration: whether a classifier is right as often as it says it is.

In: the labels of examples and the classes' scores that a model which has not seen them gives. Out:
a Calibration: for parts of the confidence from 0 to 1, how often the class of the highest
probability is the right one, and the expected calibration error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.output.predict import as_probabilities

NUM_PARTS = 10


@dataclass(frozen=True, kw_only=True)
class ConfidencePart:
    """Examples whose highest probability lies in one part of 0 to 1."""

    low: float
    high: float
    num_examples: int
    confidence: float
    """Mean of their highest probabilities."""
    accuracy: float
    """Part of them whose class of the highest probability is the right one."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How far confidence and accuracy are apart (Guo et al. 2017, arXiv:1706.04599)."""

    error: float
    """The expected calibration error (equation 3): the mean of |accuracy - confidence| over all
    examples, each with that of its part."""
    parts: tuple[ConfidencePart, ...]
    """Those that have examples."""


def calibration_of(arrays: Mapping[str, NDArray[Any]], classes: int) -> Calibration | None:
    """Judge a file of predictions that has `output`, with a score for each of the classes, and
    `label`. None where it is of another kind, or a score is no finite number."""
    answers = arrays.keys() - {"index", "repeat", "fold", "label"}
    scores, labels = arrays.get("output"), arrays.get("label")
    if answers != {"output"} or scores is None or labels is None:
        return None
    if scores.ndim != 2 or labels.ndim != 1 or not 1 < classes <= scores.shape[1]:
        return None
    if not np.isfinite(scores).all():
        return None
    probabilities = as_probabilities(scores.astype(np.float64))
    return calibration(probabilities.max(1), probabilities.argmax(1) == labels)


def calibration(confidences: NDArray[np.float64], is_right: NDArray[np.bool_]) -> Calibration:
    """Compare confidence with accuracy in parts of equal width."""
    from sklearn.calibration import calibration_curve

    shares, means = calibration_curve(
        is_right.astype(int), confidences, n_bins=NUM_PARTS, pos_label=1
    )
    ends = np.linspace(0.0, 1.0, NUM_PARTS + 1)
    counts = np.bincount(np.searchsorted(ends[1:-1], confidences), minlength=NUM_PARTS)
    parts = [
        ConfidencePart(
            low=float(ends[place]),
            high=float(ends[place + 1]),
            num_examples=int(counts[place]),
            confidence=float(mean),
            accuracy=float(share),
        )
        for place, share, mean in zip(np.flatnonzero(counts), shares, means, strict=True)
    ]
    gaps = [each.num_examples * abs(each.accuracy - each.confidence) for each in parts]
    return Calibration(error=math.fsum(gaps) / len(confidences), parts=tuple(parts))
