"""Folders of NIfTI files: as the cubes they hold, or as images to make cubes of.

In: a folder with .nii and .nii.gz files at any depth, and perhaps a `facts.csv` that says more
about each `file`. Out: `Volumes` as stored (not resampled, not turned), or a `Job`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.cutting import CubeSettings, Failure, Job, Result, cut_cube, window_for
from samepath.data.formats.images import as_array, centre_of, longest_side_mm, read_image
from samepath.data.formats.listing import (
    Listing,
    Volumes,
    by,
    check_shape,
    cubes_command,
    take_group,
)
from samepath.data.formats.nifti import NIFTI, ImageProblem
from samepath.data.formats.tables import files_below, read_table, typed
from samepath.errors import UserError


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
    columns = _columns(table, names) if table.exists() else {}
    group = take_group(columns, names)
    facts = {key: typed(values, table) for key, values in columns.items()}
    return files, Listing(names=names, group=group, facts=facts)


def _columns(table: Path, names: tuple[str, ...]) -> dict[str, list[str]]:
    rows: dict[str, dict[str, str]] = {}
    for line, row in read_table(table, ("file",)):
        file = row.pop("file")
        if rows.setdefault(file, row) is not row:
            raise UserError(f"{table}, line {line}: {file} again; keep one row of it")
    absent = [name for name in names if name not in rows]
    if absent:
        raise UserError(f"{table} has no row for {absent[0]}; add one, or remove the file")
    return {key: [rows[name][key] for name in names] for key in rows[names[0]]}
