"""The queue among threads that stand for workers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samepath.errors import WorkerLost
from samepath.insight.profile.queue_reduction import QueueReduction, QueueSettings, fuse
from samepath.insight.profile.recorder import PhaseRecorder

SIZES = (3, 50, 1, 7, 200, 20, 9)


def test_buffers_are_filled_and_no_further() -> None:
    tensors = [torch.zeros(n) for n in (10, 10, 30, 5)] + [torch.zeros(1, dtype=torch.float64)]
    assert list(fuse([3, 0, 1, 2, 4], tensors, 100)) == [[3, 0, 1], [2], [4]]
    assert list(fuse([3, 0, 1, 2, 4], tensors, 0)) == [[3], [0], [1], [2], [4]]
    assert list(fuse([], tensors, 100)) == []
    assert list(fuse([4, 0, 4, 1], tensors, 1 << 20)) == [[4], [0], [4], [1]]


class ThreadPeers:
    """Peers that are threads of one process and meet at a barrier."""

    def __init__(
        self, worker: int, barrier: threading.Barrier, table: list[Tensor], timeout: float
    ) -> None:
        self.worker, self.num_workers, self.timeout_seconds = worker, barrier.parties, timeout
        self._barrier, self._table = barrier, table

    def _together(self, mine: Tensor) -> list[Tensor]:
        self._table[self.worker] = mine.clone()
        self._barrier.wait()
        everybody = list(self._table)
        self._barrier.wait()
        return everybody

    def collect(self, mine: Tensor) -> list[Tensor]:
        everybody = self._together(mine)
        return everybody if self.worker == 0 else []

    def spread(self, tensor: Tensor) -> None:
        tensor.copy_(self._together(tensor)[0])

    def add(self, tensor: Tensor) -> None:
        everybody = self._together(tensor)
        assert len({each.shape for each in everybody}) == 1, "all sum the same thing"
        tensor.copy_(torch.stack(everybody).sum(dim=0))


def queues(num_workers: int, fusion_bytes: int, timeout: float = 10.0) -> list[QueueReduction]:
    barrier, table = threading.Barrier(num_workers, timeout=10.0), [torch.empty(0)] * num_workers
    settings = QueueSettings(cycle_seconds=1e-3, fusion_bytes=fusion_bytes)
    made = []
    for worker in range(num_workers):
        model = nn.ParameterList([torch.empty(size) for size in SIZES])
        peers: Any = ThreadPeers(worker, barrier, table, timeout)
        made.append(QueueReduction(model, peers, PhaseRecorder(worker), settings))
    return made


def in_threads(bodies: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body) for body in bodies]:
            future.result(timeout=30.0)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("fusion_bytes", [0, 240, 1 << 20])
def test_any_order_of_announcing_gives_the_sums(num_workers: int, fusion_bytes: int) -> None:
    def work(number: int, queue: QueueReduction) -> None:
        draw = random.Random(number)
        for _stretch in range(2):  # it can be at rest in between
            with queue.running():
                for turn in range(4):
                    values = [float(100 * turn + 10 * index) for index in range(len(SIZES))]
                    tensors = [
                        torch.full((size,), value + number + 1)
                        for size, value in zip(SIZES, values, strict=True)
                    ]
                    for index in draw.sample(range(len(SIZES)), len(SIZES)):
                        queue.announce(index, tensors[index])
                        time.sleep(draw.random() * 1e-3)
                    queue.wait()
                    for tensor, value in zip(tensors, values, strict=True):
                        total = num_workers * value + sum(range(1, num_workers + 1))
                        assert tensor.tolist() == [total] * len(tensor)

    made = queues(num_workers, fusion_bytes)
    in_threads([lambda n=n, q=q: work(n, q) for n, q in enumerate(made)])  # type: ignore[misc]


def announce_and_wait(queue: QueueReduction, index: int = 0) -> None:
    with queue.running():
        queue.announce(index, torch.ones(SIZES[index]))
        queue.wait()


def test_a_tensor_that_not_all_announce_is_an_error_and_no_hang() -> None:
    def work(queue: QueueReduction, index: int) -> None:
        with pytest.raises(WorkerLost, match="1 tensors that not all"):
            announce_and_wait(queue, index)

    first, second = queues(2, 1 << 20, timeout=2.0)
    in_threads([lambda: work(first, 0), lambda: work(second, 1)])


def test_what_breaks_in_the_thread_is_raised_where_the_worker_waits() -> None:
    (queue,) = queues(1, 1 << 20)

    def broken(_: Tensor) -> None:
        raise WorkerLost("another worker left")

    queue._peers.add = broken  # type: ignore[assignment]
    with pytest.raises(WorkerLost, match="another worker left"):
        announce_and_wait(queue)
