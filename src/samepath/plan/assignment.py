"""Which worker computes which grains.

In: number of grains and of workers. Out: one contiguous run of grains per worker.
Guaranteed: every grain belongs to exactly one worker; runs are in order; the longest run is within
5% of an even share (exactly even shares where grains are few). Where that leaves a choice, a cut
falls on the most aligned grain number, because a run that covers whole subtrees ships fewer sums.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

BALANCE_SLACK = 1.05
"""A run may be this much longer than an even share if that aligns it with the tree."""


@lru_cache(maxsize=256)
def assign(num_grains: int, num_workers: int) -> tuple[range, ...]:
    """Contiguous runs of grains, one per worker; empty ones last when workers outnumber grains."""
    if num_workers < 1:
        raise ValueError(f"{num_workers} workers: at least one is needed")
    longest = max(-(-num_grains // num_workers), int(BALANCE_SLACK * num_grains / num_workers))
    cuts = [0]
    for worker in range(1, num_workers):
        left = num_workers - worker
        low = max(min(cuts[-1] + 1, num_grains), num_grains - left * longest)
        high = max(min(cuts[-1] + longest, num_grains - left), low)
        cuts.append(_best_cut(low, high, worker * num_grains / num_workers))
    cuts.append(num_grains)
    return tuple(range(start, stop) for start, stop in itertools.pairwise(cuts))


def _best_cut(low: int, high: int, even: float) -> int:
    """The multiple of the highest power of two in [low, high], nearest to the even cut."""
    for power in range(high.bit_length(), -1, -1):
        size = 1 << power
        first = -(-low // size) * size
        if first <= high:
            candidates = range(first, high + 1, size)
            return min(candidates, key=lambda cut: abs(cut - even))
    raise AssertionError("an interval of integers holds a multiple of one")
