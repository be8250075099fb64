"""Horovod's way of summing gradients, with real processes: the Reducer of the engine `queue`.

In: gradients, announced on every worker in whatever order they come. Out: their sums, in place. A
thread beside the worker goes round in cycles: it tells the coordinator (worker 0) which tensors are
new, learns which ones all workers have by now, packs these into a fusion buffer, has it summed, and
unpacks it. (Sergeev and Del Balso 2018; cycle and buffer are Horovod's defaults of the time when
Gahlot et al. 2020 took them.)

Guaranteed: all workers sum the same tensors in the same order, the coordinator's; every wait has a
limit; what goes wrong in the thread is raised where the worker waits for it.

What differs from Horovod: announcements are a byte per tensor instead of names, and the order is
the coordinator's own order of announcing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from samepath.engine.comm.network import Peers
from samepath.errors import UserError, WorkerLost
from samepath.insight.profile.engines import Reducer, ring_bytes
from samepath.insight.profile.recorder import PhaseRecorder


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """Cycle time and buffer size of the queue."""

    cycle_seconds: float = 5e-3
    """Seconds from the beginning of one cycle to that of the next, unless it takes longer."""
    fusion_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 0.0 < self.cycle_seconds <= 10.0:
            raise UserError(
                f"--cycle-ms {1e3 * self.cycle_seconds:g}: give more than 0 and at most 10000, "
                "such as 5"
            )
        if self.fusion_bytes < 0:
            raise UserError(
                f"--fusion-mib {self.fusion_bytes / (1 << 20):g}: give 0 (every gradient alone) "
                "or more, such as 64"
            )


def fuse(
    agreed: Sequence[int], tensors: Sequence[Tensor], fusion_bytes: int
) -> Iterator[list[int]]:
    """Groups of neighbours of one dtype that fit the buffer together; a tensor too large for it
    goes alone."""
    group: list[int] = []
    filled = 0
    for index in agreed:
        size = tensors[index].nbytes
        fits = group and filled + size <= fusion_bytes
        if group and (not fits or tensors[index].dtype != tensors[group[0]].dtype):
            yield group
            group, filled = [], 0
        group.append(index)
        filled += size
    if group:
        yield group


class QueueReduction(Reducer):
    """One worker's end of the queue, and the thread that serves it. A parameter without a gradient
    is announced as zeros after backward, as Horovod's optimizer does."""

    def __init__(
        self, model: nn.Module, peers: Peers, recorder: PhaseRecorder, settings: QueueSettings
    ) -> None:
        self.module = model
        self._peers = peers
        self._recorder = recorder
        self._settings = settings
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._ready, index))
        self._changed = threading.Condition()
        self._tensors: list[Tensor] = [torch.empty(0)] * len(self._parameters)
        self._announced: set[int] = set()
        self._new: list[int] = []
        self._waiting: set[int] = set()
        self._stopping = False
        self._error: BaseException | None = None
        self._buffers: dict[torch.dtype, Tensor] = {}
        # what the coordinator, worker 0, knows
        self._order: list[int] = []
        """Tensors that worker 0 has announced and that are not agreed on yet."""
        self._counts = torch.zeros(len(self._parameters), dtype=torch.int64)
        """How many workers have announced each tensor."""

    def backward(self, loss: Tensor, scale: float) -> None:
        recorder = self._recorder
        self._announced.clear()
        began = recorder.now()
        loss.backward(torch.full_like(loss, scale))
        for index, parameter in enumerate(self._parameters):
            if index not in self._announced:
                parameter.grad = torch.zeros_like(parameter)
                self._ready(index, parameter)
        recorder.note("backward", began, recorder.now())
        recorder.timed("wait", self.wait)()

    def _ready(self, index: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._announced.add(index)
        self.announce(index, parameter.grad)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which the thread goes round, on all workers, until all have left it. Not
        forever: other engines want the cores too."""
        self._stopping, self._next_cycle = False, self._recorder.now()
        thread = threading.Thread(target=self._run, name="queue", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            with self._changed:  # this worker is about to fail; its thread ends
                self._waiting.clear()
                self._stopping = True
            raise
        with self._changed:
            self._stopping = True
        seconds = self._peers.timeout_seconds
        thread.join(seconds)
        self._raise()
        if thread.is_alive():
            raise WorkerLost(f"waited {seconds:.0f} s for the other workers' queues to stop")

    def announce(self, index: int, tensor: Tensor) -> None:
        """Hand over a tensor that is ready to be summed in place."""
        with self._changed:
            assert index not in self._waiting, "a tensor is announced once a step"
            self._tensors[index] = tensor
            self._new.append(index)
            self._waiting.add(index)

    def wait(self) -> None:
        """Wait until every announced tensor is the sum."""
        seconds = self._peers.timeout_seconds
        with self._changed:
            done = self._changed.wait_for(lambda: not self._waiting or self._error, seconds)
            left = len(self._waiting)
        self._raise()
        if not done:
            raise WorkerLost(
                f"waited {seconds:.0f} s for {left} tensors that not all workers announced"
            )

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._cycle():
                pass
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _cycle(self) -> bool:
        """Go round once; False when all workers are to stop."""
        recorder = self._recorder
        time.sleep(max(self._next_cycle - recorder.now(), 0.0))
        step, began = recorder.step, recorder.now()
        self._next_cycle = began + self._settings.cycle_seconds
        with self._changed:
            mine, self._new = self._new, []
            stopping = self._stopping and not self._waiting
        said = torch.zeros(len(self._tensors) + 1, dtype=torch.uint8)
        said[-1] = stopping
        said[mine] = 1
        answer = torch.zeros(len(self._tensors) + 2, dtype=torch.int32)
        messages = self._peers.collect(said)
        if messages:  # on worker 0
            heard = torch.stack(messages)
            self._order += mine
            self._counts += heard[:, :-1].sum(dim=0)
            agreed = [i for i in self._order if self._counts[i] == self._peers.num_workers]
            self._counts[agreed] = 0
            self._order = [i for i in self._order if i not in agreed]
            answer[0], answer[1] = len(agreed), bool(heard[:, -1].all())
            answer[2 : 2 + len(agreed)] = torch.tensor(agreed, dtype=torch.int32)
        self._peers.spread(answer)
        recorder.note_beside("negotiation", began, recorder.now(), "negotiation", step)
        agreed = answer[2 : 2 + int(answer[0])].tolist()
        for group in fuse(agreed, self._tensors, self._settings.fusion_bytes):
            self._sum(group)
        return not bool(answer[1])

    def _sum(self, group: list[int]) -> None:
        recorder = self._recorder
        step, began = recorder.step, recorder.now()
        tensors = [self._tensors[index] for index in group]
        if len(tensors) == 1 and tensors[0].is_contiguous():
            self._peers.add(tensors[0])
        else:
            buffer = self._buffer(tensors)
            pieces = buffer.split([tensor.numel() for tensor in tensors])
            for piece, tensor in zip(pieces, tensors, strict=True):
                piece.copy_(tensor.reshape(-1))
            self._peers.add(buffer)
            for piece, tensor in zip(pieces, tensors, strict=True):
                tensor.copy_(piece.view(tensor.shape))
        name = f"buffer {group[0]} ({len(group)} tensors)"
        sent = ring_bytes(sum(t.nbytes for t in tensors), self._peers.num_workers)
        recorder.note_beside("reduction", began, recorder.now(), name, step, sent)
        with self._changed:
            self._waiting.difference_update(group)
            self._changed.notify_all()

    def _buffer(self, tensors: Sequence[Tensor]) -> Tensor:
        """The fusion buffer of a dtype, as much of it as is needed; it grows to its limit."""
        length, dtype = sum(tensor.numel() for tensor in tensors), tensors[0].dtype
        known = self._buffers.get(dtype)
        if known is None or len(known) < length:
            known = self._buffers[dtype] = torch.empty(length, dtype=dtype)
        return known[:length]
