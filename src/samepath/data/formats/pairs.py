"""Volumes and their masks in the formats of the field: NIfTI pairs, or DICOM series.

In: an .npz of cubes, as `samepath generate` writes it, perhaps with `mask`, `side_mm` and facts.
Out: a folder of `nodule-000.nii.gz` and `nodule-000-mask.nii.gz`, or of `nodule-000/` with slices
and `segmentation.dcm`; and `facts.csv`, by which a folder of NIfTI pairs is read again
(`load_volumes`, `load_masks`). Guaranteed: axes are (z, y, x) of the array and x, y, z of
the patient, in millimetres; the folder is written whole or not at all, and never over another.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.dicom import pydicom, write_series
from samepath.data.formats.images import simpleitk, write_nifti
from samepath.data.formats.listing import check_side_mm
from samepath.data.formats.scans import HOUNSFIELD, mask_name
from samepath.data.formats.volumes import load_masks, load_volumes
from samepath.errors import UserError
from samepath.files import folder_aside

PairFormat = Literal["nifti", "dicom"]


@dataclass(frozen=True, kw_only=True)
class PairsResult:
    """What was written."""

    out: Path
    num_volumes: int
    has_masks: bool
    spacing_mm: tuple[float, float]
    """Smallest and largest."""
    knows_mm: bool
    """False: the file says no size, and a voxel counts as one millimetre."""


def write_pairs(
    source: Path,
    out: Path,
    kind: PairFormat = "nifti",
    *,
    window: tuple[float, float] = HOUNSFIELD,
    spacing_mm: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PairsResult:
    """Write the volumes of a file, their 0 and 1 as the window's ends."""
    low, high = window
    if not -math.inf < low < high < math.inf:
        raise UserError(f"--window {low:g},{high:g}: give a low and a higher value")
    if spacing_mm is not None and not 0 < spacing_mm < math.inf:
        raise UserError(f"--spacing {spacing_mm:g}: give millimetres above 0, such as 1")
    if out.exists():
        raise UserError(f"--out {out} exists; give another name")
    pydicom() if kind == "dicom" else simpleitk()  # says what to install where it is missing
    volumes = load_volumes(source)
    masks = load_masks(source, volumes.cubes.shape)
    known = volumes.facts.get("side_mm")
    spacings = _spacings(source, known, len(volumes), volumes.cubes.shape[-1], spacing_mm)
    digits = max(3, len(str(len(volumes) - 1)))
    names = [f"nodule-{number:0{digits}d}" for number in range(len(volumes))]
    with folder_aside(out) as aside:
        for number, name in enumerate(names):
            progress(number, len(names))
            cube = np.asarray(volumes.cubes[number], np.float32)
            if volumes.cubes.dtype == np.uint8:
                cube /= 255.0
            mask, spacing = None if masks is None else masks[number], float(spacings[number])
            if kind == "dicom":
                (aside / name).mkdir()
                write_series(aside / name, cube, mask, spacing_mm=spacing, window=window, name=name)
                continue
            write_nifti(aside / f"{name}.nii.gz", cube * np.float32(high - low) + low, spacing)
            if mask is not None:
                file = aside / mask_name(f"{name}.nii.gz")
                write_nifti(file, mask, spacing, dtype=np.uint8)
        facts = volumes.facts | {"spacing_mm": spacings}
        if kind == "nifti":
            for end, value in zip(("low", "high"), window, strict=True):
                facts[f"window_{end}"] = np.full(len(names), value)
        _write_facts(aside / "facts.csv", names, facts, kind)
        aside.rename(out)
    return PairsResult(
        out=out,
        num_volumes=len(names),
        has_masks=masks is not None,
        spacing_mm=(float(spacings.min()), float(spacings.max())),
        knows_mm=known is not None or spacing_mm is not None,
    )


def _spacings(
    source: Path, sides: NDArray[Any] | None, number: int, side: int, given: float | None
) -> NDArray[np.float64]:
    if given is not None or sides is None:
        return np.full(number, 1.0 if given is None else given)
    return np.asarray(check_side_mm(sides, source, ", or give --spacing") / side)


def _write_facts(
    path: Path, names: list[str], facts: dict[str, NDArray[Any]], kind: PairFormat
) -> None:
    ending = ".nii.gz" if kind == "nifti" else ""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["file", *facts])
        columns = (values.tolist() for values in facts.values())
        rows.writerows(zip([name + ending for name in names], *columns, strict=True))
