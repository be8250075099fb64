"""Data in memory, held once per machine and not once per worker.

In: data sets that every worker has made alike (a cache, tensors, lists of arrays). Out: the same,
with large tensors and arrays in memory that all workers of a machine map. Guaranteed: no value
changes: a worker takes the machine's copy of a piece only where all bytes are those of its own. A
worker that writes into its data gets the written pages for itself.

Moved are tensors on the CPU (in place), and numpy arrays that lie in lists, dicts or attributes;
not arrays inside tuples, nor what is made later (a cache that fills itself while training). Every
worker still makes its own data first: the most memory is taken then.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath import owners
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.environment import machine_name
from samepath.engine.comm.shared_memory import TOKEN_BYTES, open_memory

LEAST_BYTES = 16 << 20
"""Less than this is not worth the looking."""
_LEAST_PIECE = 4 << 10
_ALIGN = 64
_AT_ONCE = 1 << 30
_LEAVES = (str, bytes, int, float, type, ModuleType, nn.Module)


class _Piece(NamedTuple):
    """A tensor's or an array's memory."""

    values: NDArray[np.uint8]
    replace: Callable[[NDArray[np.uint8]], None]


def share_data(collective: Collective, *data: Any) -> int:
    """Have the workers of each machine hold large data once; call it on every worker, with data
    that is alike. Returns the bytes that this worker now shares."""
    if collective.num_workers == 1 or sys.platform != "linux":
        return 0
    pieces = list(_pieces(data))
    ends = np.cumsum([-(-len(p.values) // _ALIGN) * _ALIGN for p in pieces], dtype=np.int64)
    size = int(ends[-1]) if pieces else 0
    # workers that hold data of other sizes, or see other processes, do not share
    where = f"{owners.world()} {machine_name()} {size}".encode()
    alike = [w for w, other in enumerate(collective.gather_bytes(where)) if other == where]
    path, token, owned = b"", bytes(TOKEN_BYTES), -1
    if size >= LEAST_BYTES and len(alike) > 1 and alike[0] == collective.worker:
        with suppress(OSError):  # there is no room: each keeps its own
            owned, token = _write(pieces, ends, size)
            path = f"/proc/{os.getpid()}/fd/{owned}".encode()
    told = collective.gather_bytes(token + path)[alike[0]]
    moved = 0
    with suppress(OSError):
        if told[TOKEN_BYTES:]:
            moved = _take(told[TOKEN_BYTES:].decode(), told[:TOKEN_BYTES], pieces, ends, size)
    pieces.clear()
    collective.agree(True)  # all have opened it by now
    if owned >= 0:
        os.close(owned)
    with suppress(AttributeError):  # another libc than GNU's
        ctypes.CDLL(None).malloc_trim(0)  # give back what the copies took
    return moved


def _write(pieces: list[_Piece], ends: NDArray[np.int64], size: int) -> tuple[int, bytes]:
    """Write all pieces into new memory, whose descriptor and token are returned."""
    owned = os.memfd_create("samepath-data", os.MFD_CLOEXEC)
    token = secrets.token_bytes(TOKEN_BYTES)
    try:
        os.ftruncate(owned, size + TOKEN_BYTES)
        for piece, begin in zip(pieces, [0, *ends[:-1].tolist()], strict=True):
            for first in range(0, len(piece.values), _AT_ONCE):
                os.pwrite(owned, piece.values[first : first + _AT_ONCE].data, begin + first)
        os.pwrite(owned, token, size)
    except OSError:
        os.close(owned)
        raise
    return owned, token


def _take(path: str, token: bytes, pieces: list[_Piece], ends: NDArray[np.int64], size: int) -> int:
    """Replace all pieces that the machine's memory holds byte for byte; how many bytes."""
    descriptor = open_memory(path, size + TOKEN_BYTES, token)
    try:
        whole = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    memory, moved = np.frombuffer(whole, np.uint8), 0
    for piece, begin in zip(pieces, [0, *ends[:-1].tolist()], strict=True):
        shared = memory[begin : begin + len(piece.values)]
        if np.array_equal(shared, piece.values):
            piece.replace(shared)
            moved += len(shared)
    return moved


def _pieces(data: Any) -> Iterator[_Piece]:
    """Large tensors and arrays that data holds, in the order in which all workers meet them."""
    met: dict[int, Any] = {}
    storages: dict[int, list[Tensor]] = {}
    left: list[Any] = [data]
    while left:
        value = left.pop()
        if id(value) in met or isinstance(value, _LEAVES):
            continue
        met[id(value)] = value
        inside: Any = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        if isinstance(value, (list, tuple)):
            inside = dict(enumerate(value))
        elif isinstance(value, (Tensor, np.ndarray)) or not isinstance(inside, dict):
            continue
        for name, held in inside.items():
            if isinstance(held, Tensor):
                if _is_plain(held):
                    storages.setdefault(held.untyped_storage().data_ptr(), []).append(held)
            elif isinstance(held, np.ndarray):
                if not isinstance(value, tuple) and _is_own(held):
                    put = value if isinstance(value, list) else inside
                    yield _piece_of_array(held, put, name)
            else:
                left.append(held)
    for tensors in storages.values():
        yield _piece_of_tensors(tensors)


def _is_plain(tensor: Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad:
        return False
    storage = tensor.untyped_storage()
    return storage.nbytes() >= _LEAST_PIECE and storage.filename is None


def _is_own(array: NDArray[Any]) -> bool:
    plain = type(array) is np.ndarray and array.dtype.kind in "biufc" and array.base is None
    return plain and array.flags.c_contiguous and array.nbytes >= _LEAST_PIECE


def _piece_of_array(array: NDArray[Any], holder: Any, name: Any) -> _Piece:
    kind, shape = array.dtype, array.shape

    def replace(shared: NDArray[np.uint8]) -> None:
        holder[name] = shared.view(kind).reshape(shape)

    return _Piece(array.reshape(-1).view(np.uint8), replace)


def _piece_of_tensors(tensors: list[Tensor]) -> _Piece:
    """The memory of tensors that share it."""
    storage = tensors[0].untyped_storage()
    values = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))

    def replace(shared: NDArray[np.uint8]) -> None:
        new = torch.from_numpy(shared).untyped_storage()
        # in place, for whoever else holds the tensor; subclasses need not know
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            bases = [tensor._base for tensor in tensors]  # a view keeps the tensor it is of
            for tensor in {id(t): t for t in (*tensors, *bases) if t is not None}.values():
                place = tensor.storage_offset(), tensor.shape, tensor.stride()
                tensor.set_(new, *place)

    return _Piece(values.numpy(), replace)
