"""Balance between fast and slow workers: how many grains each gets.

In: after every step, what all workers said of their times (the same numbers on every worker). Out:
what a grain costs each worker; the plan gives a slow one fewer grains. Guaranteed: all workers
decide alike, because they decide from nothing but those numbers, at the same step, without another
message; with equal workers grains stay evenly spread. The bits of a step do not depend on any of
it, so nothing here is in a checkpoint: a resumed run begins even.

Another assignment is a trial. It may turn out no quicker: partial sums that do not lie along the
tree cost messages; workers that share cores do not slow down independently. Then the old one comes
back, and the next trial is further away, and further still if that fails too.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import NamedTuple

from samepath.plan import assign

FIRST = 5
"""Steps before the first look: a median of so many does not see that the first one warms up."""
EVERY = 16
"""Steps between looks: a median of so many does not see a pause."""
SELDOM = 1024
"""The same, after many trials in vain."""
WORTHWHILE = 0.05
"""The part of a step that another assignment must promise to save."""
KEPT = 0.5
"""The part of that promise that must come true."""


class WorkerTimes(NamedTuple):
    """The times that a worker tells the others with every step."""

    grain_seconds: float
    """It needed for a whole grain of this step; 0 where it had none."""
    step_seconds: float
    """All of the step before took; 0 where there was none."""


class Stopwatch:
    """Seconds spent inside it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += time.perf_counter() - self._began


@dataclass(frozen=True)
class Trial:
    """The assignment before the present one, and how quick it was."""

    costs: tuple[int, ...]
    step_seconds: float
    """Seconds for each grain, since batches may grow."""
    promised: float
    """The part of it that is to be saved."""


class Balance:
    """The speeds of all workers as far as they are known, and the assignment that follows."""

    def __init__(self) -> None:
        self.costs: tuple[int, ...] = ()
        """Cost of a grain for each worker, the fastest worker's being 100; empty while no worker is
        known to be slower."""
        self._seen: deque[tuple[Sequence[WorkerTimes], int]] = deque(maxlen=EVERY)
        self._trial: Trial | None = None
        self._patience = EVERY
        self._left = FIRST

    def learn(self, told: Sequence[WorkerTimes], num_grains: int) -> None:
        """Take in all workers' times of a step of so many grains (none, where the step comes from a
        checkpoint)."""
        if not told:
            return
        self._seen.append((told, num_grains))
        self._left -= 1
        if self._left == 0:
            self._left = EVERY
            self._look()
            self._seen.clear()

    def _look(self) -> None:
        """Judge the present assignment, or try another."""
        most = max(num_grains for _, num_grains in self._seen)  # short batches are no measure
        each = [[t.grain_seconds for t in told] for told, n in self._seen if n == most]
        steps = [
            max(t.step_seconds for t in told)
            for (_, n), (told, _) in itertools.pairwise(self._seen)
            if n == most
        ]
        if not steps or not all(map(all, each)):
            return  # a worker without grains, of which nothing is known
        step_seconds = median(steps) / most
        trial, self._trial = self._trial, None
        if trial is not None:
            if step_seconds > trial.step_seconds * (1.0 - KEPT * trial.promised):
                self.costs = trial.costs
                self._left = self._patience = min(2 * self._patience, SELDOM)
                return
            self._patience = EVERY
        typical = [median(worker) for worker in zip(*each, strict=True)]
        costs = tuple(round(100.0 * worker / min(typical)) for worker in typical)
        promised, *promises = (
            (_slowest(most, seconds, self.costs) - _slowest(most, seconds, costs))
            / (step_seconds * most)
            for seconds in (typical, *each)
        )
        # chance makes one worker look slow on average, but not in three of four steps
        if promised > WORTHWHILE and sorted(promises)[len(promises) // 4] > 0.0:
            self._trial = Trial(self.costs, step_seconds, promised)
            self.costs = costs


def _slowest(num_grains: int, seconds: Sequence[float], costs: tuple[int, ...]) -> float:
    """Seconds that the slowest worker computes if grains are assigned by these costs."""
    runs = assign(num_grains, len(seconds), costs)
    return max(len(run) * worker for run, worker in zip(runs, seconds, strict=True))
