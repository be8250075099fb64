"""Is it still the same data? Fingerprints of data on disk, and of what a recipe hands over.

In: a file or folder; or training or validation data of any kind. Out: SHA-256 as text.

`fingerprint_path` covers, of a file or folder, the names and sizes of all files, and the first and
last megabyte of each. A change in the middle of a larger file that keeps its size goes unnoticed.

`content_of` is quick at any size. It covers, of tensors and arrays (also in a TensorDataset, Subset
or ConcatDataset): shapes, types, a sum of every megabyte, and all bytes of a thousand rows spread
evenly; of mapped ones, sixty-four rows only. Of other data sets: their class and length, and their
first, middle and last item, each where loading it twice gives the same (an item that is random in a
way of its own is not compared).

`examples_identity` covers every byte of every example.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from samepath.data.loaders import Loaders
from samepath.data.sources import (
    Collate,
    Column,
    Data,
    GrainRequest,
    SomeOf,
    as_source,
    as_tensor,
    columns_of,
    expect_random_rows,
    in_parts,
    is_mapped,
    requests_for,
)
from samepath.errors import UserError
from samepath.files import open_plain, size_of

_MEGABYTE = 1 << 20
_MOST_ROWS = 1024
_MAPPED_ROWS = 64
"""Rows that are looked at where each has to be read from a disk."""
_ROWS_BYTES = 16 << 20
"""Bytes of the rows that are looked at; three rows are in any case."""
_ITEM_SECONDS = 5.0
"""No further item is looked at after so long."""
_TIMEOUT_SECONDS = 60.0


def fingerprint_path(path: Path) -> str:
    """A fingerprint of a file or folder. A folder may have moved; what is in it may not have."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    whole = hashlib.sha256()
    for file in files:
        name = "" if file == path else file.relative_to(path).as_posix()
        try:
            with open_plain(file) as content:
                size = size_of(content)
                first = content.read(_MEGABYTE)
                content.seek(max(len(first), size - _MEGABYTE))
                parts = hashlib.sha256(first + content.read(_MEGABYTE)).hexdigest()
        except OSError as error:
            raise UserError(
                f"{file} cannot be read ({error.strerror}); move it out of the data, or let it be "
                "read"
            ) from None
        whole.update(f"{name}\0{size}\0{parts}\n".encode())
    return whole.hexdigest()


def content_of(
    data: Data, *, collate: Collate | None = None, loader_workers: int = 0
) -> dict[str, str]:
    """What the data is, by name. Two runs on the same data have equal values wherever both have a
    name; see `same_content`."""
    if held := held_content(data, collate):
        return held
    number = len(as_source(data, seed=0, collate=collate))
    found = {"form": f"{type(data).__qualname__} of {number}"}
    if type(data) is Subset:
        rows = hashlib.sha256()
        _add_rows(rows, data.indices)
        found["rows"] = rows.hexdigest()
    return found | dict(_items(data, number, loader_workers))


def held_content(data: Data, collate: Collate | None = None) -> dict[str, str]:
    """The content of data that consists of tensors and arrays; nothing for any other."""
    whole = hashlib.sha256()
    return {"data": whole.hexdigest()} if _add(whole, data, collate) else {}


