"""3-D medical images through SimpleITK: read, cut a cube out, write.

In: `.mhd`, `.nii` and `.nii.gz` files; a place in millimetres. Out: arrays as (z, y, x).
Guaranteed: places are the scanner's (origin, spacing and direction are all used); a file that is
truncated or no image raises `ImageProblem` with one line of reason and prints nothing. SimpleITK
is an optional part: it is imported when the first image is touched. Long because all that knows
SimpleITK is here.
"""

from __future__ import annotations

import gzip
import itertools
import math
import os
import struct
import sys
import tempfile
import uuid
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError

Image: TypeAlias = Any
"""A SimpleITK image, which carries no types."""

NIFTI = (".nii", ".nii.gz")

_BLUR = 0.5  # standard deviation of the blur before sampling, in steps of the output grid
_BLUR_REACH = 3.0  # standard deviations after which the blur is cut off
_PIECE_BYTES = 1 << 24

HOUNSFIELD = (-1000.0, 400.0)
"""Air to soft tissue: the usual window for lung nodules."""


@dataclass(frozen=True, kw_only=True)
class CubeSettings:
    """How cubes are cut. None: what suits the source."""

    side: int = 16
    """Voxels along each side."""

    mm: float | None = None
    """Millimetres along each side; by default 32 for LUNA16, each image's longest side else."""

    window: tuple[float, float] | None = None
    """Values that become 0 and 1; by default -1000 and 400 (Hounsfield units), except for images
    that lie in [0, 1] (kept) or hold bytes (0 and 255)."""

    def __post_init__(self) -> None:
        if self.side < 4 or self.side % 4:
            raise UserError(f"--side {self.side}: give a multiple of 4, such as 16")
        if self.mm is not None and not 0 < self.mm < math.inf:
            raise UserError(f"--mm {self.mm:g}: give millimetres above 0, such as 32")
        if self.window is not None:
            low, high = self.window
            if not -math.inf < low < high < math.inf:
                raise UserError(
                    f"--window {low:g},{high:g}: give a low and a higher value, such as -1000,400"
                )

    def filled(self, mm: float, window: tuple[float, float]) -> CubeSettings:
        """The same with these in place of None."""
        return replace(self, mm=self.mm or mm, window=self.window or window)


class ImageProblem(Exception):
    """One image cannot be used; the message is the reason, without the name."""


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


def files_below(folder: Path, endings: Sequence[str]) -> list[Path]:
    """Files at any depth with one of these endings, sorted; hidden ones are left out.

    Linked folders are entered, each real folder once.
    """
    found: list[Path] = []
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(place, name)
            for name in files
            if name.endswith(tuple(endings)) and not name.startswith(".")
        ]
    return sorted(found)


def read_image(path: Path) -> Image:
    """A 3-D image with one number per voxel (a fourth dimension of size 1 is dropped)."""
    sitk = simpleitk()
    if path.name.endswith(NIFTI):
        _check_nifti(path)
    heard: list[str] = []
    try:
        with _standard_error_kept(heard):
            image = sitk.ReadImage(str(path))
    except (RuntimeError, MemoryError) as error:
        raise ImageProblem(_reason(str(error), "".join(heard))) from error
    if image.GetDimension() == 4 and image.GetSize()[3] == 1:
        image = image[:, :, :, 0]
    if image.GetDimension() != 3:
        raise ImageProblem(f"has {image.GetDimension()} dimensions, not 3")
    if image.GetNumberOfComponentsPerPixel() != 1:
        raise ImageProblem(f"has {image.GetNumberOfComponentsPerPixel()} numbers per voxel, not 1")
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


