"""3-D medical images through SimpleITK: read and write.

In: `.mhd`, `.nii` and `.nii.gz` files. Out: images that know their place in millimetres, arrays
as (z, y, x). Guaranteed: a file that is truncated or no image, or claims more than it holds, raises
`ImageProblem` with one line of reason and prints nothing; ITK sees nothing that was not checked.
SimpleITK is an optional part: it is imported when the first image is touched.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.listing import by
from samepath.data.formats.metaimage import read_metaimage
from samepath.data.formats.nifti import NIFTI, ImageProblem, check_nifti
from samepath.errors import UserError
from samepath.files import replaced

_FAR = 1e9  # millimetres; no voxel is as large, or as small as 1 / _FAR

Image: TypeAlias = Any
"""A SimpleITK image, which carries no types."""


def simpleitk() -> Any:
    """The SimpleITK module, or an error that says how to install it."""
    try:
        with warnings.catch_warnings():
            # Python 3.12 and later warn about the types that SWIG makes
            warnings.simplefilter("ignore", DeprecationWarning)
            import SimpleITK
    except ImportError as error:
        raise UserError(
            "reading .mhd and NIfTI files needs SimpleITK, which is not installed; "
            "type: pip install 'samepath[medical]'"
        ) from error
    return SimpleITK


def read_image(path: Path) -> Image:
    """A 3-D image with one number per voxel (a fourth dimension of size 1 is dropped)."""
    heard: list[str] = []
    try:
        with _standard_error_kept(heard):
            image = _read_nifti(path) if path.name.endswith(NIFTI) else _read_scan(path)
    except (RuntimeError, MemoryError) as error:
        raise ImageProblem(_reason(str(error))) from error
    if image.GetDimension() == 4 and image.GetSize()[3] == 1:
        image = image[:, :, :, 0]
    if image.GetDimension() != 3:
        raise ImageProblem(f"has {image.GetDimension()} dimensions, not 3")
    if image.GetNumberOfComponentsPerPixel() != 1:
        raise ImageProblem(f"has {image.GetNumberOfComponentsPerPixel()} numbers per voxel, not 1")
    _check_place(image.GetSpacing(), image.GetOrigin())
    return image


def _check_place(spacing: Sequence[float], origin: Sequence[float]) -> None:
    if not all(1 / _FAR < step < _FAR for step in spacing):
        raise ImageProblem(f"has voxels of {by(spacing)} mm, which cannot be")
    if not all(abs(place) < _FAR for place in origin):
        raise ImageProblem("lies nowhere: its origin is no place")


def _read_nifti(path: Path) -> Image:
    num_bytes = check_nifti(path)
    reader = simpleitk().ImageFileReader()
    reader.SetImageIO("NiftiImageIO")  # else ITK tries every format it knows
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    # what ITK would take memory for, of at least one byte per voxel
    if math.prod(reader.GetSize()) * reader.GetNumberOfComponents() > num_bytes:
        raise ImageProblem("the file is shorter than its header says")
    return reader.Execute()


def _read_scan(path: Path) -> Image:
    scan = read_metaimage(path)
    _check_place(scan.spacing, scan.origin)
    native = scan.voxels.astype(scan.voxels.dtype.newbyteorder("="), copy=False)
    image = simpleitk().GetImageFromArray(native)
    image.SetSpacing(scan.spacing)
    image.SetOrigin(scan.origin)
    image.SetDirection(scan.direction)
    return image


def as_array(image: Image) -> NDArray[Any]:
    """The voxels as (z, y, x), copied."""
    array: NDArray[Any] = simpleitk().GetArrayFromImage(image)
    return array


def as_image(volume: NDArray[Any], spacing_mm: float = 1.0) -> Image:
    """A (z, y, x) array as an image with its first voxel at (0, 0, 0) mm."""
    image = simpleitk().GetImageFromArray(np.ascontiguousarray(volume))
    image.SetSpacing((spacing_mm,) * 3)
    return image


def centre_of(image: Image) -> tuple[float, float, float]:
    """The middle of the image, (x, y, z) in millimetres."""
    middle = [(count - 1) / 2 for count in image.GetSize()]
    x, y, z = image.TransformContinuousIndexToPhysicalPoint(middle)
    return x, y, z


def longest_side_mm(image: Image) -> float:
    sides = zip(image.GetSize(), image.GetSpacing(), strict=True)
    return float(max(count * spacing for count, spacing in sides))


def write_nifti(path: Path, volume: NDArray[Any], spacing_mm: float) -> None:
    """Write a (z, y, x) volume as float32 to a .nii or .nii.gz file, complete or not at all."""
    if not path.name.endswith(NIFTI):
        raise UserError(f"{path} is no NIfTI name; end it in .nii.gz or .nii")
    if volume.ndim != 3:
        raise UserError(f"a volume has 3 dimensions (z, y, x), not {volume.ndim}")
    ending = ".nii.gz" if path.name.endswith(".gz") else ".nii"
    aside = path.with_name(f".{uuid.uuid4().hex}{ending}")  # ITK goes by the ending
    heard: list[str] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path, aside=aside, sync=False), _standard_error_kept(heard):
            image = as_image(volume.astype(np.float32), spacing_mm)
            simpleitk().WriteImage(image, str(aside))
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is the folder writable?"
        raise UserError(f"{path} cannot be written: {reason}") from error


def read_nifti(path: Path) -> tuple[NDArray[Any], tuple[float, float, float]]:
    """A NIfTI file's voxels as (z, y, x), and its spacing in millimetres in the same order."""
    try:
        image = read_image(path)
    except ImageProblem as problem:
        raise UserError(f"{path}: {problem}; give a .nii or .nii.gz file") from problem
    x, y, z = image.GetSpacing()
    return as_array(image), (z, y, x)


@contextmanager
def _standard_error_kept(heard: list[str]) -> Iterator[None]:
    """What the C++ library prints on standard error goes into `heard`, not onto the terminal."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            heard.append(file.read().decode(errors="replace"))


def _reason(error: str) -> str:
    if "allocate" in error:
        return "too large for this machine's memory (or its header is damaged)"
    return "is no image that SimpleITK can read (damaged header?)"
