"""Workers of one machine talk through memory they all map: no sockets, no copies on the way.

In: a Network that reaches everybody. Out: a Collective whose records and buckets lie in shared
memory. Guaranteed: the additions of `collective.NetworkBucket`, in the same order; memory that
vanishes with the last process (an anonymous memfd, never a file that could be left behind).

Everyone announces how far it is by writing a number into its own slot and waits by reading the
others'. A slot has one writer, and what it announces is written before it.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath.engine.collective import Bucket, Collective, Network, Record, machine_name
from samepath.errors import WorkerLost
from samepath.plan import Reduction

RECORD_BYTES = 1 << 16
TURN_BYTES = 64  # a cache line
PAGE = mmap.PAGESIZE


def same_machine(network: Network) -> bool:
    """True when every worker sees one host."""
    name = np.frombuffer(machine_name().encode()[:256].ljust(256), np.uint8).copy()
    return all(np.array_equal(name, other) for other in network.gather(name))


def turns_in(memory: NDArray[np.uint8]) -> NDArray[np.int64]:
    """One number per worker, a cache line apart."""
    return memory.view(np.int64)[:: TURN_BYTES // 8]


class SharedMemory(Collective):
    """Workers of one machine. Start-up and broadcasts go through the network underneath."""

    def __init__(self, network: Network) -> None:
        self.worker = network.worker
        self.num_workers = network.num_workers
        self.device = network.device
        self._network = network
        self.timeout_seconds = network.timeout_seconds
        # Where workers share cores, those that wait must leave them to those that work
        self._crowd = max(1.0, self.num_workers / (os.cpu_count() or 1))
        pids = network.gather(np.frombuffer(np.int64(os.getpid()).tobytes(), np.uint8).copy())
        self._pids = [int(pid.view(np.int64)[0]) for pid in pids]
        turns_bytes = TURN_BYTES * self.num_workers
        memory = self.share(turns_bytes + 2 * self.num_workers * RECORD_BYTES)
        self._record_turns = turns_in(memory[:turns_bytes])
        self._records = memory[turns_bytes:][: 2 * self.num_workers * RECORD_BYTES].reshape(
            2, self.num_workers, RECORD_BYTES
        )
        self._record_turn = 0

    def share(self, num_bytes: int) -> NDArray[np.uint8]:
        """Zeroed memory of that size, mapped by every worker. Raises OSError on all or none."""
        num_bytes = -(-num_bytes // PAGE) * PAGE
        path, descriptor = b"", -1
        failure: Exception | None = None
        try:
            if self.worker == 0:
                descriptor = os.memfd_create("samepath", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, num_bytes)
                path = f"/proc/{os.getpid()}/fd/{descriptor}".encode()
        except OSError as error:
            failure = error
        sent = np.frombuffer(path.ljust(64), np.uint8).copy()
        path = self._network.gather(sent)[0].tobytes().strip()
        try:
            # not mmap, which keeps a descriptor for every mapping; a large model has many
            memory = torch.from_file(path.decode(), True, num_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            failure = failure or error
        everybody = self._network.agree(failure is None)  # also: all have opened it by now
        if descriptor >= 0:
            os.close(descriptor)
        if not everybody:
            raise OSError(str(failure or "another worker cannot map memory of worker 0"))
        mapped: NDArray[np.uint8] = memory.numpy()
        return mapped

    def await_turn(self, turns: NDArray[np.int64], turn: int) -> None:
        """Wait until every worker has announced this turn."""
        pause, started, next_look = 0.0, time.monotonic(), 1.0
        while int(turns.min()) < turn:
            time.sleep(pause)
            pause = min(pause + 2e-6 * self._crowd, 1e-4 * self._crowd)
            waited = time.monotonic() - started
            if waited > next_look:
                next_look = waited + 1.0
                self._look_for_the_lost(turns, turn, waited)

    def _look_for_the_lost(self, turns: NDArray[np.int64], turn: int, waited: float) -> None:
        late = [worker for worker in range(self.num_workers) if turns[worker] < turn]
        for worker in late:
            try:
                os.kill(self._pids[worker], 0)
            except ProcessLookupError:
                raise WorkerLost(f"worker {worker} has died") from None
        if waited > self.timeout_seconds:
            raise WorkerLost(f"waited {waited:.0f} s for worker {late[0]}, which does not answer")

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        if len(record) > RECORD_BYTES:
            return self._network.gather_begin(record)
        # Two places in turn: nobody writes turn t + 2 before all have announced t + 1, and nobody
        # announces t + 1 before it has read t.
        self._record_turn += 1
        turn, place = self._record_turn, self._records[self._record_turn % 2]
        place[self.worker, : len(record)] = record
        self._record_turns[self.worker] = turn

        def end() -> list[Record]:
            self.await_turn(self._record_turns, turn)
            return list(place[:, : len(record)].copy())

        return end

    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        self._network.broadcast(tensor, worker)

    def bucket(self, length: int, dtype: torch.dtype, *, exact: bool) -> Bucket:
        return SharedBucket(self, length, dtype)

    def close(self) -> None:
        self._network.close()


class SharedBucket(Bucket):
    """Everybody's sums lie in shared memory; each worker adds one chunk of them.

    Two announcements per batch. `posted`: my sums are written. `added`: my chunk of the total is
    written, and I read no more sums. A total is overwritten only after all have posted the next
    batch, which they do after copying the total out.
    """

    def __init__(self, collective: SharedMemory, length: int, dtype: torch.dtype) -> None:
        self._collective = collective
        self._length = length
        self._dtype = dtype
        self._turn = 0
        self._capacity = 0
        self._total = torch.empty(length, dtype=dtype)

    def begin(self, reduction: Reduction) -> None:
        most = max(reduction.num_sums)
        if most > self._capacity:  # the same on every worker
            self._allocate(most)
        self._reduction = reduction
        self.rows = self._sums[
            self._collective.worker, : reduction.num_sums[self._collective.worker]
        ]
        self._turn += 1
        self._chunk_added = False

    def _allocate(self, most: int) -> None:
        self._capacity = most
        size = self._dtype.itemsize
        # rows start on cache lines, so that kernels meet the alignment they meet everywhere
        stride = -(-self._length * size // 64) * 64 // size
        rows = self._collective.num_workers * most
        turns_bytes = TURN_BYTES * self._collective.num_workers
        shared = self._collective.share(2 * turns_bytes + (rows + 1) * stride * size)
        # from zero again, which is before every turn to come
        self._posted = turns_in(shared[:turns_bytes])
        self._added = turns_in(shared[turns_bytes : 2 * turns_bytes])
        values = shared[2 * turns_bytes :][: (rows + 1) * stride * size]
        memory = torch.from_numpy(values).view(self._dtype)
        sums, total = memory[: rows * stride], memory[rows * stride :]
        self._sums = sums.view(self._collective.num_workers, most, stride)[:, :, : self._length]
        self._shared_total = total[: self._length]
        chunk = -(-self._length // self._collective.num_workers)
        first = min(chunk * self._collective.worker, self._length)
        self._mine = slice(first, min(first + chunk, self._length))

    def launch(self) -> None:
        self._posted[self._collective.worker] = self._turn

    def progress(self) -> None:
        if not self._chunk_added and int(self._posted.min()) >= self._turn:
            self._add_chunk()

    def _add_chunk(self) -> None:
        if self.watch is not None:
            self.watch("adding")
        sums = [
            self._sums[worker, number, self._mine]
            for worker, count in enumerate(self._reduction.num_sums)
            for number in range(count)
        ]
        total = self._shared_total[self._mine]
        *before, last = self._reduction.additions or [(0, 0)]
        for into, other in before:
            sums[into].add_(sums[other])
        if last == (0, 0):
            total.copy_(sums[0])
        else:
            torch.add(sums[last[0]], sums[last[1]], out=total)
        self._added[self._collective.worker] = self._turn
        self._chunk_added = True
        if self.watch is not None:
            self.watch("added")

    def settle(self) -> None:
        if not self._chunk_added:
            self._collective.await_turn(self._posted, self._turn)
            self._add_chunk()

    def finish(self) -> Tensor:
        self._collective.await_turn(self._added, self._turn)
        if self.watch is not None:
            self.watch("complete")
        return self._total.copy_(self._shared_total)
