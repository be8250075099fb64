"""Examples by index, a grain at a time.

In: tensors or numpy arrays, in memory or mapped from files of any size; or a map-style Dataset.
Out: for a sequence of requested grains, their examples as one batch each, in order; labels, if
there are any; the same kind of data with only some of its examples.
Guaranteed: a grain's bits depend on (seed, epoch, its examples) only, not on the number of loader
processes, nor on which grains were loaded before it. Every grain is a fresh allocation, so that
memory alignment (which some kernels choose by) is the same wherever it is computed. Of a mapped
file only the requested rows are read.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from samepath.data.generators import Generators
from samepath.data.loaders import BY_ITSELF, Loaders
from samepath.data.randomness import seed_everything
from samepath.errors import UserError
from samepath.keys import key

Column: TypeAlias = Tensor | NDArray[Any]
"""One row per example."""
Columns: TypeAlias = Column | Sequence[Any]
"""One column, or a sequence of columns."""
Collate: TypeAlias = Callable[[list[Any]], Any]
Rows: TypeAlias = NDArray[np.int64]
Data: TypeAlias = "Columns | Dataset[Any] | Source"

_AT_ONCE = 256
_NO_EPOCH = -1


@dataclass(frozen=True)
class GrainRequest:
    """One grain to load."""

    epoch: int
    examples: NDArray[np.int64]
    draws: NDArray[np.int64] | None = None
    """The numbers that each example's randomness is keyed by, where they are not the examples': one
    that a sampler draws twice in an epoch is augmented in two ways."""


@runtime_checkable
class Source(Protocol):
    """Anything that can hand out grains by example number."""

    def __len__(self) -> int: ...

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        """The requested grains, in order."""
        ...


def as_source(
    data: Data, *, seed: int, loaders: Loaders = BY_ITSELF, collate: Collate | None = None
) -> Source:
    """Whatever a person gives as data, as a source. With a `collate` everything goes through it,
    item by item."""
    columns = columns_of(data, collate)
    if columns is not None:
        if collate is None:
            return TensorSource(columns, loaders=loaders)
        data = _Rows(columns)
    if isinstance(data, SomeOf):
        whole = as_source(data.data, seed=seed, loaders=loaders, collate=collate)
        return SomeOf(whole, data.rows)
    if isinstance(data, Source):
        return data
    if isinstance(data, Dataset) or hasattr(data, "__getitem__"):
        return DatasetSource(data, seed=seed, loaders=loaders, collate=collate)  # type: ignore[arg-type]
    raise UserError(
        f"data of type {type(data).__name__} cannot be indexed; give a tensor, a numpy array, a "
        "tuple of them or a map-style Dataset"
    )


class TensorSource:
    """Tensors and arrays, indexed at once. A grain of one is a tensor, of several a tuple."""

    def __init__(self, data: Columns, *, loaders: Loaders = BY_ITSELF) -> None:
        self._single, parts = in_parts(data)
        self._tensors = tuple(as_tensor(part) for part in parts)
        self._mapped = [as_tensor(part) for part in parts if is_mapped(part)]
        self._loaders = loaders if self._mapped else BY_ITSELF

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, request: GrainRequest) -> Any:
        for tensor in self._mapped:
            _expect_rows(tensor, request.examples.tolist())
        index = torch.from_numpy(request.examples.copy())
        grain = tuple(_select_rows(tensor, index) for tensor in self._tensors)
        return grain[0] if self._single else grain

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        for tensor in self._mapped:
            expect_random_rows(tensor)
        if not self._loaders.number:
            return (self[request] for request in requests)
        return self._loaders.load(self, sampler=requests, batch_size=None, collate_fn=_as_it_is)


def _as_it_is(grain: Any) -> Any:
    return grain


class SomeOf:
    """A source's examples under new numbers."""

    def __init__(self, data: Data, rows: Rows) -> None:
        self.data = data
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        source = as_source(self.data, seed=0)
        return source.load(replace(r, examples=self.rows[r.examples]) for r in requests)


