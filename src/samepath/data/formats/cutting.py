"""A cube cut out of an image: place and size in millimetres, values in a window.

In: an image, a place, `CubeSettings`. Out: bytes as (z, y, x), 255 for the top of the window.
Guaranteed: places are the scanner's (origin, spacing and direction are all used).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.images import Image, ImageProblem, simpleitk
from samepath.data.formats.listing import Listing, value_range
from samepath.errors import UserError

_BLUR = 0.5  # standard deviation of the blur before sampling, in steps of the output grid
_BLUR_REACH = 3.0  # standard deviations after which the blur is cut off
_THIN = 100  # an image may be so many times thinner than a step; its blur is as much wider than it

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
        """These settings with the given values in place of None."""
        return replace(self, mm=self.mm or mm, window=self.window or window)


class Cut(NamedTuple):
    """A cube."""

    voxels: NDArray[np.uint8]
    side_mm: float


class Failure(NamedTuple):
    """What could not be made into cubes, and why."""

    name: str
    reason: str


Result: TypeAlias = Cut | Failure


@dataclass(frozen=True, kw_only=True)
class Job:
    """Cubes to be made."""

    listing: Listing
    results: Callable[[CubeSettings], Iterator[Result]]
    """Makes them: one result for each of the listing, in its order."""

    knows_mm: bool = True
    """Whether the source says how large its voxels are."""


def cut_cube(name: str, image: Image, centre_mm: Sequence[float], settings: CubeSettings) -> Result:
    """The cube around a place, or why there is none; the settings hold no None."""
    mm, window = settings.mm, settings.window
    assert mm is not None
    assert window is not None
    try:
        values = sample_cube(image, centre_mm=centre_mm, side=settings.side, mm=mm, fill=window[0])
    except ImageProblem as problem:
        return Failure(name, str(problem))
    return Cut(as_bytes(values, window), mm)


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
    if (size * spacing * _THIN < step).any():
        raise ImageProblem(f"is thinner than 1/{_THIN} of a cube's voxel ({step:g} mm)")
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


def window_for(volumes: NDArray[Any]) -> tuple[float, float]:
    """The window for values that were given none; 0..1 stays, bytes are 0..255, all else is
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
