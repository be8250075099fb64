"""The division of one batch among workers.

In: a batch, a worker count, exact or not, and perhaps what a grain costs each worker. Out: a
Division: the grains of each worker and how they add up.
Guaranteed: every example is in exactly one grain. With `exact` the grains are the plan's, whatever
the worker count and the costs; without it every worker has one grain, its whole share, and shares
differ by at most one example.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from samepath.plan.assignment import assign
from samepath.plan.order import Batch
from samepath.plan.tree import Reduction, reduction, reduction_of


@dataclass(frozen=True)
class Division:
    """A batch divided among workers, and how their sums are added."""

    batch: Batch
    reduction: Reduction
    exact: bool

    @property
    def most_grains(self) -> int:
        """Grains of the worker that has most."""
        return max(len(run) for run in self.reduction.runs)

    @cached_property
    def num_grains(self) -> int:
        """Grains of all workers."""
        return sum(len(run) for run in self.reduction.runs)

    def num_examples(self, number: int) -> int:
        """Examples of a grain."""
        if self.exact:
            first = number * self.batch.grain_size
            return min(self.batch.grain_size, len(self.batch.examples) - first)
        first, last = self._cut(number), self._cut(number + 1)
        return last - first

    def _cut(self, share: int) -> int:
        return len(self.batch.examples) * share // self.num_grains

    def grains(self, worker: int) -> dict[int, NDArray[np.int64]]:
        """A worker's grains: number and examples."""
        run = self.reduction.runs[worker]
        if self.exact:
            return {number: self.batch.grain(number) for number in run}
        examples = self.batch.examples
        return {number: examples[self._cut(number) : self._cut(number + 1)] for number in run}


def divide(
    batch: Batch,
    num_workers: int,
    *,
    exact: bool,
    costs: tuple[int, ...] = (),
    without: int | None = None,
) -> Division:
    """Divide a batch among workers; some get no grain when it is too short for all. `without`
    (with `exact`): a worker that gets none in any case."""
    if exact and without is not None:
        runs = list(assign(batch.num_grains, num_workers - 1))
        cut = runs[without].start if without < len(runs) else batch.num_grains
        runs.insert(without, range(cut, cut))
        return Division(batch, reduction_of(runs), exact)
    if exact:
        return Division(batch, reduction(batch.num_grains, num_workers, costs), exact)
    working = min(num_workers, len(batch.examples))
    runs = [range(min(w, working), min(w + 1, working)) for w in range(num_workers)]
    return Division(batch, reduction_of(runs), exact)
