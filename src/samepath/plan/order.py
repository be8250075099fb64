"""Order of the examples: which make up each step, and how a step's batch is cut into grains.

In: number of examples, batch size, grain size, seed. Out: for every step, its examples in order.
Guaranteed: each epoch visits every example exactly once (at most once with `drop_last`); nothing is
padded or repeated; the worker count is not an input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.keys import key, keys_for


@lru_cache(maxsize=2)  # loaders reach into the next epoch, and every worker keeps both whole
def epoch_order(num_examples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of one epoch: examples sorted by their keys (no library's shuffle to depend on)."""
    keys = keys_for(key("order", seed, epoch), np.arange(num_examples, dtype=np.int64))
    order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False  # it is cached and handed out as views
    return order


def count_steps(num_examples: int, batch_size: int, *, drop_last: bool) -> int:
    """Number of batches in one epoch."""
    whole, left = divmod(num_examples, batch_size)
    return whole + (left > 0 and not drop_last)


def grain_size_for(batch_size: int, max_workers: int) -> int:
    """The largest grain that lets so many workers share a batch: at most an even share (rounded
    up), for with larger ones some would have next to nothing to do."""
    if not 1 <= max_workers <= batch_size:
        raise UserError(
            f"max_workers is {max_workers}, and a batch has {batch_size} "
            f"{'example' if batch_size == 1 else 'examples'}; give a number from 1 to {batch_size}"
        )
    even = -(-batch_size // max_workers)
    return even if -(-batch_size // even) >= max_workers else even - 1


def grain_size_asked(
    batch_size: int, grain_size: int | None, max_workers: int | None
) -> int | None:
    """The grain size that --grain or --max-workers asks for; None: neither does."""
    if max_workers is None:
        return grain_size
    if grain_size is not None:
        raise UserError(
            f"--grain {grain_size} and --max-workers {max_workers}: each decides the grain size; "
            "give one of the two"
        )
    return grain_size_for(batch_size, max_workers)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The global batch of one step."""

    step: int
    """Number of the step, from 0."""
    epoch: int
    """Number of the epoch, from 0."""
    examples: NDArray[np.int64]
    """Example numbers, in order."""
    grain_size: int
    """Examples in a grain; the last grain may be shorter."""

    @property
    def num_grains(self) -> int:
        return -(-len(self.examples) // self.grain_size)

    def grain(self, number: int) -> NDArray[np.int64]:
        """The examples of one grain."""
        return self.examples[number * self.grain_size : (number + 1) * self.grain_size]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole run as arithmetic: step number in, batch out."""

    num_examples: int
    """Examples in the training data."""
    batch_size: int
    """Examples of one step; never depends on the worker count."""
    grain_size: int
    """Examples computed at once; never depends on the worker count."""
    seed: int
    """Decides the order of examples together with the epoch."""
    drop_last: bool = False
    """The last batch of each epoch is left out where it is short."""

    def __post_init__(self) -> None:
        for name in ("num_examples", "batch_size", "grain_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.batch_size > self.num_examples:
            raise ValueError(
                f"a batch of {self.batch_size} is larger than the data "
                f"({self.num_examples} examples); use a batch of at most {self.num_examples}"
            )
        if self.grain_size > self.batch_size:
            raise ValueError(
                f"a grain of {self.grain_size} is larger than the batch ({self.batch_size}); "
                f"use a grain of at most {self.batch_size}"
            )

    @property
    def steps_per_epoch(self) -> int:
        return count_steps(self.num_examples, self.batch_size, drop_last=self.drop_last)

    @property
    def num_grains(self) -> int:
        """Grains in a full batch: the most workers that can take part."""
        return -(-self.batch_size // self.grain_size)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(self.num_examples, self.seed, epoch)
        examples = order[place * self.batch_size : (place + 1) * self.batch_size]
        return Batch(step=step, epoch=epoch, examples=examples, grain_size=self.grain_size)
