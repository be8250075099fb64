"""The queue's parts, and the queue among threads that stand for workers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from samepath.errors import UserError, WorkerLost
from samepath.insight.profile.queue_reduction import (
    Coordinator,
    QueueReduction,
    QueueSettings,
    fuse,
)
from samepath.insight.profile.recorder import PhaseRecorder

SIZES = (3, 50, 1, 7, 200, 20, 9)


def test_only_what_everybody_announced_is_summed_in_the_first_workers_order() -> None:
    coordinator = Coordinator(4, 2)

    def said(*workers: list[int]) -> Tensor:
        return torch.tensor([[int(i in w) for i in range(4)] for w in workers], dtype=torch.uint8)

    assert coordinator.agree([3, 1], said([3, 1], [])) == []
    assert coordinator.agree([], said([], [1, 3, 0])) == [3, 1]
    assert coordinator.agree([0], said([0], [])) == [0]
    assert coordinator.agree([2], said([2], [2, 3])) == [2], "a new step's 3 is not worker 0's yet"
    assert coordinator.agree([3], said([3], [])) == [3]


def test_buffers_are_filled_and_no_further() -> None:
    tensors = [torch.zeros(n) for n in (10, 10, 30, 5)] + [torch.zeros(1, dtype=torch.float64)]
    assert list(fuse([3, 0, 1, 2, 4], tensors, 100)) == [[3, 0, 1], [2], [4]]
    assert list(fuse([3, 0, 1, 2, 4], tensors, 0)) == [[3], [0], [1], [2], [4]]
    assert list(fuse([], tensors, 100)) == []
    assert list(fuse([4, 0, 4, 1], tensors, 1 << 20)) == [[4], [0], [4], [1]]


@pytest.mark.parametrize("wrong", [{"cycle_seconds": 0.0}, {"fusion_bytes": -1}])
def test_settings_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="give"):
        QueueSettings(**wrong)


class Room:
    """Where threads meet; stands for a process group."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.barrier = threading.Barrier(num_workers, timeout=10.0)
        self.table: list[Tensor] = [torch.empty(0)] * num_workers


class RoomPeers:
    """Peers of one process."""

    timeout_seconds = 10.0

    def __init__(self, room: Room, worker: int) -> None:
        self.room, self.worker, self.num_workers = room, worker, room.num_workers

    def _together(self, mine: Tensor) -> list[Tensor]:
        self.room.table[self.worker] = mine.clone()
        self.room.barrier.wait()
        everybody = list(self.room.table)
        self.room.barrier.wait()
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
    room = Room(num_workers)
    made = []
    for worker in range(num_workers):
        peers = RoomPeers(room, worker)
        peers.timeout_seconds = timeout
        settings = QueueSettings(cycle_seconds=1e-3, fusion_bytes=fusion_bytes)
        made.append(
            QueueReduction(peers, len(SIZES), PhaseRecorder(worker), settings)  # type: ignore[arg-type]
        )
    return made


def announce_and_wait(queue: QueueReduction) -> None:
    with queue.running():
        queue.announce(0, torch.ones(3))
        queue.wait()


def in_threads(bodies: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body) for body in bodies]:
            future.result(timeout=30.0)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("fusion_bytes", [0, 240, 1 << 20])
def test_any_order_of_announcing_gives_the_sums(num_workers: int, fusion_bytes: int) -> None:
    made = queues(num_workers, fusion_bytes)

    def worker(number: int) -> Callable[[], None]:
        def body() -> None:
            draw = random.Random(number)
            for _stretch in range(2):  # it can be at rest in between
                with made[number].running():
                    for turn in range(4):
                        tensors = [
                            torch.full((size,), float(100 * turn + 10 * index + number + 1))
                            for index, size in enumerate(SIZES)
                        ]
                        for index in draw.sample(range(len(SIZES)), len(SIZES)):
                            made[number].announce(index, tensors[index])
                            time.sleep(draw.random() * 1e-3)
                        made[number].wait()
                        for index, tensor in enumerate(tensors):
                            total = num_workers * (100 * turn + 10 * index) + sum(
                                range(1, num_workers + 1)
                            )
                            assert tensor.tolist() == [total] * SIZES[index]

        return body

    in_threads([worker(number) for number in range(num_workers)])


def test_a_tensor_that_not_all_announce_is_an_error_and_no_hang() -> None:
    made = queues(2, 1 << 20, timeout=2.0)

    def has_it() -> None:
        with pytest.raises(WorkerLost, match="1 tensors that not all"):
            announce_and_wait(made[0])

    def has_not() -> None:
        with made[1].running():
            made[1].announce(1, torch.ones(50))
            time.sleep(0.2)
            with pytest.raises(WorkerLost):
                made[1].wait()
            made[1]._waiting.clear()

    in_threads([has_it, has_not])


def test_what_breaks_in_the_thread_is_raised_where_the_worker_waits() -> None:
    (queue,) = queues(1, 1 << 20)

    def broken(_: Tensor) -> None:
        raise WorkerLost("another worker left")

    queue._peers.add = broken  # type: ignore[assignment]
    with pytest.raises(WorkerLost, match="another worker left"):
        announce_and_wait(queue)
