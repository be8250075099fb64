"""A nodule and what surrounds it: taking one out of a cube, and putting one in.

In: cubes in [0, 1] and masks, both (s, s, s), and a nodule's own intensities at every voxel. Out:
a cube without its nodule; a cube with one; a texture with the spectrum of real remainders.
Guaranteed: voxels farther than a few from either mask keep their values to the bit; results depend
on the arguments alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samepath.recipes.nodules.ct import Floats, Masks, soft, sphere_diameter

LAG = 4
"""Voxels: as far as a remainder's values are taken to know of each other."""
FINE = 3.0
"""Voxels: standard deviation of the blur that takes what is no texture out of a remainder."""
NUM_ALIKE = 6
"""Training nodules whose remainders make a texture."""
RIM = 1
"""Voxels around a mask that go with the nodule: what scanners blurred into them."""
_STEPS = 160
_WEIGHTS = (2.0, 1.0, 4.0)
"""Of noise, size and intensity when nodules are called alike: solid ones are smooth, whatever
their size."""
_FEW = 8
"""Voxels that say too little of a layer."""
_DEPTHS = 4
"""Layers of voxels under a mask's surface, the last one being all below."""


def without_nodule(volume: Floats, mask: Masks, random: np.random.Generator) -> Floats:
    """A cube whose nodule has been replaced by what is around it.

    Inside, every voxel becomes the mean of its neighbours (a membrane held by the voxels around),
    with noise as strong as the surroundings' own.
    """
    from scipy.ndimage import binary_dilation, distance_transform_edt

    hole = binary_dilation(mask, iterations=RIM)
    if hole.all():
        return np.full(volume.shape, np.median(volume), np.float32)
    nearest = distance_transform_edt(hole, return_distances=False, return_indices=True)
    filled: Floats = volume[
        tuple(nearest)
    ]  # begins with the nearest voxel outside, then is smoothed
    ends = [np.flatnonzero(hole.any(tuple({0, 1, 2} - {axis})))[[0, -1]] for axis in range(3)]
    box = tuple(slice(max(0, low - 1), high + 2) for low, high in ends)
    part, inside = filled[box], hole[box]
    for _ in range(_STEPS):
        padded = np.pad(part, 1, mode="edge")
        total = padded[2:, 1:-1, 1:-1] + padded[:-2, 1:-1, 1:-1]
        total += padded[1:-1, 2:, 1:-1] + padded[1:-1, :-2, 1:-1]
        total += padded[1:-1, 1:-1, 2:] + padded[1:-1, 1:-1, :-2]
        part[inside] = total[inside] / 6.0
    noise = random.standard_normal(volume.shape).astype(np.float32)
    filled[hole] += noise_level(volume, hole) * noise[hole]
    return np.asarray(filled.clip(0.0, 1.0))


def noise_level(volume: Floats, hole: Masks) -> float:
    """Standard deviation, from one voxel to the next, of the quiet half of what is around a hole.

    The third differences along the last axis see noise and little else; the quiet half of them has
    neither vessels nor walls.
    """
    differences = np.diff(volume, n=2, axis=2)
    apart = ~(hole[:, :, :-2] | hole[:, :, 1:-1] | hole[:, :, 2:])
    found = np.abs(differences[apart]) if apart.sum() > 50 else np.abs(differences.ravel())
    # the median of the quiet half of |x| is the quartile, 0.319 sigma; sigma^2 = (1 + 4 + 1) s^2
    return float(np.quantile(found, 0.25)) / 0.319 / float(np.sqrt(6.0))


def with_nodule(
    background: Floats,
    removed: Masks,
    mask: Masks,
    intensities: Floats,
) -> tuple[Floats, Masks]:
    """A cube with a nodule in it, and the nodule's mask there.

    A soft edge joins the two. Where nothing was removed a nodule adds to what is there and never
    darkens it: vessels and the chest wall stay, and are no part of the mask.
    """
    share = soft(mask)
    pasted = background + share * (intensities - background)
    keeps = ~removed & (background > pasted)
    pasted = np.where(keeps, background, pasted)
    return pasted.astype(np.float32), mask & ~keeps


# ---- texture


