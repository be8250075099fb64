"""Tensors and facts in one stretch of bytes, for the way between a parameter server and a worker.

In: tensors, JSON. Out: a message, and both back again, to the bit. No pickle. The layout follows
from the tensors' shapes, which both sides know; every tensor starts on a cache line and fills its
memory in its own order, so that kernels meet what they meet everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from samepath.engine.comm.tensors import dense_strides
from samepath.engine.comm.tree_sum import ALIGNMENT_BYTES

NOTHING = torch.empty(0, dtype=torch.uint8)
"""A message that only says: I am here."""


def pack(
    facts: dict[str, Any], tensors: Sequence[Tensor | None] = (), like: Sequence[Tensor] = ()
) -> Tensor:
    """A message. Of a tensor that is None only the place is there; `like` says how large it is."""
    text = json.dumps(facts).encode()
    *places, end = _places(like)
    message = torch.empty(end + len(text), dtype=torch.uint8)
    message[:8].view(torch.int64).fill_(end)
    for tensor, place, model in zip(tensors, places, like, strict=True):
        if tensor is not None:
            _view(message, place, model).copy_(tensor)
    message[end:].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    return message


def unpack_facts(message: Tensor) -> dict[str, Any]:
    start = int(message[:8].view(torch.int64))
    facts: dict[str, Any] = json.loads(message[start:].numpy().tobytes())
    return facts


def unpack_tensors(message: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a message: its own memory, not copies."""
    return [
        _view(message, place, model)
        for place, model in zip(_places(like), like, strict=False)  # the last place is the end
    ]


def _places(like: Sequence[Tensor]) -> Iterator[int]:
    """Where each tensor starts, and where the last one ends."""
    place = ALIGNMENT_BYTES  # before it: where the facts start
    for tensor in like:
        yield place
        place += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    yield place


def _view(message: Tensor, place: int, like: Tensor) -> Tensor:
    flat = message[place : place + like.nbytes].view(like.dtype)
    return flat.as_strided(like.shape, dense_strides(like))
