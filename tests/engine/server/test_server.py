"""The server's side of the talk with its workers, with a mailbox that nobody is behind."""

from __future__ import annotations

from queue import Queue

import pytest
import torch
from torch import Tensor

from samepath.engine.comm.collective import Mailbox
from samepath.engine.server.message import NOTHING
from samepath.engine.server.server import WorkerPool
from samepath.errors import WorkerLost

LIMIT_SECONDS = 10


class Pretended(Mailbox):
    """Keeps what is sent; a test says what comes back."""

    def __init__(self, num_workers: int, timeout_seconds: float = 600.0) -> None:
        self.num_workers = num_workers + 1
        self.timeout_seconds = timeout_seconds
        self.sent: Queue[tuple[int, int]] = Queue()
        self.answers: dict[int, Queue[Tensor | Exception]] = {
            worker: Queue() for worker in range(1, self.num_workers)
        }

    def send(self, message: Tensor, to: int) -> None:
        self.sent.put((to, message.numel()))

    def receive(self, sender: int) -> Tensor:
        answer = self.answers[sender].get(timeout=LIMIT_SECONDS)
        if isinstance(answer, Exception):
            raise answer
        return answer


def message(length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.uint8)


def test_who_was_idle_longest_is_next() -> None:
    mailbox = Pretended(3)
    pool = WorkerPool(mailbox)
    assert [pool.order(message(1)), pool.order(message(2))] == [1, 2]
    mailbox.answers[2].put(message(5))
    worker, answer = pool.receive()
    assert (worker, len(answer)) == (2, 5)
    assert [pool.order(message(1)), pool.order(message(1))] == [3, 2]
    assert not pool.idle


def test_an_idle_worker_hears_that_the_server_is_there() -> None:
    mailbox = Pretended(2, timeout_seconds=2.0)
    pool = WorkerPool(mailbox)
    pool.order(message(7))  # to worker 1, which does not answer
    heard = [mailbox.sent.get(timeout=LIMIT_SECONDS) for _ in range(6)]
    assert heard.count((2, 0)) >= 4
    assert heard.count((1, 7)) == 1, "the busy one waits for nothing"


def test_a_worker_that_is_lost_is_an_error_for_the_server() -> None:
    mailbox = Pretended(2)
    pool = WorkerPool(mailbox)
    pool.order(message(1))
    mailbox.answers[1].put(WorkerLost("worker 1 left"))
    with pytest.raises(WorkerLost, match="worker 1 left"):
        pool.receive()
    mailbox.answers[2].put(NOTHING)
    pool.send_last(message(3))  # ends although nobody takes worker 1's message
    assert (2, 3) in [mailbox.sent.get(timeout=LIMIT_SECONDS) for _ in range(2)]
