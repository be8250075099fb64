"""Cubes cut out of scans: LUNA16's, DICOM series, and NIfTI files.

In: a folder with `annotations.csv` and scans anywhere below, .mhd/.raw (LUNA16) or DICOM series
(LIDC-IDRI); or one with .nii and .nii.gz files at any depth, and perhaps a `facts.csv` that says
more about each `file`; or one with DICOM series alone. Out: a
`Job` that cuts cubes of bytes, as (z, y, x), 255 for the top of the window; or NIfTI files as the
`Volumes` they hold, not resampled, not turned. Guaranteed: places are the scanner's (origin,
spacing and direction are all used); each scan is read once; for a job, one that is missing or
damaged is listed, not fatal.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.dicom import DICOM, find_series, read_series
from samepath.data.formats.images import (
    NIFTI,
    Image,
    ImageProblem,
    centre_of,
    longest_side_mm,
    read_image,
    simpleitk,
)
from samepath.data.formats.listing import (
    Listing,
    Volumes,
    by,
    check_shape,
    cubes_command,
    number_in,
    read_table,
    take_group,
    typed,
    value_range,
)
from samepath.data.formats.numpy_files import checked_masks
from samepath.errors import UserError

_BLUR = 0.5  # standard deviation of the blur before sampling, in steps of the output grid
_BLUR_REACH = 3.0  # standard deviations after which the blur is cut off
_THIN = 100  # an image may be so many times thinner than a step; its blur is as much wider than it

HOUNSFIELD = (-1000.0, 400.0)
"""Air to soft tissue: the usual window for lung nodules."""
LUNA_FILL = (32.0, HOUNSFIELD)
"""Millimetres and window for LUNA16 where none are given."""


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
        """These settings with the given values in place of None."""
        return replace(self, mm=self.mm or mm, window=self.window or window)


class Cut(NamedTuple):
    """A cube."""

    voxels: NDArray[np.uint8]
    side_mm: float
    lowest: float
    highest: float
    """The highest of its values before the window."""
    window: tuple[float, float]


class Failure(NamedTuple):
    """What could not be made into cubes, and why."""

    name: str
    reason: str


Results: TypeAlias = Iterator[Cut | Failure]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Cubes to be made."""

    listing: Listing
    results: Callable[[CubeSettings], Results]
    """Makes them: one result for each of the listing, in its order."""
    knows_mm: bool = True
    """Whether the source says how large its voxels are."""


# ---- one cube


def cut_cube(
    name: str, image: Image, centre_mm: Sequence[float], settings: CubeSettings
) -> Cut | Failure:
    """The cube around a place, or why there is none; the settings hold no None."""
    mm, window = settings.mm, settings.window
    assert mm is not None
    assert window is not None
    low, high = window
    try:
        values = sample_cube(image, centre_mm=centre_mm, side=settings.side, mm=mm, fill=low)
    except ImageProblem as problem:
        return Failure(name, str(problem))
    unit = (np.clip(values, low, high).astype(np.float64) - low) / (high - low)
    voxels = np.rint(unit * 255).astype(np.uint8)
    return Cut(voxels, mm, float(values.min()), float(values.max()), window)


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
    size, spacing = np.array(image.GetSize()), np.array(image.GetSpacing())
    middle = np.array(image.TransformPhysicalPointToContinuousIndex([float(c) for c in centre_mm]))
    if (middle < -0.5).any() or (middle > size - 0.5).any():
        where = ", ".join(f"{c:.1f}" for c in centre_mm)
        raise ImageProblem(f"({where}) mm is outside the scan")
    step = mm / side
    if (size * spacing * _THIN < step).any():
        raise ImageProblem(f"is thinner than 1/{_THIN} of a cube's voxel ({step:g} mm)")
    blur = _BLUR * np.sqrt(np.maximum(step**2 - spacing**2, 0.0)) / spacing  # in voxels
    ends = ((c - mm / 2, c + mm / 2) for c in centre_mm)
    corners = np.array(
        [image.TransformPhysicalPointToContinuousIndex(c) for c in itertools.product(*ends)]
    )
    margin = _BLUR_REACH * blur + 2
    first = np.clip(np.floor(corners.min(0) - margin), 0, size - 1).astype(int).tolist()
    last = np.clip(np.ceil(corners.max(0) + margin), 0, size - 1).astype(int).tolist()
    part = image[tuple(slice(a, b + 1) for a, b in zip(first, last, strict=True))]
    cube = sitk.Resample(
        _blurred(sitk.Cast(part, sitk.sitkFloat32), blur),
        [side] * 3,
        sitk.Transform(3, sitk.sitkIdentity),
        sitk.sitkLinear,
        [float(c - step * (side - 1) / 2) for c in centre_mm],
        [step] * 3,
        np.eye(3).ravel().tolist(),
        float(fill),
        sitk.sitkFloat32,
    )
    values: NDArray[np.float32] = sitk.GetArrayFromImage(cube)
    if not np.isfinite(values).all():
        raise ImageProblem("holds NaN or infinite values")
    return values