def sample_cube(
    image: Image, *, centre_mm: Sequence[float], side: int, mm: float, fill: float
) -> NDArray[np.float32]:
    """A cube of `side`^3 voxels over `mm` millimetres around a place, as (z, y, x).

    The cube's axes are the world's, whatever the image's direction. Values are interpolated
    linearly; outside the image they are `fill`. Along an axis of the image that is finer than the
    cube (spacing s below step = mm / side), it is first blurred with a Gaussian of standard
    deviation 0.5 * sqrt(step^2 - s^2): about half a step where much detail must go, nothing where
    the spacings agree, so that fine detail fades instead of turning into a coarse pattern.
    """
    sitk = simpleitk()
    size = np.array(image.GetSize())
    spacing = np.array(image.GetSpacing())
    middle = np.array(image.TransformPhysicalPointToContinuousIndex([float(c) for c in centre_mm]))
    if (middle < -0.5).any() or (middle > size - 0.5).any():
        where = ", ".join(f"{c:.1f}" for c in centre_mm)
        raise ImageProblem(f"({where}) mm lies outside the scan")
    step = mm / side
    blur = _BLUR * np.sqrt(np.maximum(step**2 - spacing**2, 0.0)) / spacing  # in voxels
    corners = np.array(
        [
            image.TransformPhysicalPointToContinuousIndex(corner)
            for corner in itertools.product(*((c - mm / 2, c + mm / 2) for c in centre_mm))
        ]
    )
    margin = _BLUR_REACH * blur + 2
    first = np.clip(np.floor(corners.min(0) - margin), 0, size - 1).astype(int).tolist()
    last = np.clip(np.ceil(corners.max(0) + margin), 0, size - 1).astype(int).tolist()
    part = image[tuple(slice(a, b + 1) for a, b in zip(first, last, strict=True))]
    part = _blurred(sitk.Cast(part, sitk.sitkFloat32), blur)
    cube = sitk.Resample(
        part,
        [side] * 3,
        sitk.Transform(3, sitk.sitkIdentity),
        sitk.sitkLinear,
        [float(c - step * (side - 1) / 2) for c in centre_mm],
        [step] * 3,
        [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        float(fill),
        sitk.sitkFloat32,
    )
    values: NDArray[np.float32] = sitk.GetArrayFromImage(cube)
    if not np.isfinite(values).all():
        raise ImageProblem("holds NaN or infinite values")
    return values


def value_range(volumes: NDArray[Any]) -> tuple[float, float, int | None]:
    """Lowest and highest finite value, and the first row that holds others; read in pieces.

    Bytes cannot break the rules: as soon as one is above 1, (0, 255) is the answer.
    """
    low, high, not_finite = math.inf, -math.inf, None
    rows = max(1, _PIECE_BYTES // max(1, volumes[0].nbytes))
    for start in range(0, len(volumes), rows):
        piece = volumes[start : start + rows]
        if piece.dtype.kind == "f":
            is_finite = np.isfinite(piece)
            if not is_finite.all():
                bad = np.flatnonzero(~is_finite.reshape(len(piece), -1).all(1))
                not_finite = start + int(bad[0]) if not_finite is None else not_finite
                piece = piece[is_finite]
        elif piece.dtype == np.uint8 and piece.max() > 1:
            return 0.0, 255.0, None
        if piece.size:
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    return low, high, not_finite


def window_for(volumes: NDArray[Any]) -> tuple[float, float]:
    """The window for values nobody gave one for; 0..1 stays, bytes are 0..255, all else is
    taken for Hounsfield units."""
    low, high, _ = value_range(volumes)
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (0.0, 255.0) if volumes.dtype == np.uint8 else HOUNSFIELD


def as_bytes(values: NDArray[Any], window: tuple[float, float]) -> NDArray[np.uint8]:
    """Values from low to high as 0 to 255, clipped outside, rounded to the nearest."""
    low, high = window
    unit: NDArray[np.float64] = (np.clip(values, low, high).astype(np.float64) - low) / (high - low)
    return np.rint(unit * 255).astype(np.uint8)


def write_nifti(path: Path, volume: NDArray[Any], spacing_mm: float) -> None:
    """Write a (z, y, x) volume as float32 to a .nii or .nii.gz file, complete or not at all."""
    if not path.name.endswith(NIFTI):
        raise UserError(f"{path} is no NIfTI name; end it in .nii.gz or .nii")
    if volume.ndim != 3:
        raise UserError(f"a volume has 3 dimensions (z, y, x), not {volume.ndim}")
    ending = ".nii.gz" if path.name.endswith(".gz") else ".nii"
    aside = path.with_name(f".{uuid.uuid4().hex}{ending}")
    heard: list[str] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _standard_error_kept(heard):
            image = as_image(volume.astype(np.float32), spacing_mm)
            simpleitk().WriteImage(image, str(aside))
        aside.replace(path)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is the folder writable?"
        raise UserError(f"{path} cannot be written: {reason}") from error
    finally:
        with suppress(OSError):
            aside.unlink()


def read_nifti(path: Path) -> tuple[NDArray[Any], tuple[float, float, float]]:
    """A NIfTI file's voxels as (z, y, x), and its spacing in millimetres in the same order."""
    try:
        image = read_image(path)
    except ImageProblem as problem:
        raise UserError(f"{path}: {problem}; give a .nii or .nii.gz file") from problem
    x, y, z = image.GetSpacing()
    return as_array(image), (z, y, x)


def _blurred(image: Image, blur_voxels: NDArray[np.float64]) -> Image:
    if not blur_voxels.any():
        return image
    # Not ITK's DiscreteGaussian: its kernel overflows from about 26 voxels on
    from scipy.ndimage import gaussian_filter

    smooth = gaussian_filter(
        simpleitk().GetArrayViewFromImage(image),
        sigma=blur_voxels[::-1].tolist(),
        mode="nearest",
        truncate=_BLUR_REACH,
    )
    result = simpleitk().GetImageFromArray(smooth)
    result.CopyInformation(image)
    return result


def _check_nifti(path: Path) -> None:
    """ITK fills what a truncated NIfTI file lacks, and takes NaN for 0, without a word."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            num_bytes, start, kind = _nifti_layout(file.read(348))
            file.seek(start)
            while num_bytes > 0 and (piece := file.read(min(num_bytes, _PIECE_BYTES))):
                num_bytes -= len(piece)
                whole = len(piece) - len(piece) % 8
                if kind is not None and not np.isfinite(np.frombuffer(piece[:whole], kind)).all():
                    raise ImageProblem("holds NaN or infinite values")
    except FileNotFoundError as error:
        raise ImageProblem("no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ImageProblem(f"cannot be read to its end ({error})") from error
    if num_bytes > 0:
        raise ImageProblem("the file is shorter than its header says")


def _nifti_layout(head: bytes) -> tuple[int, int, str | None]:
    """Bytes of voxels, where they start, and their type where it can hold NaN."""
    for order in "<>":
        if len(head) < 348:
            break
        (version,) = struct.unpack_from(f"{order}i", head)
        if version == 348:
            dims = struct.unpack_from(f"{order}8h", head, 40)
            code, bits = struct.unpack_from(f"{order}2h", head, 70)
            (start,) = struct.unpack_from(f"{order}f", head, 108)
        elif version == 540:  # NIfTI-2
            code, bits = struct.unpack_from(f"{order}2h", head, 12)
            dims = struct.unpack_from(f"{order}8q", head, 16)
            (start,) = struct.unpack_from(f"{order}q", head, 168)
        else:
            continue
        voxels = math.prod(max(count, 1) for count in dims[1 : max(dims[0], 0) + 1])
        kind = {16: f"{order}f4", 64: f"{order}f8"}.get(code)
        return voxels * bits // 8, int(start) if 0 <= start < 1 << 31 else 352, kind
    raise ImageProblem("is no NIfTI image")


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


def _reason(error: str, printed: str) -> str:
    if "data not read completely" in printed:
        return "its data file is shorter than its header says"
    if "Cannot open data file" in printed:
        return "its data file is absent or cannot be opened"
    if "does not exist" in error:
        return "no such file"
    if "allocate" in error:
        return "too large for this machine's memory (or its header is damaged)"
    return "is no image that SimpleITK can read (damaged header?)"
