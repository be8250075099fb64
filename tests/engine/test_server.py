"""What goes between a parameter server and its workers, and the server's side of the talk."""

from __future__ import annotations

import math
from queue import Queue

import pytest
import torch
from torch import Tensor

from samepath.engine.comm.network import Mailbox
from samepath.engine.comm.tensors import same_bits
from samepath.engine.server import NOTHING, WorkerPool, pack, unpack_facts, unpack_tensors
from samepath.errors import WorkerLost

LIMIT_SECONDS = 10


def test_a_message_arrives_to_the_bit() -> None:
    tensors = [
        torch.randn(3, 5),
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.tensor(7),
        torch.randn(3, dtype=torch.bfloat16),
        torch.empty(0, 4),
        torch.tensor([True, False, True]),
        torch.randn(2, dtype=torch.complex64),
        torch.tensor([math.nan, -0.0, math.inf], dtype=torch.float64),
        torch.randn(4, 6)[:, ::2],
    ]
    facts = {"loss": 0.1, "losses": [1e-300, -math.inf]}
    message = pack(facts, tensors, tensors)
    assert message.dtype == torch.uint8
    found = unpack_tensors(message.clone(), tensors)
    for sent, got in zip(tensors, found, strict=True):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert same_bits(got, sent)
        assert got.data_ptr() % 64 == 0 or not got.numel()
    assert found[1].stride() == tensors[1].stride(), "kernels choose by layout"
    assert unpack_facts(message) == facts
    assert math.isnan(unpack_facts(pack({"loss": math.nan}))["loss"]), "facts alone"
    missing = pack({}, [None, *tensors[1:]], tensors)
    assert same_bits(unpack_tensors(missing, tensors)[2], tensors[2]), "it keeps its place"


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
