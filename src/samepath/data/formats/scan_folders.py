"""Folders of scans: LUNA16's, and NIfTI files.

In: a folder with `annotations.csv` and .mhd/.raw scans anywhere below (LUNA16); or one with .nii
and .nii.gz files at any depth, and perhaps a `facts.csv` that says more about each `file`. Out: a
`Job` that cuts cubes of them; or NIfTI files as the `Volumes` they hold, not resampled, not turned.
Guaranteed: each scan is read once; for a job, one that is missing or damaged is listed, not fatal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.cutting import (
    HOUNSFIELD,
    CubeSettings,
    Failure,
    Job,
    Result,
    cut_cube,
    window_for,
)
from samepath.data.formats.images import (
    NIFTI,
    ImageProblem,
    as_array,
    centre_of,
    longest_side_mm,
    read_image,
)
from samepath.data.formats.listing import (
    Listing,
    Volumes,
    by,
    check_shape,
    cubes_command,
    take_group,
)
from samepath.data.formats.tables import files_below, read_table, typed
from samepath.errors import UserError
from samepath.files import brief

# ---- LUNA16: one cube around each annotated nodule


ANNOTATIONS = "annotations.csv"
_COLUMNS = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm")


class Nodule(NamedTuple):
    """A row of LUNA16's annotations."""

    series: str
    centre_mm: tuple[float, float, float]
    diameter_mm: float


def luna_settings(settings: CubeSettings) -> CubeSettings:
    """These settings with what suits LUNA16 in place of None."""
    return settings.filled(32.0, HOUNSFIELD)


def luna_job(folder: Path) -> Job:
    """The annotated nodules, scan by scan; nodule 7 of the file is named 'seriesuid#7'."""
    by_series: dict[str, dict[str, Nodule]] = {}
    for row, nodule in enumerate(read_annotations(folder / ANNOTATIONS)):
        by_series.setdefault(nodule.series, {})[f"{nodule.series}#{row}"] = nodule
    nodules = {name: nodule for named in by_series.values() for name, nodule in named.items()}
    scans = {scan.stem: scan for scan in reversed(files_below(folder, ".mhd"))}

    def results(settings: CubeSettings) -> Iterator[Result]:
        for series, named in by_series.items():
            yield from _cut_scan(series, scans.get(series), named, settings)

    diameters = [nodule.diameter_mm for nodule in nodules.values()]
    listing = Listing(
        names=tuple(nodules),
        group=tuple(nodule.series for nodule in nodules.values()),
        facts={"diameter_mm": np.array(diameters, np.float32)},
    )
    return Job(listing=listing, results=results)


def _cut_scan(
    series: str, scan: Path | None, named: dict[str, Nodule], settings: CubeSettings
) -> Iterator[Result]:
    try:
        if scan is None:
            raise ImageProblem("no .mhd scan of this name below the folder")
        image = read_image(scan)
    except ImageProblem as problem:
        yield from [Failure(series, str(problem))] * len(named)
        return
    for name, nodule in named.items():
        yield cut_cube(name, image, nodule.centre_mm, settings)


def read_annotations(path: Path) -> list[Nodule]:
    """LUNA16's annotation file, in its order; more columns than LUNA16's do no harm."""
    nodules: list[Nodule] = []
    for line, row in read_table(path, _COLUMNS):
        if not row["seriesuid"]:
            raise UserError(f"{path}, line {line}: seriesuid is empty")
        x, y, z, diameter = (
            _number(row[name], f"{path}, line {line}: {name}") for name in _COLUMNS[1:]
        )
        nodules.append(Nodule(row["seriesuid"], (x, y, z), diameter))
    if not nodules:
        raise UserError(f"{path} holds no nodules, only column names; give LUNA16's file")
    return nodules


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where} is {brief(repr(text))}, which is no number")
    return value


# ---- NIfTI


def stack_nifti(folder: Path) -> Volumes:
    """The voxels of all files, which must agree in shape; their range is not checked here.

    Each image's longest side is its `side_mm`, unless facts.csv says otherwise.
    """
    files, listing = _list_nifti(folder)
    arrays: list[NDArray[Any]] = []
    sides: list[float] = []
    for file in files:
        try:
            image = read_image(file)
        except ImageProblem as problem:
            raise UserError(f"{file}: {problem}; remove or replace it") from problem
        arrays.append(as_array(image))
        sides.append(longest_side_mm(image))
        check_shape(arrays[0].shape, folder)
        if arrays[-1].shape != arrays[0].shape:
            raise UserError(
                f"{file} has {by(arrays[-1].shape)} voxels, {files[0].name} has "
                f"{by(arrays[0].shape)}; type: {cubes_command(folder)} --side 16"
            )
    if len({array.dtype == np.uint8 for array in arrays}) > 1:
        arrays = [a / np.float32(255) if a.dtype == np.uint8 else a for a in arrays]
    known = replace(listing, facts={"side_mm": np.array(sides), **listing.facts})
    return Volumes(cubes=np.stack(arrays), **vars(known))


def nifti_job(folder: Path) -> Job:
    """One cube of each image, around its centre."""
    files, listing = _list_nifti(folder)

    def results(settings: CubeSettings) -> Iterator[Result]:
        for file, name in zip(files, listing.names, strict=True):
            try:
                image = read_image(file)
            except ImageProblem as problem:
                yield Failure(name, str(problem))
                continue
            window = settings.window or window_for(as_array(image)[None])
            one = settings.filled(longest_side_mm(image), window)
            yield cut_cube(name, image, centre_of(image), one)

    return Job(listing=listing, results=results)


def _list_nifti(folder: Path) -> tuple[list[Path], Listing]:
    """The NIfTI files below a folder, and what its `facts.csv` (if any) says about them."""
    files = files_below(folder, *NIFTI)
    if not files and files_below(folder, ".mhd"):
        raise UserError(
            f"{folder} holds .mhd scans but no annotations.csv; put LUNA16's beside them"
        )
    if not files:
        raise UserError(
            f"{folder} holds no volumes; give a folder of .nii.gz files, a LUNA16 folder "
            "(with annotations.csv) or one that samepath cubes wrote"
        )
    names = tuple(file.relative_to(folder).as_posix() for file in files)
    table = folder / "facts.csv"
    columns = _facts_columns(table, names) if table.exists() else {}
    group = take_group(columns, names)
    facts = {key: typed(values, table) for key, values in columns.items()}
    return files, Listing(names=names, group=group, facts=facts)


def _facts_columns(table: Path, names: tuple[str, ...]) -> dict[str, list[str]]:
    rows: dict[str, dict[str, str]] = {}
    for line, row in read_table(table, ("file",)):
        file = row.pop("file")
        if rows.setdefault(file, row) is not row:
            raise UserError(f"{table}, line {line}: {file} again; keep one row of it")
    absent = [name for name in names if name not in rows]
    if absent:
        raise UserError(f"{table} has no row for {absent[0]}; add one, or remove the file")
    return {key: [rows[name][key] for name in names] for key in rows[names[0]]}
