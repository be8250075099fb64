"""Examples by index, a grain at a time.

In: tensors in memory, or a map-style Dataset. Out: for a sequence of requested grains, their
examples as one batch each, in order.
Guaranteed: a grain's bits depend on (seed, epoch, its examples) only, not on the number of loader
processes, nor on which grains were loaded before it. Every grain is a fresh allocation, so that
memory alignment (which some kernels choose by) is the same wherever it is computed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from samepath.data.randomness import seed_everything
from samepath.errors import UserError
from samepath.keys import key

Data: TypeAlias = "Tensor | Sequence[Tensor] | Dataset[Any] | Source"


@dataclass(frozen=True)
class GrainRequest:
    """One grain to load."""

    epoch: int
    examples: NDArray[np.int64]


@runtime_checkable
class Source(Protocol):
    """Anything that can hand out grains by example number."""

    def __len__(self) -> int: ...

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        """The requested grains, in order."""
        ...


def _rows(size: tuple[int, ...]) -> str:
    return f"{size[0]} rows" if size else "no rows"


class TensorSource:
    """Tensors in memory, indexed at once. A grain of one tensor is a tensor, of several a tuple."""

    def __init__(self, tensors: Tensor | Sequence[Tensor]) -> None:
        self._single = isinstance(tensors, Tensor)
        self._tensors = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        sizes = sorted({tuple(tensor.shape[:1]) for tensor in self._tensors})
        if len(sizes) != 1 or not sizes[0]:
            raise UserError(
                f"the data's tensors have {' and '.join(_rows(size) for size in sizes)}; "
                "give tensors with one row per example"
            )

    def __len__(self) -> int:
        return len(self._tensors[0])

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        for request in requests:
            index = torch.from_numpy(request.examples.copy())
            grain = tuple(tensor.index_select(0, index) for tensor in self._tensors)
            yield grain[0] if self._single else grain


class _KeyedDataset(Dataset[Any]):
    """A data set whose items meet generators keyed by (seed, epoch, example)."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, item: tuple[int, int]) -> Any:
        epoch, example = item
        seed_everything(key("example", self.seed, epoch, example))
        return self.dataset[example]


class _LoaderStart:
    """What a loader process does first (a class: it must pickle)."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, _worker: int) -> None:
        torch.set_num_threads(self.threads)
        # Ctrl-C and Slurm's preemption reach every process; the worker stops after its step, and
        # until then it needs its loaders. They end when it does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class DatasetSource:
    """A map-style Dataset behind a DataLoader with any number of loader processes."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        seed: int,
        loader_workers: int = 0,
        threads: int = 1,
        collate: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise UserError(
                f"{type(dataset).__name__} is an IterableDataset, which cannot be indexed; "
                "give a map-style Dataset (with __len__ and __getitem__)"
            )
        if not hasattr(dataset, "__len__"):
            raise UserError(f"{type(dataset).__name__} has no __len__; give a map-style Dataset")
        self._dataset = dataset
        self._seed = seed
        self._loader_workers = loader_workers
        self._threads = threads
        self._collate = collate or default_collate
        self._pin_memory = pin_memory

    def __len__(self) -> int:
        return len(self._dataset)

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        several = self._loader_workers > 0
        loader: DataLoader[Any] = DataLoader(
            _KeyedDataset(self._dataset, self._seed),
            batch_sampler=([(r.epoch, int(e)) for e in r.examples] for r in requests),
            num_workers=self._loader_workers,
            collate_fn=self._collate,
            pin_memory=self._pin_memory,
            worker_init_fn=_LoaderStart(self._threads) if several else None,
            # torch's own default on Linux; a worker's is forkserver, which imports torch anew
            multiprocessing_context="fork" if several and sys.platform == "linux" else None,
        )
        yield from loader


def as_source(
    data: Data,
    *,
    seed: int,
    loader_workers: int = 0,
    threads: int = 1,
    collate: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool = False,
) -> Source:
    """Whatever a person gives as data, as a source."""
    if isinstance(data, Tensor):
        return TensorSource(data)
    if isinstance(data, TensorDataset):
        return TensorSource(data.tensors)
    if isinstance(data, (tuple, list)) and data and all(isinstance(t, Tensor) for t in data):
        return TensorSource(data)
    if isinstance(data, Source):
        return data
    if isinstance(data, Dataset) or hasattr(data, "__getitem__"):
        return DatasetSource(
            data,  # type: ignore[arg-type]
            seed=seed,
            loader_workers=loader_workers,
            threads=threads,
            collate=collate,
            pin_memory=pin_memory,
        )
    raise UserError(
        f"data of type {type(data).__name__} cannot be indexed; give a tensor, a tuple of tensors "
        "or a map-style Dataset"
    )