@dataclass(frozen=True)
class Texture:
    """What mixtures leave of the training nodules: how far it reaches, how strong it is.

    A remainder is what a nodule has inside its mask beyond its mixture. Of each the covariance at
    small lags is kept, and what stands for it: noise of the surroundings, size, intensity. Its mean
    in each layer under the surface (the edge's profile) is kept in units of the nodule's contrast.
    """

    correlations: NDArray[np.float64]
    """(N, 2 LAG + 1, ... three times)."""
    strengths: NDArray[np.float64]
    """(N, _DEPTHS): standard deviation in each layer under the surface; NaN where it has none."""
    described: NDArray[np.float64]
    """(N, 3): logarithm of the noise level, logarithm of the diameter, mean intensity."""
    scale: NDArray[np.float64]
    """(3,): standard deviations of those, divided by `_WEIGHTS`."""
    profile: NDArray[np.float64]
    """(_DEPTHS,): mean remainder in each layer, in units of inside minus outside."""

    @classmethod
    def learn(
        cls, volumes: Floats, masks: Masks, intensities: Sequence[Floats] | Floats
    ) -> Texture:
        """From cubes, masks, and what the mixtures give at every voxel, a cube each."""
        sums, weights = np.zeros(_DEPTHS), np.zeros(_DEPTHS)
        described, remainders = [], []
        for volume, mask, made in zip(volumes, masks, intensities, strict=True):
            remainder = np.where(mask, volume - made, 0.0).astype(np.float64)
            layer, contrast = layers(mask), contrast_of(volume, mask)
            for depth in range(_DEPTHS):
                here = layer == depth + 1
                sums[depth] += contrast * remainder[here].sum()
                weights[depth] += contrast * contrast * here.sum()
            described.append(_describe(volume, mask))
            remainders.append((remainder, layer, contrast))
        profile = sums / weights.clip(1e-9)
        levels = np.append(0.0, profile)
        correlations, strengths = [], []
        for remainder, layer, contrast in remainders:
            fine = _fine(remainder - contrast * levels[layer], layer > 0)
            counts = np.bincount(layer.ravel(), minlength=_DEPTHS + 1)[1:]
            squares = np.bincount(layer.ravel(), (fine * fine).ravel(), _DEPTHS + 1)[1:]
            strengths.append(np.sqrt(squares / np.where(counts > _FEW, counts, np.nan)))
            covariance = _covariance(fine, layer > 0)
            correlations.append(covariance / max(float(covariance[LAG, LAG, LAG]), 1e-12))
        known = np.array(described)
        scale = known.std(0).clip(1e-9) / _WEIGHTS
        return cls(np.array(correlations), np.array(strengths), known, scale, profile)

    def draw(
        self,
        background: Floats,
        removed: Masks,
        mask: Masks,
        made: Floats,
        random: np.random.Generator,
    ) -> Floats:
        """A remainder for a nodule `made` at every voxel, zero outside its mask."""
        described = _describe_new(background, removed, mask, made)
        away = (((self.described - described) / self.scale) ** 2).sum(1)
        alike = np.argsort(away, kind="stable")[:NUM_ALIKE]
        field = _field(self.correlations[alike].mean(0), mask.shape, random)
        layer = layers(mask)
        strengths = self._strengths(away)
        outside = background[soft(mask) < 0.05]
        contrast = float(made[mask].mean() - (outside.mean() if outside.size else 0.0))
        levels = np.append(0.0, self.profile) * contrast
        return np.where(mask, strengths[layer] * field + levels[layer], 0.0).astype(np.float32)

    def _strengths(self, away: NDArray[np.float64]) -> NDArray[np.float64]:
        """Outside and in each layer: the median of the most alike nodules that have the layer."""
        found = np.zeros(_DEPTHS + 1)
        for depth, of in enumerate(self.strengths.T):
            has = np.flatnonzero(np.isfinite(of))
            if len(has):
                nearest = has[np.argsort(away[has], kind="stable")[:NUM_ALIKE]]
                found[depth + 1] = np.median(of[nearest])
        return found


def layers(mask: Masks) -> NDArray[np.int64]:
    """0 outside, 1 at the surface, and so on inwards."""
    from scipy.ndimage import distance_transform_edt

    depth = distance_transform_edt(np.pad(mask, 1, mode="edge"))[1:-1, 1:-1, 1:-1]
    return np.asarray(np.ceil(depth).clip(0, _DEPTHS), np.int64)


def contrast_of(volume: Floats, mask: Masks) -> float:
    """Mean inside minus mean outside."""
    outside = volume[~mask]
    return float(volume[mask].mean() - (outside.mean() if outside.size else 0.0))


def _describe(volume: Floats, mask: Masks) -> list[float]:
    return _describe_new(volume, mask, mask, volume)


def _describe_new(background: Floats, removed: Masks, mask: Masks, made: Floats) -> list[float]:
    noise = np.log(max(noise_level(background, removed | mask), 1e-4))
    size = np.log(float(sphere_diameter(np.asarray(mask.sum()))))
    return [float(noise), size, float(made[mask].mean())]


def _fine(remainder: NDArray[np.float64], mask: Masks) -> NDArray[np.float64]:
    """A remainder without what varies slowly in it: that is the mixture's error, not texture."""
    from scipy.ndimage import gaussian_filter

    inside = mask.astype(np.float64)
    slow, weight = (gaussian_filter(of, FINE) for of in (remainder * inside, inside))
    return np.asarray(inside * (remainder - slow / weight.clip(1e-3)))


def _covariance(remainder: NDArray[np.float64], mask: Masks) -> NDArray[np.float64]:
    """Mean product of remainders at lags up to `LAG` along every axis, over pairs in the mask."""
    size = [length + LAG for length in mask.shape]
    products, pairs = (
        np.fft.irfftn(np.abs(np.fft.rfftn(of, size, axes=(0, 1, 2))) ** 2, size, axes=(0, 1, 2))
        for of in (remainder, mask.astype(np.float64))
    )
    lags = np.ix_(*[np.arange(-LAG, LAG + 1)] * 3)
    covariance: NDArray[np.float64] = products[lags] / np.maximum(pairs[lags], 1.0)
    return np.where(pairs[lags] >= 8.0, covariance, 0.0)


def _field(
    covariance: NDArray[np.float64], shape: tuple[int, ...], random: np.random.Generator
) -> NDArray[np.float64]:
    """A Gaussian field with a covariance, which is tapered so that it is one."""
    taper = np.cos(0.5 * np.pi * np.arange(-LAG, LAG + 1) / (LAG + 1)) ** 2
    placed = np.zeros(shape)
    lags = np.ix_(*[np.arange(-LAG, LAG + 1)] * 3)
    placed[lags] = covariance * taper[:, None, None] * taper[:, None] * taper
    spectrum = np.fft.fftn(placed).real.clip(0.0)
    spectrum *= placed[0, 0, 0] / max(float(spectrum.mean()), 1e-12)  # what clipping has added
    noise = np.fft.fftn(random.standard_normal(shape))
    field: NDArray[np.float64] = np.fft.ifftn(noise * np.sqrt(spectrum)).real
    return field
