"""A tensor's bits: are they the same, and a sum that stands for them.

In: tensors. Out: whether two are the same to the last bit; whole numbers over the same memory; for
each tensor the sum of those, modulo 2**64, at the speed of memory; a fingerprint of any value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath.data.content import add_value

Checksums: TypeAlias = NDArray[np.int64]
"""One for each tensor."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: Tensor) -> Tensor:
    """View the same memory with each value as a whole number (a complex value as two)."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_WORDS[plain.itemsize])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit: 0.0 and -0.0 differ, and a NaN equals itself."""
    return torch.equal(bits_of(a), bits_of(b))


def words_of(tensor: Tensor) -> Tensor:
    """View all of a tensor's memory, which it must fill, in words as long as it can be divided
    into."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    for size in (8, 4, 2):
        if flat.nbytes % size == 0 and flat.data_ptr() % size == 0:
            return flat.view(_WORDS[size])
    return flat.view(torch.uint8)


def sums_of(words: Sequence[Tensor]) -> Checksums:
    """The sum of each tensor of words."""
    if all(word.device.type == "cpu" for word in words):  # numpy takes less time for each
        return np.array([np.add.reduce(w.numpy(), dtype=np.int64) for w in words], np.int64)
    found = torch.stack([word.sum(dtype=torch.int64) for word in words])
    return np.asarray(found.cpu().numpy(), np.int64)


def tensor_sums(tensors: Sequence[Tensor]) -> Checksums:
    """The sum of each tensor, however it lies in memory."""
    return sums_of(
        [words_of(tensor if fills(tensor) else tensor.contiguous()) for tensor in tensors]
    )


def fills(tensor: Tensor) -> bool:
    """Whether a tensor fills the memory between its first and last value (also in another order
    than row by row: channels-last, say)."""
    return tensor.is_contiguous() or tensor.stride() == dense_strides(tensor)


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's strides if it fills its memory, else row-major ones."""
    return torch.empty_like(tensor, device="meta").stride()


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's bytes in row-major order, without a copy where it already lies so."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def bytes_in_memory(tensor: Tensor) -> bytes:
    """The bytes of a tensor that fills its memory, in the order in which they lie."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,)).cpu()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def to_device(data: Any, device: torch.device) -> Any:
    """Move the tensors in tuples, lists and dicts that are on another device."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, Mapping):
        return {name: to_device(value, device) for name, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, (tuple, list)):
        return type(data)(to_device(value, device) for value in data)
    return data


def fingerprint(value: Any) -> str:
    """Stands for the bits of a value, however nested. Objects unknown to us count by their type."""
    total = hashlib.blake2b(digest_size=16)
    add_value(total, value, lambda other: total.update(type(other).__name__.encode()))
    return total.hexdigest()