class Sampled:
    """A source as a sampler draws from it: example number i of an epoch is the i-th draw."""

    def __init__(self, source: Source, number: int, order: Callable[[int], Rows]) -> None:
        self._source = source
        self._number = number
        self._order = lru_cache(maxsize=2)(order)  # loaders reach into the next epoch

    def __len__(self) -> int:
        return self._number

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        return self._source.load(
            replace(r, examples=self._order(r.epoch)[r.examples], draws=r.examples)
            for r in requests
        )


class DatasetSource:
    """A map-style Dataset behind a DataLoader with any number of loader processes."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        seed: int,
        loaders: Loaders = BY_ITSELF,
        collate: Collate | None = None,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise UserError(
                f"{type(dataset).__name__} is an IterableDataset, which cannot be indexed; "
                "give a map-style Dataset (with __len__ and __getitem__)"
            )
        if not hasattr(dataset, "__len__"):
            raise UserError(f"{type(dataset).__name__} has no __len__; give a map-style Dataset")
        self._collate = collate or default_collate
        self._dataset = _KeyedDataset(dataset, seed, self._collate)
        self._loaders = loaders

    def __len__(self) -> int:
        return len(self._dataset.dataset)  # type: ignore[arg-type]

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        items = (_items_of(request) for request in requests)
        return self._loaders.load(self._dataset, batch_sampler=items, collate_fn=self._collate)


def _items_of(request: GrainRequest) -> list[tuple[int, int, int]]:
    draws = request.examples if request.draws is None else request.draws
    pairs = zip(draws.tolist(), request.examples.tolist(), strict=True)
    return [(request.epoch, draw, example) for draw, example in pairs]


class _KeyedDataset(Dataset[Any]):
    """A data set whose items meet generators keyed by (seed, epoch, example): the global ones, and
    those that it, its transforms or the collate function keep for themselves."""

    def __init__(self, dataset: Dataset[Any], seed: int, collate: Collate) -> None:
        self.dataset = dataset
        self.seed = seed
        self._collate = collate
        self._generators: Generators | None = None

    def __getitem__(self, item: tuple[int, int, int]) -> Any:
        epoch, draw, example = item
        word = key("example", self.seed, epoch, draw)
        if self._generators is None:
            self._generators = Generators(dataset=self.dataset, collate=self._collate)
        self._set(word)
        found = self.dataset[example]
        if self._generators.grew():
            self._set(word)
            found = self.dataset[example]
        return found

    def _set(self, word: int) -> None:
        assert self._generators is not None
        self._generators.seed(word)
        seed_everything(word)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_generators": None}  # to be found anew in a process that unpickles it


class _Rows(Dataset[Any]):
    """Columns as items: a row of one, or a tuple of a row of each."""

    def __init__(self, columns: Columns) -> None:
        self.single, self.parts = in_parts(columns)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, row: int) -> Any:
        return self.parts[0][row] if self.single else tuple(part[row] for part in self.parts)


# ---- columns


def columns_of(data: Data, collate: Collate | None = None) -> Columns | None:
    """The tensors and arrays that data consists of, with one row per example; None where it is of
    another kind.

    A subclass of TensorDataset makes items of its own, so it is another kind; so is a list of
    arrays (that is how people keep images), and a list of anything that goes through a `collate`.
    """
    if type(data) is TensorDataset:
        return data.tensors
    if isinstance(data, Tensor) or (isinstance(data, np.ndarray) and data.dtype.kind in "biufc"):
        return data
    if isinstance(data, tuple) and data:
        return data if all(isinstance(part, (Tensor, np.ndarray)) for part in data) else None
    if isinstance(data, list) and data and collate is None:
        tensors = [part for part in data if isinstance(part, Tensor)]
        return data if len(tensors) == len(data) and _are_columns(tensors) else None
    return None


def _are_columns(tensors: list[Tensor]) -> bool:
    """Whether a list of tensors is one of columns and not one of examples. UserError where it may
    be either."""
    rows = {tensor.shape[:1] for tensor in tensors}
    if len(rows) > 1 or not all(rows):
        return False
    alike = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
    if len(tensors) == 1 or (not alike and len(tensors) <= len(tensors[0])):
        return True
    raise UserError(
        f"the data is a list of {len(tensors)} tensors, which may be columns or examples; give "
        "tuple(tensors) if each is a column with one row per example, or torch.stack(tensors) (or "
        "a Dataset) if each is an example"
    )


def in_parts(columns: Columns) -> tuple[bool, tuple[Column, ...]]:
    """Whether it is a single column, and all columns. UserError unless all have the same number of
    rows, and have rows."""
    single = isinstance(columns, (Tensor, np.ndarray))
    parts = (columns,) if isinstance(columns, (Tensor, np.ndarray)) else tuple(columns)
    sizes = sorted({tuple(part.shape[:1]) for part in parts})
    if len(sizes) != 1 or not sizes[0]:
        found = " and ".join(f"{size[0]} rows" if size else "no rows" for size in sizes)
        raise UserError(f"the data's tensors have {found}; give tensors with one row per example")
    return single, parts


def as_tensor(part: Column) -> Tensor:
    """View the same memory as a tensor."""
    if isinstance(part, Tensor):
        return part
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot be written to: no code here does
            return torch.from_numpy(part)
    except (TypeError, ValueError):
        raise UserError(
            f"the data has a numpy array of {part.dtype} with strides {part.strides}, which torch "
            "cannot take as it is; give np.ascontiguousarray(array, np.float32), or another type"
        ) from None


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types that torch has no index_select for, and their likes."""