def _blurred(image: Image, blur_voxels: NDArray[np.float64]) -> Image:
    if not blur_voxels.any():
        return image
    # Not ITK's DiscreteGaussian: its kernel overflows from about 26 voxels on
    from scipy.ndimage import gaussian_filter

    values = simpleitk().GetArrayViewFromImage(image)
    sigma = blur_voxels[::-1].tolist()
    smooth = gaussian_filter(values, sigma, mode="nearest", truncate=_BLUR_REACH)
    result = simpleitk().GetImageFromArray(smooth)
    result.CopyInformation(image)
    return result


def window_for(volumes: NDArray[Any]) -> tuple[float, float]:
    """The window for values that were given none; 0..1 stays, bytes are 0..255, all else is
    taken for Hounsfield units."""
    low, high, _ = value_range(volumes)
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (0.0, 255.0) if volumes.dtype == np.uint8 else HOUNSFIELD


# ---- LUNA16: one cube around each annotated nodule

ANNOTATIONS = "annotations.csv"


class Nodule(NamedTuple):
    """A row of LUNA16's annotations."""

    series: str
    centre_mm: tuple[float, float, float]
    diameter_mm: float


def luna_job(folder: Path) -> Job:
    """The annotated nodules, scan by scan; nodule 7 of the file is named 'seriesuid#7'."""
    by_series: dict[str, dict[str, Nodule]] = {}
    for row, nodule in enumerate(read_annotations(folder / ANNOTATIONS)):
        by_series.setdefault(nodule.series, {})[f"{nodule.series}#{row}"] = nodule
    nodules = {name: nodule for named in by_series.values() for name, nodule in named.items()}
    scans = {scan.stem: scan for scan in reversed(files_below(folder, ".mhd"))}
    slices = files_below(folder, DICOM)
    series_files = find_series(slices) if slices else {}

    def results(settings: CubeSettings) -> Results:
        for series, named in by_series.items():
            try:
                if series in scans:
                    image = read_image(scans[series])
                elif series in series_files:
                    image = read_series(series_files[series])
                else:
                    raise ImageProblem("no .mhd scan or DICOM series of this name in the folder")
            except ImageProblem as problem:
                yield from [Failure(series, str(problem))] * len(named)
                continue
            for name, nodule in named.items():
                yield cut_cube(name, image, nodule.centre_mm, settings)

    diameters = [nodule.diameter_mm for nodule in nodules.values()]
    listing = Listing(
        names=tuple(nodules),
        group=tuple(nodule.series for nodule in nodules.values()),
        facts={"diameter_mm": np.array(diameters, np.float32)},
    )
    return Job(listing=listing, results=results)


def read_annotations(path: Path) -> list[Nodule]:
    """LUNA16's annotation file, in its order; more columns than LUNA16's do no harm."""
    columns = ("coordX", "coordY", "coordZ", "diameter_mm")
    nodules: list[Nodule] = []
    for where, row in read_table(path, ("seriesuid", *columns)):
        if not row["seriesuid"]:
            raise UserError(f"{where}: seriesuid is empty")
        x, y, z, diameter = (number_in(row, name, where, float) for name in columns)
        nodules.append(Nodule(row["seriesuid"], (x, y, z), diameter))
    if not nodules:
        raise UserError(f"{path} holds no nodules, only column names; give LUNA16's file")
    return nodules


# ---- DICOM without annotations


def dicom_job(folder: Path) -> Job:
    """One cube of each series, around its centre, in Hounsfield units unless told otherwise."""
    found = find_series(files_below(folder, DICOM))
    if not found:
        raise UserError(f"{folder} holds .dcm files, but no series of slices; give a CT's folder")
    named = {
        f"{files[0].parent.relative_to(folder).as_posix()} {uid}": files
        for uid, files in sorted(found.items(), key=lambda item: item[1][0])
    }

    def results(settings: CubeSettings) -> Results:
        for name, files in named.items():
            try:
                image = read_series(files)
            except ImageProblem as problem:
                yield Failure(name, str(problem))
                continue
            one = settings.filled(longest_side_mm(image), settings.window or HOUNSFIELD)
            yield cut_cube(name, image, centre_of(image), one)

    return Job(listing=Listing(names=tuple(named), group=tuple(named), facts={}), results=results)


# ---- NIfTI


