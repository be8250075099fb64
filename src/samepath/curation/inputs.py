"""One look at every example itself: a digest of its inputs, and a thumbnail.

In: a recipe's training data. Out: `digests`, 16 bytes of each example's inputs, by which exact
duplicates are found; `images`, 8-bit pictures of at most 64 pixels a side, grey (N, H, W) or colour
(N, H, W, 3); of volumes the three central slices side by side. No pictures of what is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from samepath.curation.folder import Arrays
from samepath.data import GrainRequest, as_source
from samepath.data.sources import Data

MOST_PIXELS = 64
LEAST_PIXELS = 4
_AT_ONCE = 256

Collate = Callable[[list[Any]], Any] | None


def look(
    data: Data, collate: Collate = None, told: Callable[[int], None] = lambda done: None
) -> Arrays:
    """Digests of all examples, and thumbnails where they are pictures; `told` is how many examples
    have been looked at, each twice."""
    digests: list[NDArray[np.uint8]] = []
    low, high = np.inf, -np.inf
    picture = True
    for batch in load(data, collate):
        leaves = list(_tensors(inputs_of(batch)))
        digests.append(_digests(leaves))
        told(len(digests) * _AT_ONCE)
        picture = picture and len(leaves) == 1 and _as_pictures(leaves[0]) is not None
        if picture and leaves[0].dtype != torch.uint8:
            low, high = min(low, float(leaves[0].min())), max(high, float(leaves[0].max()))
    found: Arrays = {"digests": np.concatenate(digests)}
    if picture:
        images = []
        for batch in load(data, collate):
            images.append(_thumbnails(inputs_of(batch), low, high))
            told((len(digests) + len(images)) * _AT_ONCE)
        if len({image.shape[1:] for image in images}) == 1:
            found["images"] = np.concatenate(images)
    return found


def load(data: Data, collate: Collate, rows: NDArray[np.int64] | None = None) -> Iterator[Any]:
    """Batches of all examples, or of some, as validation sees them."""
    source = as_source(data, seed=0, collate=collate)
    rows = np.arange(len(source), dtype=np.int64) if rows is None else rows
    starts = range(0, len(rows), _AT_ONCE)
    return source.load(GrainRequest(-1, rows[start : start + _AT_ONCE]) for start in starts)


def inputs_of(batch: Any) -> Any:
    """What a model is shown of a batch: the first item of several."""
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def flat_inputs(data: Data, collate: Collate, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Inputs of some examples as rows of numbers."""
    parts = []
    for batch in load(data, collate, rows):
        leaves = [leaf.reshape(len(leaf), -1).float() for leaf in _tensors(inputs_of(batch))]
        parts.append(torch.cat(leaves, dim=1).numpy())
    return np.concatenate(parts)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from _tensors(value[name])
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _digests(leaves: list[Tensor]) -> NDArray[np.uint8]:
    rows = [leaf.contiguous().reshape(len(leaf), -1).view(torch.uint8).numpy() for leaf in leaves]
    whole = np.concatenate(rows, axis=1)
    made = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in whole)
    return np.frombuffer(made, np.uint8).reshape(len(whole), 16)


def _as_pictures(inputs: Tensor) -> Tensor | None:
    """(N, C, H, W) with one or three channels, or None."""
    if inputs.dtype == torch.bool or inputs.is_complex() or inputs.ndim not in (3, 4, 5):
        return None
    shape = inputs.shape[1:]
    if min(shape[-2:]) < LEAST_PIXELS:
        return None
    if len(shape) == 2:
        return inputs[:, None]
    if len(shape) == 3 and shape[0] in (1, 3):
        return inputs
    if len(shape) == 3 and shape[0] >= LEAST_PIXELS:
        return _slices(inputs)
    if len(shape) == 4 and shape[0] == 1 and shape[1] >= LEAST_PIXELS:
        return _slices(inputs[:, 0])
    return None


def _slices(volumes: Tensor) -> Tensor:
    """Axial, coronal and sagittal slices through the middle, z upwards, side by side."""
    depth, height, width = (size // 2 for size in volumes.shape[1:])
    planes = [
        volumes[:, depth],
        volumes[:, :, height].flip(1),
        volumes[:, :, :, width].flip(1),
    ]
    high, wide = (max(plane.shape[side] for plane in planes) for side in (1, 2))
    padded = []
    for plane in planes:
        above, left = high - plane.shape[1], wide - plane.shape[2]
        sides = (left // 2, left - left // 2, above // 2, above - above // 2)
        padded.append(_shrunk(F.pad(plane, sides)[:, None]))
    return torch.cat(padded, dim=3)


def _shrunk(pictures: Tensor) -> Tensor:
    high, wide = pictures.shape[2:]
    scale = MOST_PIXELS / max(high, wide)
    if scale >= 1:
        return pictures
    size = (max(1, round(high * scale)), max(1, round(wide * scale)))
    return F.interpolate(pictures.float(), size, mode="area")


def _thumbnails(inputs: Tensor, low: float, high: float) -> NDArray[np.uint8]:
    pictures = _as_pictures(inputs)
    assert pictures is not None
    if pictures.shape[3] < 3 * pictures.shape[2] or pictures.shape[1] == 3:
        pictures = _shrunk(pictures)
    if inputs.dtype != torch.uint8:
        pictures = (pictures.float() - low) * (255.0 / max(high - low, 1e-30))
    pictures = pictures.float().round().clamp(0, 255).to(torch.uint8)
    return (pictures[:, 0] if pictures.shape[1] == 1 else pictures.permute(0, 2, 3, 1)).numpy()