def _select_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """A copy of some rows."""
    alike = _SIGNED.get(tensor.dtype, tensor.dtype)
    return tensor.view(alike).index_select(0, rows).view(tensor.dtype)


# ---- labels, and a part of the examples


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
    found = [_labels(batch) for batch in source.load(requests_for(rows[:1]))]
    if found and found[0] is not None:
        parts = [_labels(batch) for batch in source.load(requests_for(rows))]
        return np.concatenate([part for part in parts if part is not None])
    known = np.asarray(facts["label"]) if "label" in facts else None
    if known is None or known.dtype.kind not in "iu":
        return None
    return known[rows].astype(np.int64)


def _labels(batch: Any) -> NDArray[np.int64] | None:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return None
    labels = batch[1]
    if not isinstance(labels, Tensor) or labels.ndim != 1:
        return None
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        return None
    return labels.to(torch.int64).numpy(force=True)


def requests_for(rows: Rows) -> Iterator[GrainRequest]:
    """Requests for these examples outside any epoch, some at a time."""
    for begin in range(0, len(rows), _AT_ONCE):
        yield GrainRequest(_NO_EPOCH, rows[begin : begin + _AT_ONCE])


def in_memory(data: Data, collate: Collate | None = None) -> bool:
    """Whether looking at every example costs next to nothing."""
    columns = columns_of(data, collate)
    return columns is not None and not any(map(is_mapped, in_parts(columns)[1]))


def only_rows(data: Data, rows: Rows, collate: Collate | None = None) -> Data:
    """Restrict data to the given examples, numbered anew in the order given. `collate` is
    the one it will be loaded with."""
    columns = columns_of(data, collate)
    if isinstance(data, Source) or (columns is not None and not in_memory(data, collate)):
        return SomeOf(data, rows)
    if columns is None:
        return Subset(data, rows.tolist())  # type: ignore[arg-type]
    single, parts = in_parts(columns)
    cut = tuple(
        _select_rows(part, torch.from_numpy(rows)) if isinstance(part, Tensor) else part[rows]
        for part in parts
    )
    return cut[0] if single else cut


def with_labels(
    data: Data,
    labels: NDArray[np.int64],
    changed: NDArray[np.bool_],
    rows: Rows,
    collate: Collate | None = None,
) -> Data:
    """Data restricted to the given examples, numbered anew, with other labels: `labels` has one for
    each of all examples, `changed` says whose is another one. UserError where the target of an
    example is not its class."""
    columns = columns_of(data, collate)
    found: Data
    if columns is not None:
        _, parts = in_parts(columns)
        if len(parts) == 2:
            own = as_tensor(parts[1])
            parts = (parts[0], torch.from_numpy(labels).to(own.dtype))
        found = only_rows(parts, rows, collate)
    elif isinstance(data, Source):
        raise UserError(
            f"a {type(data).__name__} hands out whole grains, whose labels cannot be replaced"
        )
    else:
        found = _Relabelled(data, rows, labels[rows])
    some = np.flatnonzero(changed[rows])[:_LOOKED_AT]
    told = labels_of(found, {}, collate, some)
    if told is None or not np.array_equal(told, labels[rows][some]):
        raise UserError("batches are not pairs of inputs and classes (whole numbers)")
    return found


