"""What people have in place of data by index: a DataLoader, or a stream.

In: a DataLoader, or an IterableDataset. Out: the parts of the former that samepath uses itself; the
examples of the latter, read once into memory. Guaranteed: an argument that would make another
training is refused by its name; a stream without an end is, too.

A DataLoader's arguments that change only how fast examples come (pin_memory, prefetch_factor,
persistent_workers, timeout, multiprocessing_context) are left aside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from samepath.console import status
from samepath.data.generators import Generators
from samepath.data.randomness import seed_everything
from samepath.data.sources import Collate, Data, only_rows
from samepath.errors import UserError
from samepath.keys import key

MOST_WITHOUT_LENGTH = 100_000
"""Examples after which a stream that does not say its length is taken for an endless one."""
_SHOW_EVERY = 1000
_ONLY_SEED = ("monai.", "lightning.", "lightning_fabric.", "pytorch_lightning.")
"""Libraries whose own worker_init_fn sets generators and does nothing else."""


@dataclass(frozen=True)
class LoaderParts:
    """What a DataLoader is made of."""

    data: Data
    collate: Collate | None
    batch_size: int
    drop_last: bool
    loader_workers: int
    sampling: tuple[Any, int, bool] | None
    """Weights, draws of an epoch, with replacement or not; None: all examples, in a new order."""


def take_apart(loader: DataLoader[Any], split: Literal["train", "valid"]) -> LoaderParts:
    """The parts of a DataLoader. UserError where one stands in the way."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise _refusal(split, f"{type(loader).__name__} has an __iter__ of its own", "its dataset")
    if loader.batch_size is None:
        what = "batch_sampler" if loader.batch_sampler is not None else "batch_size=None"
        why = "makes batches of its own, and samepath plans them by the seed"
        raise _refusal(split, f"{what} {why}", "batch_size=, shuffle=True or sampler=")
    data, sampling = _sampled(loader, split)
    if loader.generator is not None:
        why = "draws the order from its own state, and samepath draws it from the seed"
        raise _refusal(split, f"generator {why}", "seed= of samepath.start, or --seed")
    if loader.worker_init_fn is not None and not _only_seeds(loader.worker_init_fn):
        why = "runs in loader processes only, whose number must not matter"
        raise _refusal(split, f"worker_init_fn {why}", "a Dataset that does it in __getitem__")
    if split == "valid" and loader.drop_last:
        raise _refusal(split, "drop_last leaves out examples", "drop_last=False")
    return LoaderParts(
        data=data,
        collate=None if loader.collate_fn is default_collate else loader.collate_fn,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        loader_workers=loader.num_workers,
        sampling=sampling,
    )


def _refusal(split: str, what: str, instead: str) -> UserError:
    return UserError(f"the DataLoader of `{split}`: {what}; leave it out and use {instead}")


def _only_seeds(function: Any) -> bool:
    function = function.func if isinstance(function, partial) else function
    return str(getattr(function, "__module__", "")).startswith(_ONLY_SEED)


def _sampled(loader: DataLoader[Any], split: str) -> tuple[Data, Any]:
    """The data that a DataLoader draws from, and how."""
    data, sampler = loader.dataset, loader.sampler
    if isinstance(data, IterableDataset):
        return read_once(data), None
    kind = type(sampler)
    if kind is SequentialSampler:
        if split == "train":
            why = "trains in one fixed order, and samepath draws each epoch's from the seed"
            raise _refusal(split, f"shuffle=False {why}", "shuffle=True")
        return data, None
    if getattr(sampler, "generator", None) is not None and loader.generator is None:
        why = "draws from a generator of its own, and samepath draws from the seed"
        raise _refusal(split, f"sampler={kind.__name__}(generator=...) {why}", "no generator=")
    if isinstance(sampler, RandomSampler) and kind is RandomSampler:
        number = sampler.num_samples
        if not sampler.replacement and number == len(data):  # type: ignore[arg-type]
            return data, None
        if split == "train":
            ones = np.ones(len(data))  # type: ignore[arg-type]
            return data, (ones, number, sampler.replacement)
    if isinstance(sampler, SubsetRandomSampler) and kind is SubsetRandomSampler:
        return only_rows(data, np.asarray(sampler.indices, np.int64)), None
    if isinstance(sampler, WeightedRandomSampler) and split == "train":
        return data, (sampler.weights.numpy(), sampler.num_samples, sampler.replacement)
    if kind.__name__ == "DistributedSampler":
        why = "gives each worker its own part, and samepath divides every batch itself"
        raise _refusal(split, f"sampler=DistributedSampler {why}", "shuffle=True")
    instead = "shuffle=True, or samepath.WeightedSampler(weights) as the sampler of the recipe"
    if split == "valid":
        instead = "shuffle=False, on a Dataset of the examples to validate on"
    why = "chooses examples in a way that samepath cannot repeat"
    raise _refusal(split, f"sampler={kind.__name__} {why}", instead)


# ---- streams


class ReadOnce(Dataset[Any]):
    """The examples of a stream, in memory."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


def read_once(stream: IterableDataset[Any]) -> ReadOnce:
    """Read a stream to its end, the same examples in every process. Random numbers that are drawn
    on the way are drawn once: every epoch meets the same."""
    word = key("stream")
    seed_everything(word)
    Generators(dataset=stream).seed(word)
    return ReadOnce(list(_read(stream)))


def _read(stream: IterableDataset[Any]) -> Iterator[Any]:
    name, length = type(stream).__name__, None
    if hasattr(stream, "__len__"):
        length = len(stream)
    of = "" if length is None else f" of {length:,}"
    is_shown = sys.stderr.isatty() and os.environ.get("RANK", "0") == "0"
    with status(f"reading {name}") if is_shown else nullcontext() as line:
        for number, item in enumerate(stream):
            if length is None and number == MOST_WITHOUT_LENGTH:
                raise UserError(
                    f"{name} is an IterableDataset that has given {number:,} examples and has not "
                    "ended; give it a __len__ if it does, or a map-style Dataset (__len__ and "
                    "__getitem__) of as many examples as an epoch is to have"
                )
            if line is not None and number % _SHOW_EVERY == 0:
                line.update(f"reading {name}: {number:,}{of} examples")
            yield item


def as_given(data: Any) -> Any:
    """Data with a stream read; anything else as it is."""
    return read_once(data) if isinstance(data, IterableDataset) else data
