"""When sums leave: each as soon as no later grain of its worker changes it, the last at the end."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from samepath.engine.comm.collective import Alone, Bucket, Travelling
from samepath.engine.comm.tree_sum import TreeSum
from samepath.plan import Reduction, reduction
from samepath.plan.tree import reduction_of

Departure: TypeAlias = tuple[int, int, float | None]
"""Of a bucket: its number, the row (-1: the last), and its value; None: this worker has no such
row, and takes part in others' exchange."""


class Noted(Bucket):
    """A bucket that notes what leaves."""

    def __init__(self, number: int, length: int, sender: Sender) -> None:
        self._number, self._length, self._sender = number, length, sender

    def begin(self, reduction: Reduction) -> None:
        self._mine = reduction.num_sums[self._sender.worker]
        self.rows = torch.full((self._mine, self._length), torch.nan)

    def launch_early(self, row: int) -> None:
        value = float(self.rows[row, 0]) if row < self._mine - 1 else None
        self._sender.left.append((self._number, row, value))

    def launch(self) -> None:
        self._sender.left.append((self._number, -1, None))

    def progress(self) -> None:
        pass

    def add_chunk(self) -> None:
        raise AssertionError

    def finish(self) -> Tensor:
        raise AssertionError


class Sender(Alone):
    """One of several workers, of which nothing arrives."""

    def __init__(self, worker: int, num_workers: int) -> None:
        super().__init__(torch.device("cpu"))
        self.worker, self.num_workers = worker, num_workers
        self.left: list[Departure] = []
        self._numbers = itertools.count()

    def bucket(
        self, length: int, dtype: torch.dtype, *, exact: bool, what: Travelling = "gradients"
    ) -> Bucket:
        return Noted(next(self._numbers), length, self)


LENGTH = 300_000
"""Two of them do not go in one bucket."""


def departures(how: Reduction, worker: int) -> dict[int, list[tuple[int, float | None]]]:
    """What leaves before the last grain is done, by the number of grains done: (row, sum of the
    numbers of its grains)."""
    sender = Sender(worker, len(how.runs))
    tree = TreeSum(sender, [torch.empty(LENGTH)] * 2, exact=True)
    assert len(tree.buckets) == 2
    tree.begin(how)
    found = {0: sender.left[:]}
    for done, grain in enumerate(how.runs[worker], start=1):
        sender.left.clear()
        tree.add([torch.full((LENGTH,), float(grain)) for _ in range(2)])
        found[done] = sender.left[:]
    sender.left.clear()
    tree.launch()
    assert [row for _, row, _ in sender.left] == [-1, -1]
    for each in found.values():  # bucket by bucket, in one order on every worker
        assert each[1::2] == [(1, row, value) for _, row, value in each[::2]]
    return {done: [each[1:] for each in all_[::2]] for done, all_ in found.items() if all_}


def test_each_sum_leaves_when_it_is_complete() -> None:
    """11 grains in runs of 3, 1 and 7: the first has 0-1 and 2, the second 3, the third 4-7 and
    8-10 (whose parts are 8-9 and 10)."""
    how = reduction_of([range(3), range(3, 4), range(4, 11)])
    assert how.num_sums == (2, 1, 2)
    assert departures(how, 0) == {2: [(0, 1.0)]}
    assert departures(how, 1) == {0: [(0, None)]}
    assert departures(how, 2) == {4: [(0, 22.0)]}  # three grains before the last begins


def test_several_sums_leave_one_by_one() -> None:
    """13 grains in runs of 11 and 2: the first has 0-7, 8-9 and 10, the second 11 and 12."""
    how = reduction_of([range(11), range(11, 13)])
    assert how.num_sums == (3, 2)
    assert departures(how, 0) == {8: [(0, 28.0)], 10: [(1, 17.0)]}
    assert departures(how, 1) == {1: [(0, 11.0), (1, None)]}


@pytest.mark.parametrize("num_workers", [2, 3, 5, 6, 7, 9])
@pytest.mark.parametrize("num_grains", [4, 8, 21, 32])
def test_every_worker_takes_part_in_every_exchange_before_its_last_grain_ends(
    num_workers: int, num_grains: int
) -> None:
    how = reduction(num_grains, num_workers)
    for worker, run in enumerate(how.runs):
        found = departures(how, worker)
        rows = [row for each in found.values() for row, _ in each]
        assert rows == list(range(max(how.num_sums) - 1))
        assert all(done < max(len(run), 1) for done in found)