_LOOKED_AT = 64
"""Examples whose new labels are read back."""


class _Relabelled(Subset[Any]):
    """Some items of a data set, with the given labels. What leads to the data set is called what it
    is called in a Subset, so that its transforms draw the same random numbers."""

    def __init__(self, data: Any, rows: Rows, labels: NDArray[np.int64]) -> None:
        super().__init__(data, rows.tolist())
        self._labels = labels

    def __getitem__(self, row: Any) -> Any:
        item, label = self.dataset[self.indices[row]], int(self._labels[row])
        if type(item) not in (tuple, list) or len(item) != 2:
            raise UserError(
                f"an item is a {type(item).__name__}, not a pair of an input and a class"
            )
        own = item[1]
        if isinstance(own, Tensor):
            replaced: Any = torch.full_like(own, label)
        elif isinstance(own, (int, np.integer)):
            replaced = type(own)(label)
        else:
            raise UserError(f"an item's target is a {type(own).__name__}, not a class")
        return (item[0], replaced) if isinstance(item, tuple) else [item[0], replaced]

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self[row] for row in rows]


def joined(first: Data, second: Data, collate: Collate | None = None) -> Data:
    """Data of the examples of both, those of the first before those of the second. UserError where
    they are of different forms."""
    rows, more = columns_of(first, collate), columns_of(second, collate)
    if rows is not None and more is not None:
        (single, ours), (_, theirs) = in_parts(rows), in_parts(more)
        if (form := _form(ours)) != (other := _form(theirs)):
            raise UserError(f"rows of the one are {form}, of the other {other}")
        if in_memory(first, collate) and in_memory(second, collate):
            tensors = zip(map(as_tensor, ours), map(as_tensor, theirs), strict=True)
            both = tuple(torch.cat(pair) for pair in tensors)
            return both[0] if single else both
    parts = (first if rows is None else _Rows(rows), second if more is None else _Rows(more))
    for part in parts:
        if isinstance(part, Source):
            raise UserError(f"a {type(part).__name__} hands out whole grains, not single examples")
    return ConcatDataset(parts)  # type: ignore[arg-type]


def _form(parts: Sequence[Column]) -> str:
    """Types and shapes of what a row has of each column."""
    kinds = [str(as_tensor(part).dtype).removeprefix("torch.") for part in parts]
    shapes = [tuple(part.shape[1:]) for part in parts]
    return " and ".join(f"{k} {shape}" for k, shape in zip(kinds, shapes, strict=True))


# ---- tensors and arrays that lie in files, which may be larger than memory
#
# Advice to the system changes how fast rows come, never what is in them. Without it the system
# reads ahead of every row as if the next ones were to follow: megabytes for a row of kilobytes, of
# data that is taken in random order.


def is_mapped(column: Column) -> bool:
    """Whether a column lies in a file."""
    if isinstance(column, Tensor):
        return column.untyped_storage().filename is not None
    base: Any = column
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)


def expect_random_rows(column: Tensor) -> None:
    """Rows of this mapped tensor will be read in any order: nothing else with them."""
    if sys.platform == "linux" and column.numel():
        last = sum(s * (n - 1) for s, n in zip(column.stride(), column.shape, strict=True)) + 1
        _advise(column.data_ptr(), last * column.itemsize, mmap.MADV_RANDOM)


def _expect_rows(column: Tensor, rows: Sequence[int]) -> None:
    """These rows will be read next: fetch them all at once, each as a whole."""
    row_bytes = column[:1].numel() * column.itemsize
    if sys.platform == "linux" and row_bytes and column[:1].is_contiguous():
        stride = column.stride(0) * column.itemsize
        for row in rows:
            _advise(column.data_ptr() + row * stride, row_bytes, mmap.MADV_WILLNEED)


def _advise(address: int, num_bytes: int, advice: int) -> None:
    begin = address - address % mmap.PAGESIZE
    # What it answers does not matter: without advice rows come too, only later
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(begin), ctypes.c_size_t(address + num_bytes - begin), advice
    )
