"""The fewest bytes that any exchange sends which adds gradients in the tree's order.

Every addition of the tree happens on some worker, and a sum that is needed on another one travels
there: as many transfers as the tree, with a worker written at every node, has edges between
different workers. The fewest over all ways to write them (Sankoff 1975) is the bound for runs of
grains that are given; it is taken over all runs in which no worker has more grains than an even
division must give one. Beside it, what samepath sends. All against a ring's 2(N-1)/N of the
gradient, for the mean worker unless said. Pure arithmetic: nothing is measured.

    python benchmarks/bytes_bound.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from samepath.plan import reduction

Runs: TypeAlias = tuple[range, ...]
GRAINS = (8, 16, 32)
WORKERS = range(2, 9)


def balanced_runs(num_grains: int, num_workers: int) -> Iterator[Runs]:
    """All contiguous runs of which none is longer than an even division's longest."""
    most = -(-num_grains // num_workers)

    def rest(start: int, workers: int) -> Iterator[Runs]:
        if not workers:
            yield ()
            return
        left = num_grains - start
        for length in range(max(1, left - most * (workers - 1)), min(most, left) + 1):
            for others in rest(start + length, workers - 1):
                yield (range(start, start + length), *others)

    return rest(0, num_workers)


def fewest_transfers(runs: Runs) -> float:
    """Transfers of a sum from one worker to another until the total is on a worker, for the mean of
    the workers on which it may be wanted."""
    worker_of = {grain: worker for worker, run in enumerate(runs) for grain in run}

    def at(first: int, size: int) -> list[int] | None:
        """The fewest transfers that bring a node's sum to each worker; None: no grain is there."""
        if first >= len(worker_of):
            return None
        if size == 1:
            return [int(worker != worker_of[first]) for worker in range(len(runs))]
        left, right = at(first, size // 2), at(first + size // 2, size // 2)
        assert left is not None
        if right is None:
            return left
        both = [a + b for a, b in zip(left, right, strict=True)]
        return [min(here, min(both) + 1) for here in both]

    found = at(0, 1 << (len(worker_of) - 1).bit_length())
    assert found is not None
    return sum(found) / len(runs)


def against_a_ring(num_workers: int, transfers: float) -> float:
    """Transfers of a whole gradient to where it is added, and of the totals to all others."""
    return (transfers + num_workers - 1) / (2 * (num_workers - 1))


def bounds(num_grains: int, num_workers: int) -> dict[str, float]:
    sums = reduction(num_grains, num_workers).num_sums
    ours = sum(sums) * (num_workers - 1) / num_workers  # all but those that stay
    fewest = min(fewest_transfers(runs) for runs in balanced_runs(num_grains, num_workers))
    return {
        "samepath": against_a_ring(num_workers, ours),
        "samepath, busiest": (max(sums) + 1) / 2,
        "any exchange": against_a_ring(num_workers, fewest),
    }


def main() -> None:
    found = {
        str(grains): {str(workers): bounds(grains, workers) for workers in WORKERS}
        for grains in GRAINS
    }
    for grains, rows in found.items():
        print(f"{grains} grains; bytes against a ring's, by workers")
        for name in next(iter(rows.values())):
            cells = "  ".join(f"{workers}: {row[name]:.2f}" for workers, row in rows.items())
            print(f"  {name:18} {cells}")
    (Path(__file__).parent / "results" / "bytes_bound.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
