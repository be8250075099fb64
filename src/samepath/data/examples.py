"""Which examples are these? Their identity, their labels, and a part of them by number.

In: a recipe's training data, of any kind. Out: a SHA-256 over every example; integer labels, if
there are any; the same kind of data with only some of its examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from samepath.data.mapped import Column
from samepath.data.sources import (
    Data,
    GrainRequest,
    SomeOf,
    Source,
    TensorSource,
    as_source,
    columns_of,
    select_rows,
)
from samepath.errors import UserError

Collate = Callable[[list[Any]], Any]
Rows = NDArray[np.int64]

_AT_ONCE = 256
_NO_EPOCH = -1


def examples_identity(data: Data, collate: Collate | None = None) -> str:
    """SHA-256 over all examples as they are loaded, in order: their types, shapes and bytes."""
    whole = hashlib.sha256()
    source = as_source(data, seed=0, collate=collate)
    for batch in source.load(_requests(np.arange(len(source)))):
        _hash(whole, batch)
    return whole.hexdigest()


def labels_of(
    data: Data,
    facts: Mapping[str, NDArray[Any]],
    collate: Collate | None = None,
    rows: Rows | None = None,
) -> NDArray[np.int64] | None:
    """Integer labels of all examples, or of the given; None where there are none.

    They are the second item where a batch is (inputs, integer labels), else the fact "label".
    """
    source = as_source(data, seed=0, collate=collate)
    rows = np.arange(len(source)) if rows is None else rows
    found = [_labels(batch) for batch in source.load(_requests(rows[:1]))]
    if found and found[0] is not None:
        parts = [_labels(batch) for batch in source.load(_requests(rows))]
        return np.concatenate([part for part in parts if part is not None])
    known = np.asarray(facts["label"]) if "label" in facts else None
    if known is None or known.dtype.kind not in "iu":
        return None
    return known[rows].astype(np.int64)


def in_memory(data: Data, collate: Collate | None = None) -> bool:
    """Whether looking at every example costs next to nothing."""
    columns = columns_of(data, collate)
    return columns is not None and TensorSource(columns).in_memory


def only_rows(data: Data, rows: Rows, collate: Collate | None = None) -> Data:
    """The same data with the given examples only, numbered anew in the order given. `collate` is
    the one it will be loaded with."""
    columns = columns_of(data, collate)
    if isinstance(data, Source) or (columns is not None and not in_memory(data, collate)):
        return SomeOf(data, rows)
    if columns is None:
        return Subset(data, rows.tolist())  # type: ignore[arg-type]
    if isinstance(columns, (Tensor, np.ndarray)):
        return _some(columns, rows)
    return tuple(_some(column, rows) for column in columns)


def _some(column: Column, rows: Rows) -> Column:
    if isinstance(column, Tensor):
        return select_rows(column, torch.from_numpy(rows))
    return column[rows]


def _requests(rows: Rows) -> Iterator[GrainRequest]:
    for begin in range(0, len(rows), _AT_ONCE):
        yield GrainRequest(_NO_EPOCH, rows[begin : begin + _AT_ONCE])


def _labels(batch: Any) -> NDArray[np.int64] | None:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return None
    labels = batch[1]
    if not isinstance(labels, Tensor) or labels.ndim != 1:
        return None
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        return None
    return labels.to(torch.int64).numpy(force=True)


def _hash(whole: Any, value: Any) -> None:
    """Add a batch, of whatever it is made."""
    if isinstance(value, Tensor):
        whole.update(f"{value.dtype} {tuple(value.shape)}\n".encode())
        whole.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        whole.update(f"{value.dtype} {value.shape}\n".encode())
        whole.update(value.tobytes())
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            whole.update(f"{name!r}: ".encode())
            _hash(whole, value[name])
    elif isinstance(value, (tuple, list)):
        whole.update(f"{len(value)} parts\n".encode())
        for part in value:
            _hash(whole, part)
    elif value is None or isinstance(value, (str, bytes, bool, int, float)):
        whole.update(f"{value!r}\n".encode())
    else:
        raise UserError(
            f"a batch of the training data holds a {type(value).__name__}, which cannot be "
            "recognised again; use tensors, numbers and text"
        )
