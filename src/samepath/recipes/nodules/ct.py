"""`nodules-ct`: nodules of CT cubes with their masks, each in a frame of its own.

In: an .npz with `volume` (N, s, s, s), bytes with 255 for 1 or floats in [0, 1], and `mask` of the
same shape, true where the nodule is; other arrays with one value per nodule are facts. Or a folder
of NIfTI pairs (`a.nii.gz`, `a-mask.nii.gz`), as `samepath pairs` writes it, with facts.csv. Out: a
recipe whose model sees a nodule alone, at one scale whatever its size: two channels, the mask with
a soft edge and the intensities under it, sampled on side^n points over 1.25 times its extent. What
surrounds the nodule is no part of it.

Guaranteed: no group (patient, scan) is in two of training, validation and test; which part a nodule
is in depends on the groups' names alone, or on the file's own `split`; no training, no choice by
validation loss and no generation sees the test part. Data that do not fit end in one line.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.data import Draws
from samepath.data.formats.listing import (
    Listing,
    Rows,
    by,
    check_side_mm,
    split_by_group,
    value_range,
)
from samepath.data.formats.numpy_files import load_arrays, read_arrays
from samepath.data.formats.volumes import load_masks, load_volumes
from samepath.errors import UserError
from samepath.recipe import Recipe
from samepath.recipes.nodules.deepdensity import DeepDensity, mean_squared_log_error
from samepath.recipes.nodules.recipe import Facts, categories
from samepath.threads import limited_threads

if TYPE_CHECKING:
    from samepath.report.page import Section

Floats = NDArray[np.float32]
Masks = NDArray[np.bool_]
Batch = tuple[Tensor, Tensor, Tensor]
"""Frames (B, 2, side, ...), cubes (B, s, s, s) as they were given, masks (B, s, s, s)."""

FRAME = 1.25
"""A frame's side in extents of its nodule, as in the LIDC cubes."""
EDGE = 0.7
"""Voxels: standard deviation of the blur that softens a mask's edge."""
TEST_SHARE, VALID_SHARE = 0.2, 0.15
ROW = "file_row"
"""The fact that says which row of its file a nodule is."""
MIN_NODULES = 40
"""Fewer cannot be cut into three parts that say anything."""
_HOW = "numpy.savez('cubes.npz', volume=array, mask=array)"
_MASKS_TOO = f"save one with {_HOW}, or give a folder of pairs such as a.nii.gz and a-mask.nii.gz"


@dataclass(frozen=True, kw_only=True)
class CtNodules:
    """Cubes, masks and facts of one file, and which part each nodule is in."""

    volumes: NDArray[Any]
    """(N, s, s, s): uint8 (255 stands for 1.0) or float32 in [0, 1]."""
    masks: Masks
    facts: Facts
    """One value per nodule: those of the file, and `diameter` and `intensity`, measured."""
    groups: tuple[str, ...]
    train: Rows
    valid: Rows
    test: Rows
    """Untouched: nothing is trained, chosen or generated with it."""


def nodules_ct(
    data: Path | None = None,
    *,
    num_dims: int = 3,
    side: int = 16,
    num_filters: int = 16,
    num_components: int = 50,
    epochs: int = 150,
) -> Recipe:
    """DeepDensity on nodules of CT cubes; `side` is the frame's, not the cubes'.

    With `num_dims` 2 or 1 it learns the frames' central slice, or its central line.
    """
    if data is None:
        raise UserError(
            "nodules-ct brings no data; give --data cubes.npz with volume and mask, or a folder of "
            "NIfTI pairs"
        )
    nodules = load_ct_nodules(data)
    seen = frames(nodules.volumes, nodules.masks, side)
    for _ in range(3 - num_dims):
        seen = seen[:, :, side // 2]

    def part(rows: Rows) -> Batch:
        masks = torch.from_numpy(nodules.masks[rows])
        return torch.from_numpy(seen[rows]), torch.from_numpy(nodules.volumes[rows]), masks

    def facts_of(rows: Rows) -> dict[str, NDArray[Any]]:
        return {name: values[rows] for name, values in nodules.facts.items()} | {ROW: rows}

    return Recipe(
        model=lambda: DeepDensity(
            num_dims,
            side=side,
            num_filters=num_filters,
            num_components=num_components,
            num_channels=2,
        ),
        train=part(nodules.train),
        valid=part(nodules.valid),
        train_facts=facts_of(nodules.train),
        valid_facts=facts_of(nodules.valid),
        loss=frame_loss,
        predict=predict_frames,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.00105, fused=True),
        augment=turn,
        batch_size=32,
        max_workers=8,
        epochs=epochs,
        keep_weights=(0, epochs),
        show=_show,
    )


