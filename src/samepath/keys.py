"""Keyed randomness: numbers that depend on what they are for and on nothing else.

In: separate words, such as (seed, epoch, example). Out: 64-bit keys, one or an array of them.
Guaranteed: the same words give the same keys on every worker, in every order, on every platform
numpy runs on; words are never added together, so (1, 2) and (2, 1) are strangers.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = int | str
UInt64s: TypeAlias = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(*words: Words) -> int:
    """One 64-bit key from separate words."""
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "little")


def mix(values: UInt64s) -> UInt64s:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), elementwise."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keys_for(base: int, numbers: NDArray[np.int64]) -> UInt64s:
    """One key per number (an example, say), all at once."""
    return mix(mix(numbers.astype(np.uint64) * GOLDEN + GOLDEN) ^ np.uint64(base))