def stack_nifti(folder: Path) -> Volumes:
    """The voxels of all files, which must agree in shape; their range is not checked here.

    Each image's longest side is its `side_mm`, unless facts.csv says otherwise. Where that has
    `window_low` and `window_high`, as `samepath pairs` writes it, these values become 0 and 1.
    """
    files, listing = _list_nifti(folder)
    arrays: list[NDArray[Any]] = []
    sides: list[float] = []
    for file in files:
        try:
            image = read_image(file)
        except ImageProblem as problem:
            raise UserError(f"{file}: {problem}; remove or replace it") from problem
        arrays.append(simpleitk().GetArrayFromImage(image))
        sides.append(longest_side_mm(image))
        check_shape(arrays[0].shape, folder)
        if arrays[-1].shape != arrays[0].shape:
            raise UserError(
                f"{file} has {by(arrays[-1].shape)} voxels, {files[0].name} has "
                f"{by(arrays[0].shape)}; type: {cubes_command(folder)} --side 16"
            )
    if len({array.dtype == np.uint8 for array in arrays}) > 1:
        arrays = [a / np.float32(255) if a.dtype == np.uint8 else a for a in arrays]
    facts = {"side_mm": np.array(sides), **listing.facts}
    cubes = np.stack(arrays)
    if all(name in facts for name in _WINDOW):
        low, high = (np.asarray(facts.pop(name), np.float64) for name in _WINDOW)
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise UserError(f"{folder / 'facts.csv'}: every window_low must be below window_high")
        first, width = (each.astype(np.float32)[:, None, None, None] for each in (low, high - low))
        cubes = ((cubes.astype(np.float32) - first) / width).clip(0.0, 1.0)
    elif _mask_files(files) and cubes.dtype != np.uint8 and (cubes.min() < 0 or cubes.max() > 1):
        raise UserError(
            f"{folder}: values reach from {cubes.min():g} to {cubes.max():g}, not from 0 to 1; "
            "give facts.csv columns window_low and window_high, the values that become 0 and 1 "
            "(-1000 and 400, say, for Hounsfield units)"
        )
    return Volumes(cubes=cubes, **vars(replace(listing, facts=facts)))


def stack_masks(folder: Path, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """The masks beside the volumes of a folder (`a-mask.nii.gz` beside `a.nii.gz`), for volumes of
    a shape; None where it has none. Each lies where its volume does, in voxels of equal sides."""
    files, _ = _list_nifti(folder)
    masks = _mask_files(files)
    if not masks:
        return None
    arrays: list[NDArray[Any]] = []
    for file in files:
        if file not in masks:
            raise UserError(f"{file} has no mask {mask_name(file.name)} beside it; add it")
        try:
            volume, mask = read_image(file), read_image(masks[file])
        except ImageProblem as problem:
            raise UserError(f"{masks[file]}: {problem}; remove or replace it") from problem
        spacing = volume.GetSpacing()
        if max(spacing) > 1.001 * min(spacing):
            raise UserError(
                f"{file}: its voxels are {by(spacing)} mm, and a nodule's size in millimetres "
                "needs equal sides; resample it and its mask"
            )
        for get in ("GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
            if not np.allclose(getattr(volume, get)(), getattr(mask, get)(), atol=1e-3):
                raise UserError(f"{masks[file]} does not lie where {file.name} does; resample it")
        arrays.append(simpleitk().GetArrayFromImage(mask))
    return checked_masks(np.stack(arrays), folder, shape)


_MASK = "-mask"
_WINDOW = ("window_low", "window_high")


def mask_name(name: str) -> str:
    """The name of the mask that belongs to a volume's file."""
    ending = next(each for each in (".nii.gz", ".nii") if name.endswith(each))
    return f"{name.removesuffix(ending)}{_MASK}{ending}"


def _mask_files(files: Sequence[Path]) -> dict[Path, Path]:
    """The masks that lie beside volumes."""
    beside = {file: file.with_name(mask_name(file.name)) for file in files}
    return {file: mask for file, mask in beside.items() if mask.exists()}


def nifti_job(folder: Path) -> Job:
    """One cube of each image, around its centre."""
    files, listing = _list_nifti(folder)
    for name in _WINDOW:  # of values in [0, 1]; a cube's window is the command's
        listing.facts.pop(name, None)

    def results(settings: CubeSettings) -> Results:
        for file, name in zip(files, listing.names, strict=True):
            try:
                image = read_image(file)
            except ImageProblem as problem:
                yield Failure(name, str(problem))
                continue
            window = settings.window or window_for(simpleitk().GetArrayFromImage(image)[None])
            one = settings.filled(longest_side_mm(image), window)
            yield cut_cube(name, image, centre_of(image), one)

    return Job(listing=listing, results=results)


def _list_nifti(folder: Path) -> tuple[list[Path], Listing]:
    """The NIfTI files below a folder, masks of others left out, and what its `facts.csv` (if any)
    says about them."""
    files = files_below(folder, *NIFTI)
    masks = set(_mask_files(files).values())
    files = [file for file in files if file not in masks]
    if not files and files_below(folder, DICOM):
        raise UserError(
            f"{folder} holds DICOM slices; to learn from them type: {cubes_command(folder)}"
        )
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
    for where, row in read_table(table, ("file",)):
        file = row.pop("file")
        if rows.setdefault(file, row) is not row:
            raise UserError(f"{where}: {file} again; keep one row of it")
    absent = [name for name in names if name not in rows]
    if absent:
        raise UserError(f"{table} has no row for {absent[0]}; add one, or remove the file")
    return {key: [rows[name][key] for name in names] for key in rows[names[0]]}


def files_below(folder: Path, *endings: str) -> list[Path]:
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
        found += [Path(place, n) for n in files if n.endswith(endings) and not n.startswith(".")]
    return sorted(found)
