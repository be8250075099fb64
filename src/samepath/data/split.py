"""Training and validation rows, with what belongs together on one side.

In: the name of each example's group (patient, scan). Out: rows for training and for validation.
Guaranteed: no group is on both sides; the split is the same everywhere and depends on the names
only, by a hash (no random generator whose stream might change).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def split_by_group(groups: Sequence[str], num_valid: int) -> tuple[Rows, Rows]:
    """Rows for training and validation, both ascending.

    Groups are taken in the order of their hashes and go to validation while they fit into
    `num_valid`, so that it holds that many where whole groups allow it, and never more.
    """
    names, numbers, counts = np.unique(
        np.asarray(groups, dtype=np.str_), return_inverse=True, return_counts=True
    )
    missing = num_valid
    chosen: list[int] = []
    for number in sorted(range(len(names)), key=lambda number: _hash(str(names[number]))):
        if counts[number] <= missing:
            chosen.append(number)
            missing -= counts[number]
    is_valid = np.isin(numbers, chosen)
    return np.flatnonzero(~is_valid), np.flatnonzero(is_valid)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
