"""Everything that was found, as one decision and one reason per example.

In: clusters or a grid sample, duplicates, label errors. Out: a KeepList over all examples, and the
random control. A dropped example has one reason, the most telling of those it has: duplicate, label
error, near-duplicate, outlier, noise; only what has none of them is sampled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from samepath.curation.sampling import random_of_same_size
from samepath.data.keep_list import KeepList

DUPLICATE = "duplicate"
LABEL_ERROR = "label error"
NEAR_DUPLICATE = "near-duplicate"
OUTLIER = "outlier"
NOISE = "noise"
SAMPLED_OUT = "sampled out"
RANDOM = "random"
REASONS = (DUPLICATE, LABEL_ERROR, NEAR_DUPLICATE, OUTLIER, NOISE, SAMPLED_OUT)
"""In the order in which they are given."""

Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]


def first_reasons(found: dict[str, Truths], num_examples: int) -> list[str]:
    """The first reason of REASONS that holds for each example, or ""."""
    reasons = np.full(num_examples, "", dtype=object)
    for name in reversed([name for name in REASONS if name in found]):
        reasons[found[name]] = name
    return [str(reason) for reason in reasons]


def make_keep_list(
    *,
    labels: Ints | None,
    positions: NDArray[np.float32],
    clusters: Ints,
    reasons: list[str],
    previous: KeepList | None = None,
) -> KeepList:
    """A keep-list; what an earlier one had dropped stays dropped, for the reason it had."""
    if previous is not None:
        before = zip(reasons, previous.kept, previous.reasons, strict=True)
        reasons = [now if kept else reason or "dropped" for now, kept, reason in before]
    return KeepList(
        labels=labels,
        positions=positions,
        clusters=clusters,
        kept=np.array([not reason for reason in reasons]),
        reasons=reasons,
    )


def random_control(keep_list: KeepList, candidates: Truths, seed: int) -> KeepList:
    """As many of each class as the keep-list keeps, chosen at random among the candidates."""
    kept = random_of_same_size(keep_list.kept, candidates, keep_list.labels, seed)
    return replace(keep_list, kept=kept, reasons=["" if one else RANDOM for one in kept])
