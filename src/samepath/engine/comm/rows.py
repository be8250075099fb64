"""Rows of a whole batch, from the grains of all workers.

In: for each of this worker's grains a value: a tensor, or tuples, lists and dicts of tensors, text
and numbers. Out: the values of all workers' grains in grain order; and one value, put together from
them row by row. Guaranteed: tensors come back to the bit, with the strides that `settled` gives
them, in memory of their own; nothing is unpickled.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from samepath.engine.comm.collective import Collective
from samepath.engine.comm.tensors import bytes_in_memory
from samepath.errors import UserError

_PLAIN = (str, int, float, bool, type(None))


def settled(value: Any) -> Any:
    """Copy a value's tensors, without their graphs, into memory that they fill: each keeps the
    order in which it lies, so that kernels meet the same on every worker."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return _rebuilt(value, [settled(part) for part in _parts(value)])


def gather_grains(collective: Collective, mine: Sequence[Any]) -> list[Any]:
    """All workers' grains in order, from this worker's `settled` ones (all workers together)."""
    if collective.num_workers == 1:
        return list(mine)
    told = collective.gather_bytes(_pack(mine))
    return [grain for each in told for grain in _unpack(each, collective.device)]


def joined(grains: Sequence[Any], what: str) -> Any:
    """Put the grains of a batch together: rows of tensors, and texts or numbers of lists, one after
    another. One grain is what it is. `what`, in words, is told where that cannot be done."""
    first = grains[0]
    if len(grains) == 1:
        return first
    if any(type(grain) is not type(first) for grain in grains):
        raise _not_rows(what, "values of different types")
    if isinstance(first, Tensor):
        shapes = {tuple(grain.shape[1:]) for grain in grains}
        if not first.dim() or len(shapes) > 1:
            raise _not_rows(what, f"tensors of shapes {sorted({tuple(g.shape) for g in grains})}")
        return torch.cat(list(grains))
    if isinstance(first, (tuple, list)) and all(isinstance(p, _PLAIN) for g in grains for p in g):
        return type(first)([part for grain in grains for part in grain])  # one for each example
    if isinstance(first, (Mapping, tuple, list)):
        if isinstance(first, Mapping) and any(list(grain) != list(first) for grain in grains):
            raise _not_rows(what, "dicts with different keys")
        columns = [_parts(grain) for grain in grains]
        if len({len(parts) for parts in columns}) > 1:
            raise _not_rows(what, f"{type(first).__name__}s of different lengths")
        return _rebuilt(first, [joined(parts, what) for parts in zip(*columns, strict=True)])
    if isinstance(first, _PLAIN) and all(grain == first for grain in grains):
        return first
    raise _not_rows(what, type(first).__name__)


def _not_rows(what: str, found: str) -> UserError:
    return UserError(
        f"{what} of several grains cannot be put together row by row: it holds {found}; use "
        "tensors with one row for each example"
    )


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in _parts(value) for tensor in tensors_in(part)]


def with_tensors(value: Any, tensors: Sequence[Tensor]) -> Any:
    """The same tuples, lists and dicts with other tensors, in the order of `tensors_in`."""
    return _replaced(value, list(tensors)[::-1])


def _replaced(value: Any, reversed_tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return reversed_tensors.pop()
    return _rebuilt(value, [_replaced(part, reversed_tensors) for part in _parts(value)])


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (tuple, list)) else []


def _rebuilt(value: Any, parts: Sequence[Any]) -> Any:
    """A value of the same kind with other parts."""
    if isinstance(value, Mapping):
        return dict(zip(value, parts, strict=True))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*parts)
    return type(value)(parts) if isinstance(value, (tuple, list)) else value


# ---- messages: tensors and JSON in one stretch of bytes


def _pack(grains: Sequence[Any]) -> bytes:
    tensors: list[Tensor] = []
    text = json.dumps([_described(grain, tensors) for grain in grains]).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *map(bytes_in_memory, tensors)])


def _described(value: Any, tensors: list[Tensor]) -> Any:
    """A value in JSON; its tensors are put into the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        kind = str(value.dtype).removeprefix("torch.")
        return {"tensor": [kind, list(value.shape), list(value.stride())]}
    if isinstance(value, Mapping):
        names, parts = list(value), [_described(part, tensors) for part in value.values()]
        if not all(isinstance(name, str) for name in names):
            raise UserError(f"a batch is a dict with the keys {names}; use text as keys")
        return {"dict": [names, parts]}
    if isinstance(value, (tuple, list)):
        parts = [_described(part, tensors) for part in value]
        if hasattr(value, "_fields"):
            return {"named": [type(value).__name__, list(value._fields), parts]}
        return {type(value).__name__ if type(value) in (tuple, list) else "list": parts}
    if isinstance(value, _PLAIN):
        return {"plain": value}
    raise UserError(
        f"a batch holds a {type(value).__name__}, which cannot be sent to other workers; use "
        "tensors, text and numbers, in tuples, lists and dicts"
    )


@lru_cache(maxsize=64)
def _named(name: str, fields: tuple[str, ...]) -> Any:
    """A stand-in for another worker's named tuple: one class for all grains."""
    return namedtuple(name, fields)


def _unpack(told: bytes, device: torch.device) -> list[Any]:
    start = 8 + int.from_bytes(told[:8], "little")
    place = [start]
    memory = memoryview(bytearray(told))

    def made(described: Any) -> Any:
        ((kind, value),) = described.items()
        if kind == "tensor":
            name, shape, strides = value
            tensor = torch.empty_strided(shape, strides, dtype=getattr(torch, name))
            num_bytes = tensor.nbytes
            if num_bytes:
                given = torch.frombuffer(
                    memory, dtype=torch.uint8, count=num_bytes, offset=place[0]
                )
                flat = tensor.as_strided((tensor.numel(),), (1,))
                flat.view(torch.uint8).copy_(given)
            place[0] += num_bytes
            return tensor.to(device)
        if kind == "dict":
            return dict(zip(value[0], map(made, value[1]), strict=True))
        if kind == "named":
            name, fields, parts = value
            return _named(name, tuple(fields))(*map(made, parts))
        if kind in ("tuple", "list"):
            return (tuple if kind == "tuple" else list)(map(made, value))
        return value

    return [made(grain) for grain in json.loads(told[8:start])]
