"""Randomness of examples and grains.

In: seed, epoch and example numbers (or any key). Out: numbers for augmentation, all at once; or
every global generator a model or data set might use, set from one key.
Guaranteed: what an example draws does not depend on the worker, the loader process or its
neighbours in the grain.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from samepath.keys import GOLDEN, UInt64s, key, keys_for, mix


def seed_everything(word: int) -> None:
    """Set torch's, numpy's and Python's global generators from one key."""
    # Not torch.manual_seed: where CUDA is built but unused it queues a formatted stack on every
    # call, 50 times the cost of the seeding itself.
    torch.default_generator.manual_seed(word)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(word)
    np.random.seed(word & 0xFFFFFFFF)
    random.seed(word)


def random_state() -> tuple[Any, ...]:
    """What every global generator will draw next; `set_random_state` takes it."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def set_random_state(state: tuple[Any, ...]) -> None:
    """Have the global generators draw again what they drew after `random_state`."""
    of_torch, cuda, of_numpy, of_python = state
    torch.set_rng_state(of_torch)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    np.random.set_state(of_numpy)
    random.setstate(of_python)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Leave every global generator as it was."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


class Draws:
    """Random numbers for the examples of one grain, each from its own key.

    Row i belongs to example i whatever else is in the grain. Every call takes the next numbers, so
    two calls are independent.
    """

    def __init__(self, *, seed: int, epoch: int, examples: NDArray[np.int64]) -> None:
        self._keys = keys_for(key("augment", seed, epoch), examples)
        self._used = 0

    def __len__(self) -> int:
        return len(self._keys)

    def _bits(self, count: int) -> UInt64s:
        counters = np.arange(self._used + 1, self._used + count + 1, dtype=np.uint64) * GOLDEN
        self._used += count
        return mix(self._keys[:, None] + counters[None, :])

    def uniform(self, count: int = 1, low: float = 0.0, high: float = 1.0) -> NDArray[np.float32]:
        """(examples, count) numbers in [low, high)."""
        # 24 bits: every value is exact in float32, and 1.0 is never reached
        unit = (self._bits(count) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        scaled = np.float32(low) + np.float32(high - low) * unit
        below_high = np.nextafter(np.float32(high), np.float32(low))
        numbers: NDArray[np.float32] = np.minimum(scaled, below_high)  # rounding could reach high
        return numbers

    def integers(self, low: int, high: int, count: int = 1) -> NDArray[np.int64]:
        """(examples, count) whole numbers in [low, high)."""
        if high <= low:
            raise ValueError(f"integers({low}, {high}): high must be above low")
        # The top 32 bits scaled by the width: a bias below width / 2**32, and no modulo
        top = (self._bits(count) >> np.uint64(32)).astype(np.uint64)
        return low + ((top * np.uint64(high - low)) >> np.uint64(32)).astype(np.int64)

    def coin(self, probability: float = 0.5, count: int = 1) -> NDArray[np.bool_]:
        """(examples, count) truths, each with the given probability."""
        return self.uniform(count) < np.float32(probability)

    def normal(self, count: int = 1) -> NDArray[np.float32]:
        """(examples, count) standard normal numbers (Box and Muller 1958)."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(count).astype(np.float64)))
        angle = 2.0 * np.pi * self.uniform(count).astype(np.float64)
        return (radius * np.cos(angle)).astype(np.float32)