def same_content(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether all that both have looked at is the same."""
    return all(before[name] == now[name] for name in before.keys() & now.keys())


def examples_identity(data: Data, collate: Collate | None = None) -> str:
    """SHA-256 over all examples as they are loaded, in order: their types, shapes and bytes."""
    whole = hashlib.sha256()
    source = as_source(data, seed=0, collate=collate)
    for batch in source.load(requests_for(np.arange(len(source)))):
        add_value(whole, batch, _refuse_unknown)
    return whole.hexdigest()


def add_value(whole: Any, value: Any, unknown: Callable[[Any], None]) -> None:
    """Add the bits of a value to a hash, however it is nested; `unknown` is called with what is
    neither tensor, array, number nor text."""
    if isinstance(value, Tensor):
        whole.update(f"{value.dtype} {tuple(value.shape)}\n".encode())
        whole.update(_bytes(value if value.layout == torch.strided else value.to_dense()))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        whole.update(f"{value.dtype} {value.shape}\n".encode())
        whole.update(value.tobytes())
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            whole.update(f"{name!r}: ".encode())
            add_value(whole, value[name], unknown)
    elif isinstance(value, (tuple, list)):
        whole.update(f"{len(value)} parts\n".encode())
        for part in value:
            add_value(whole, part, unknown)
    elif value is None or isinstance(value, (str, bytes, bool, int, float, np.generic)):
        whole.update(f"{value!r}\n".encode())
    else:
        unknown(value)


def _refuse_unknown(value: Any) -> None:
    raise UserError(
        f"a batch of the training data holds a {type(value).__name__}, which cannot be "
        "recognised again; use tensors, numbers and text"
    )


# ---- tensors and arrays


def _add(whole: Any, data: Any, collate: Collate | None = None) -> bool:
    """Add all of the data, if it consists of tensors and arrays."""
    columns = columns_of(data, collate)
    if columns is not None:
        single, parts = in_parts(columns)
        whole.update(f"{'one' if single else len(parts)}\n".encode())
        for column in parts:
            _add_column(whole, column)
        return True
    if type(data) is Subset:
        _add_rows(whole, data.indices)
        return _add(whole, data.dataset)
    if isinstance(data, SomeOf):
        _add_rows(whole, data.rows)
        return _add(whole, data.data)
    if type(data) is ConcatDataset:
        whole.update(f"{len(data.datasets)} together\n".encode())
        return all(_add(whole, part) for part in data.datasets)
    return False


def _add_rows(whole: Any, rows: Any) -> None:
    numbers = np.asarray(rows, np.int64)
    whole.update(f"{len(numbers)} rows\n".encode())
    whole.update(numbers.tobytes())


def _add_column(whole: Any, column: Column) -> None:
    shape = tuple(column.shape)
    whole.update(f"{str(column.dtype).removeprefix('torch.')} {shape}\n".encode())
    if not all(shape) or not shape:
        return
    row_bytes = column[:1].nbytes
    if not is_mapped(column):
        step = max(1, _MEGABYTE // row_bytes)
        sums = [_sum(_bytes(column[begin : begin + step])) for begin in range(0, shape[0], step)]
        whole.update(np.array(sums, np.uint64).tobytes())
        most = _MOST_ROWS
    else:
        expect_random_rows(as_tensor(column))  # else the system reads ahead of each
        most = _MAPPED_ROWS
    number = min(shape[0], most, max(3, _ROWS_BYTES // row_bytes))
    for row in np.unique(np.linspace(0, shape[0] - 1, number).round().astype(np.int64)).tolist():
        whole.update(_bytes(column[row : row + 1]))


def _bytes(part: Column) -> NDArray[np.uint8]:
    """The bytes of the values in their order, however they lie in memory."""
    if isinstance(part, Tensor):
        plain = part.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return plain.reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8)


def _sum(values: NDArray[np.uint8]) -> int:
    """The sum of all 64-bit words, and of what is left of one; wrapping."""
    whole = len(values) // 8 * 8
    words = int(np.add.reduce(values[:whole].view(np.uint64), dtype=np.uint64))
    return (words + int(values[whole:].sum(dtype=np.uint64))) % (1 << 64)


# ---- items of other data sets


def _items(data: Data, number: int, loader_workers: int) -> Iterator[tuple[str, str]]:
    """Some items, loaded as a run loads them: in a loader process where it has any, since a file
    that a data set has opened must not be shared with those."""
    places = sorted({0, number // 2, number - 1}) if number else []
    loaders = Loaders(min(1, loader_workers), timeout_seconds=_TIMEOUT_SECONDS)
    source = as_source(data, seed=0, loaders=loaders, collate=list)
    threads, began = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)  # the same bits on a machine with other cores
    try:
        requests = (GrainRequest(0, np.array([place])) for place in places for _ in range(2))
        loaded = source.load(requests)
        for place in places:
            first, second = hashlib.sha256(), hashlib.sha256()
            has_numbers = [_add_numbers(digest, next(loaded)) for digest in (first, second)]
            if all(has_numbers) and first.digest() == second.digest():
                yield f"item {place}", first.hexdigest()
            if time.monotonic() - began > _ITEM_SECONDS:
                return
    except Exception:
        return  # whatever is wrong with an item is told by the step that needs it
    finally:
        torch.set_num_threads(threads)


def _add_numbers(whole: Any, value: Any) -> bool:
    """Add the numbers of an item; whether there were any. (Not text: names of files may differ when
    data has moved.)"""
    if isinstance(value, Mapping):
        value = [value[name] for name in sorted(value, key=str)]
    if isinstance(value, (tuple, list)):
        added = [_add_numbers(whole, part) for part in value]
        return any(added)
    if isinstance(value, (bool, int, float, complex)):
        whole.update(f"{value!r}\n".encode())
        return True
    if isinstance(value, Tensor) and value.layout != torch.strided:
        value = value.to_dense()
    if not isinstance(value, Tensor) and hasattr(value, "__array_interface__"):
        value = np.asarray(value)  # PIL's images too
        if value.dtype.kind not in "biufc":
            return False
    if not isinstance(value, (Tensor, np.ndarray)):
        return False
    whole.update(f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}\n".encode())
    whole.update(_bytes(value))
    return True