def frame_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The paper's loss, of both channels."""
    return mean_squared_log_error(model(batch[0]), batch[0])


def predict_frames(model: nn.Module, batch: Batch) -> Tensor:
    """What the model makes of the frames."""
    seen: Tensor = model(batch[0])
    return seen


def turn(batch: Batch, draws: Draws) -> Batch:
    """Mirror frames along every axis or not, and swap the last two or not: 16 ways in three
    dimensions, none of which makes the axis between slices one within them."""
    seen, *rest = batch
    num_dims = seen.dim() - 2
    chosen = torch.from_numpy(draws.integers(0, 2, num_dims + 1)).to(seen.device, torch.bool)
    for axis in range(num_dims):
        seen = torch.where(_like(chosen[:, axis], seen), seen.flip(2 + axis), seen)
    if num_dims > 1:
        seen = torch.where(_like(chosen[:, num_dims], seen), seen.transpose(-1, -2), seen)
    return (seen, *rest)  # type: ignore[return-value]


def _like(chosen: Tensor, images: Tensor) -> Tensor:
    return chosen.view(-1, *[1] * (images.dim() - 1))


def _show(run: Any, folder: Path) -> Sequence[Section]:
    from samepath.recipes.nodules.ct_pictures import draw_ct_run

    return draw_ct_run(run, folder)


# ---- data


def load_ct_nodules(path: Path) -> CtNodules:
    """Cubes and masks from a file, checked; measured facts; the three parts."""
    volumes, masks, known = read_cubes(path)
    if masks is None:
        raise UserError(f"{path} holds no masks; {_MASKS_TOO}")
    columns, groups = dict(known.facts), known.group
    if "side_mm" in columns:
        columns["side_mm"] = check_side_mm(columns["side_mm"], path)
    train, valid, test = three_parts(groups) if known.split is None else said_parts(known.split)
    if len(volumes) < MIN_NODULES or not (len(train) and len(valid)):
        raise UserError(
            f"{path} holds {len(volumes)} nodules of {len(set(groups))} patients or scans; at "
            f"least {MIN_NODULES} are needed for training, validation and a test part"
        )
    facts = columns | measured_facts(volumes, masks, columns)
    kinds = ct_categories(columns)
    if kinds is not None:
        facts["category"] = kinds
    return CtNodules(
        volumes=volumes,
        masks=masks,
        facts=facts,
        groups=groups,
        train=train,
        valid=valid,
        test=test,
    )


def three_parts(groups: Sequence[str]) -> tuple[Rows, Rows, Rows]:
    """Rows for training, validation and test, by the hashes of the groups' names."""
    rest, test = split_by_group(groups, int(TEST_SHARE * len(groups)))
    train, valid = split_by_group([groups[row] for row in rest], int(VALID_SHARE * len(groups)))
    return rest[train], rest[valid], test


def said_parts(split: Sequence[str]) -> tuple[Rows, Rows, Rows]:
    """Rows for training, validation and test, as a file says itself."""
    train, valid, test = (
        np.flatnonzero([each == word for each in split]) for word in ("train", "valid", "test")
    )
    return train, valid, test


