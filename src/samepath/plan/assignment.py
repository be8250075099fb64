"""Assignment of grains to workers.

In: number of grains and of workers, and perhaps the time a grain takes each worker. Out: one
contiguous run of grains per worker.
Guaranteed: every grain belongs to exactly one worker; runs are in order; no worker idles while
another has two; the slowest is done within 5% of the ideal time (where grains are few, as soon as
any assignment lets it). Where that leaves a choice, a cut falls on the most aligned grain number,
because a run that covers whole subtrees ships fewer sums.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

BALANCE_SLACK = 1.05
"""A worker may take this much longer than ideal if that aligns its run with the tree."""


@lru_cache(maxsize=32)
def assign(num_grains: int, num_workers: int, costs: tuple[int, ...] = ()) -> tuple[range, ...]:
    """Contiguous runs of grains, one per worker; empty ones last when workers outnumber grains.

    `costs`: the time a grain takes each worker, in any unit; empty where all take the same."""
    if num_workers < 1:
        raise ValueError(f"{num_workers} workers: at least one is needed")
    if not costs or num_workers >= num_grains:
        costs = (1,) * num_workers
    if len(costs) != num_workers or min(costs) < 1:
        raise ValueError(f"costs {costs} of {num_workers} workers: give each one, above 0")
    speeds = [1.0 / cost for cost in costs]
    limit = max(_shortest(num_grains, costs), int(BALANCE_SLACK * num_grains / sum(speeds)))
    most = [max(1, limit // cost) for cost in costs]
    cuts = [0]
    for worker in range(1, num_workers):
        left = num_workers - worker
        low = max(min(cuts[-1] + 1, num_grains), num_grains - sum(most[worker:]))
        high = max(min(cuts[-1] + most[worker - 1], num_grains - left), low)
        even = sum(speeds[:worker]) * num_grains / sum(speeds)
        cuts.append(_best_cut(low, high, even))
    cuts.append(num_grains)
    return tuple(range(start, stop) for start, stop in itertools.pairwise(cuts))


def _shortest(num_grains: int, costs: tuple[int, ...]) -> int:
    """The least time in which all grains can be computed, each worker taking at least one (a
    worker that needs longer for that one does not count)."""
    low, high = 0, num_grains * max(costs)
    while low < high:
        middle = (low + high) // 2
        if sum(max(1, middle // cost) for cost in costs) >= num_grains:
            high = middle
        else:
            low = middle + 1
    return low


def _best_cut(low: int, high: int, even: float) -> int:
    """The multiple of the highest power of two in [low, high], nearest to the even cut."""
    for power in range(high.bit_length(), -1, -1):
        size = 1 << power
        first = -(-low // size) * size
        if first <= high:
            candidates = range(first, high + 1, size)
            return min(candidates, key=lambda cut: abs(cut - even))
    raise AssertionError("an interval of integers holds a multiple of one")