def ct_categories(facts: Facts) -> NDArray[np.str_] | None:
    """The data's own classes, by the names they have there, else by malignancy."""
    for name in ("category", "label"):
        if name in facts:
            return np.asarray(facts[name]).astype(np.str_)
    return categories(facts)


def measured_facts(
    volumes: NDArray[Any], masks: Masks, facts: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """`diameter`, of a sphere as large as the mask (in mm where the facts have a `side_mm`, else in
    voxels), and `intensity`, the mean under the mask, from 0 to 1: glass to solid."""
    spacing = np.asarray(facts.get("side_mm", masks.shape[-1]), np.float64) / masks.shape[-1]
    counts = masks.sum((1, 2, 3))
    pairs = zip(volumes, masks, strict=True)
    sums = np.array([volume[mask].sum(dtype=np.float64) for volume, mask in pairs])
    top = 255.0 if volumes.dtype == np.uint8 else 1.0
    return {"diameter": spacing * sphere_diameter(counts), "intensity": sums / counts / top}


def sphere_diameter(num_voxels: NDArray[Any]) -> NDArray[np.float64]:
    """Voxels: the diameter of a sphere of so many voxels."""
    return np.asarray(np.cbrt(6.0 / np.pi * num_voxels), np.float64)


def as_intensities(volumes: NDArray[Any]) -> Floats:
    """Float32 in [0, 1]."""
    scale = np.float32(255.0 if volumes.dtype == np.uint8 else 1.0)
    return np.asarray(volumes, np.float32) / scale


def read_cubes(path: Path) -> tuple[NDArray[Any], Masks | None, Listing]:
    """Cubes, their masks where there are some, and what is known of each, from an .npz file or a
    folder of NIfTI pairs."""
    if path.is_dir():
        listed = load_volumes(path)
        cubes = check_cubes(np.asarray(listed.cubes), path)
        return cubes, load_masks(path, cubes.shape), listed
    if path.suffix != ".npz":
        raise UserError(f"{path} is no .npz file and no folder; {_MASKS_TOO}")
    arrays = load_arrays(path, _HOW)
    masks = arrays.get("mask", arrays.get("masks"))
    volumes = arrays.get("volume", arrays.get("volumes"))
    if volumes is None:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise UserError(f"{path} must hold volume; it holds {found or 'nothing'}")
    volumes = check_cubes(volumes, path)
    known = read_arrays(path)
    return volumes, None if masks is None else check_masks(masks, volumes, path), known


def check_cubes(volumes: NDArray[Any], path: Path) -> NDArray[Any]:
    """The volumes as they are learned from, or an error of one line."""
    if volumes.ndim != 4 or len(set(volumes.shape[1:])) != 1 or volumes.shape[1] < 8:
        raise UserError(
            f"{path}: volume has the shape {by(volumes.shape)}; it must be nodules x s x s x s, "
            "with s at least 8"
        )
    if volumes.dtype.kind not in "uif":
        raise UserError(f"{path}: volume is of type {volumes.dtype}; give uint8 or float32")
    low, high, not_finite = value_range(volumes)
    if not_finite is not None:
        raise UserError(f"{path}: volume of row {not_finite} holds NaN or infinite values")
    if volumes.dtype == np.uint8 and high > 1:
        return volumes
    if volumes.dtype.kind != "f" or low < 0.0 or high > 1.0:
        raise UserError(
            f"{path}: intensities reach from {low:g} to {high:g} in {volumes.dtype}; give bytes "
            "from 0 to 255, or floats from 0 to 1: (volume - low) / (high - low), clipped"
        )
    return volumes.astype(np.float32, copy=False)


def check_masks(masks: NDArray[Any], volumes: NDArray[Any], path: Path) -> Masks:
    """The masks as booleans, or an error of one line."""
    if masks.shape != volumes.shape:
        raise UserError(
            f"{path}: mask has the shape {by(masks.shape)}, volume {by(volumes.shape)}; they must "
            "be equal"
        )
    if masks.dtype != np.bool_ and not np.isin(masks, (0, 1)).all():
        raise UserError(f"{path}: mask holds values beside 0 and 1; give mask > 0")
    found: Masks = masks.astype(np.bool_)
    empty = np.flatnonzero(~found.any((1, 2, 3)))
    if len(empty):
        raise UserError(
            f"{path}: the mask of row {empty[0]} is empty ({len(empty)} of {len(found)} are); "
            "leave such rows out"
        )
    return found


# ---- frames


class FramePlace(NamedTuple):
    """Where a nodule's frame lies in its cube, in voxels."""

    centre: NDArray[np.float64]
    """(3,): of the mask's bounding box; 0 is the first voxel's near border."""
    width: float
    """The frame's side."""


def place_of(mask: Masks) -> FramePlace:
    """The frame around a mask."""
    ends = np.array(
        [np.flatnonzero(mask.any(tuple({0, 1, 2} - {axis})))[[0, -1]] for axis in range(3)],
        np.float64,
    )
    return FramePlace(
        (ends.sum(1) + 1.0) / 2.0, FRAME * float((ends[:, 1] - ends[:, 0]).max() + 1.0)
    )


def soft(mask: Masks) -> Floats:
    """A mask with a soft edge: how much of a voxel is nodule. Beyond the cube it goes on as at the
    border."""
    return _along_axes(mask.astype(np.float32), [_edge_blur(length) for length in mask.shape])


@limited_threads(1)
def frames(volumes: NDArray[Any], masks: Masks, side: int) -> Floats:
    """(N, 2, side, side, side): soft masks, and intensities times them, in the nodules' frames.

    Linear between the cube's voxels; a frame that is coarser sees them averaged; beyond the cube
    everything goes on as at the border.
    """
    made = np.empty((len(volumes), 2, side, side, side), np.float32)
    for out, volume, mask in zip(made, volumes, masks, strict=True):
        edge = soft(mask)
        rows = _rows_of_frame(place_of(mask), side, len(mask))
        for channel, image in enumerate((edge, edge * as_intensities(volume))):
            out[channel] = _along_axes(image, rows).clip(0.0, 1.0)  # rounding goes beyond 1
    return made


def _along_axes(image: Floats, rows: Sequence[Floats]) -> Floats:
    """Every axis multiplied by a matrix of its own."""
    for matrix in rows:
        image = np.tensordot(image, matrix, axes=(0, 1))  # the axis done goes last
    return image


@cache
def _edge_blur(length: int) -> Floats:
    """(length, length): the blur of `soft` along one axis."""
    reach = int(np.ceil(4 * EDGE))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / EDGE) ** 2)
    kernel /= kernel.sum()
    matrix = np.zeros((length, length))
    for row in range(length):
        np.add.at(matrix[row], np.arange(row - reach, row + reach + 1).clip(0, length - 1), kernel)
    return matrix.astype(np.float32)


def _rows_of_frame(place: FramePlace, side: int, length: int) -> list[Floats]:
    """(side, length) for each axis: the weights of an image's voxels in a frame's."""
    step = place.width / side
    offsets = (np.arange(side) + 0.5 - side / 2) * step
    rows = []
    for centre in place.centre:
        points = (centre + offsets - 0.5).clip(0.0, length - 1.0)
        apart = np.abs(points[:, None] - np.arange(length)) / max(1.0, step)
        weights = (1.0 - apart).clip(0.0)
        rows.append((weights / weights.sum(1, keepdims=True)).astype(np.float32))
    return rows


def mirrored(seen: Floats) -> Floats:
    """(16 N, ...): frames in the 16 ways of `turn`, nodule by nodule."""
    ways = []
    for flips in itertools.product((1, -1), repeat=3):
        flipped = seen[:, :, *(slice(None, None, step) for step in flips)]
        ways += [flipped, flipped.swapaxes(-1, -2)]
    return np.ascontiguousarray(np.stack(ways, axis=1).reshape(-1, *seen.shape[1:]))
