"""Workers of one machine talk through memory they all map: no sockets, no copies on the way.

In: a Network that reaches all workers. Out: a Collective whose records and buckets lie in shared
memory. Guaranteed: the additions of `network.NetworkBucket`, in the same order; memory that
vanishes with the last process (an anonymous memfd, never a file that could be left behind).

Everyone announces how far it is by writing a number into its own slot and waits by reading the
others'. A slot has one writer; what it announces is written before it, and read after it (`fence`).
Memory is found by worker 0's process number, which may be another process's where a worker looks:
it is believed when it holds the token that worker 0 has told all workers.
"""

from __future__ import annotations

import itertools
import mmap
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath import owners
from samepath.engine.comm.collective import (
    Bucket,
    Collective,
    Record,
    RowExchange,
    Travelling,
)
from samepath.engine.comm.environment import machine_name
from samepath.engine.comm.network import Network
from samepath.errors import WorkerLost
from samepath.faults import fault_point
from samepath.plan import Reduction

RECORD_BYTES = 1 << 16
TURN_BYTES = 64  # a cache line
PAGE = mmap.PAGESIZE
TOKEN_BYTES = 32
_fence = threading.Lock()


def same_machine(network: Network) -> bool:
    """Whether every worker sees one host, and its processes by the same numbers."""
    where = f"{owners.world()} {machine_name()}"
    return len(set(network.gather_bytes(where.encode()))) == 1


def fence() -> None:
    """Complete what this process has read and written before anything that it does after.

    x86 keeps loads, and stores, in order by itself; ARM and POWER do not, and numpy has no atomic
    operations. A lock has: letting go is a store-release, which waits for all that came before, and
    taking is a load-acquire, which all that comes after waits for. Between the two letting go comes
    first (ARMv8 keeps a load-acquire behind an earlier store-release; on POWER the barrier of the
    release is enough), which the other order, one take and one release, would not give: what is
    before and after it may both move in. Reasoned for these; run on x86 alone.
    """
    with _fence:
        pass
    with _fence:
        pass


def announce(turns: NDArray[np.int64], worker: int, turn: int) -> None:
    """Tell the others that all of this worker's turn is written, and what was there before read."""
    fence()
    turns[worker] = turn


def have_announced(turns: NDArray[np.int64], turn: int) -> bool:
    """Whether all workers have; what they have written can be read from here on."""
    if int(turns.min()) < turn:
        return False
    fence()
    return True


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
        self._pids = network.gather_rows(np.array([os.getpid()], np.int64)).ravel().tolist()
        turns_bytes = TURN_BYTES * self.num_workers
        memory = self.share(turns_bytes + 2 * self.num_workers * RECORD_BYTES)
        self._record_turns = turns_in(memory[:turns_bytes])
        records = memory[turns_bytes:][: 2 * self.num_workers * RECORD_BYTES]
        self._records = records.reshape(2, self.num_workers, RECORD_BYTES)
        self._record_turn = 0
        self._end_last: Callable[[], list[Record]] | None = None

    def share(self, num_bytes: int) -> NDArray[np.uint8]:
        """Zeroed memory of that size, mapped by every worker. Raises OSError on all or none."""
        num_bytes = -(-(num_bytes + TOKEN_BYTES) // PAGE) * PAGE  # the token is at its end
        path, token, descriptor = b"", bytes(TOKEN_BYTES), -1
        failure: Exception | None = None
        try:
            if self.worker == 0:
                descriptor = os.memfd_create("samepath", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, num_bytes)
                token = secrets.token_bytes(TOKEN_BYTES)
                os.pwrite(descriptor, token, num_bytes - TOKEN_BYTES)
                path = f"/proc/{os.getpid()}/fd/{descriptor}".encode()
        except OSError as error:
            failure = error
        told = self._network.gather_bytes(token + path)[0]
        try:
            memory = _map(told[TOKEN_BYTES:].decode(), num_bytes, told[:TOKEN_BYTES])
        except (OSError, RuntimeError) as error:
            failure = failure or error
        all_have = self._network.agree(failure is None)  # also: all have opened it by now
        if descriptor >= 0:
            os.close(descriptor)
        if not all_have:
            raise OSError(str(failure or "another worker cannot map memory of worker 0"))
        mapped: NDArray[np.uint8] = memory.numpy()
        return mapped

    def await_turn(self, turns: NDArray[np.int64], turn: int) -> None:
        """Wait until every worker has announced this turn."""
        pause, started, next_look = 0.0, time.monotonic(), 1.0
        while not have_announced(turns, turn):
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
                os.kill(self._pids[worker], 0)  # numbers are of one namespace: `same_machine`
            except ProcessLookupError:
                raise WorkerLost(f"worker {worker} has died") from None
            except PermissionError:
                continue  # another user's: there is one
        if waited > self.timeout_seconds:
            raise WorkerLost(f"waited {waited:.0f} s for worker {late[0]}, which does not answer")

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        if len(record) > RECORD_BYTES:
            return self._network.gather_begin(record)
        # Two places in turn: no worker writes turn t + 2 before all have announced t + 1, and none
        # announces t + 1 before it has read t. So a gather that was given up (its step has raised)
        # or is to be ended later is ended here.
        if self._end_last is not None:
            self._end_last()
        self._record_turn += 1
        turn, place = self._record_turn, self._records[self._record_turn % 2]
        place[self.worker, : len(record)] = record
        announce(self._record_turns, self.worker, turn)

        @cache
        def end() -> list[Record]:
            self.await_turn(self._record_turns, turn)
            return list(place[:, : len(record)].copy())

        self._end_last = end
        return end

    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        self._network.broadcast(tensor, worker)

    def bucket(
        self, length: int, dtype: torch.dtype, *, exact: bool, what: Travelling = "gradients"
    ) -> Bucket:
        return SharedBucket(self, length, dtype)

    def row_exchange(self) -> RowExchange:
        return SharedRows(self)

    def gather_aside(self, mine: bytes) -> list[bytes]:
        return self._network.gather_bytes(mine)

    def close(self) -> None:
        self._network.close()


def open_memory(path: str, num_bytes: int, token: bytes) -> int:
    """Open another worker's memory, if it is what is there; nothing else is touched. OSError
    otherwise."""
    facts = os.stat(path)  # before it is opened: that of a device or a pipe may do something
    if not stat.S_ISREG(facts.st_mode) or facts.st_size != num_bytes:
        raise OSError(f"{path} is not the memory of the worker that shares it")
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    found = os.pread(descriptor, TOKEN_BYTES, num_bytes - TOKEN_BYTES)
    if not secrets.compare_digest(found, token):
        os.close(descriptor)
        raise OSError(f"{path} is not the memory of the worker that shares it")
    return descriptor


def _map(path: str, num_bytes: int, token: bytes) -> Tensor:
    """Map worker 0's memory."""
    descriptor = open_memory(path, num_bytes, token)
    try:
        # not mmap, which keeps a descriptor for every mapping; a large model has many
        here = f"/proc/self/fd/{descriptor}"
        return torch.from_file(here, True, num_bytes, dtype=torch.uint8)
    finally:
        os.close(descriptor)


class SharedBucket(Bucket):
    """All workers' sums in shared memory; each worker adds one chunk of them.

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
        worker = self._collective.worker
        self.rows = self._sums[worker, : reduction.num_sums[worker]]
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
        announce(self._posted, self._collective.worker, self._turn)

    def progress(self) -> None:
        if not self._chunk_added and have_announced(self._posted, self._turn):
            self._add()

    def _add(self) -> None:
        fault_point("reduction")
        self.tell("adding")
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
        announce(self._added, self._collective.worker, self._turn)
        self._chunk_added = True
        self.tell("added")

    def add_chunk(self) -> None:
        if not self._chunk_added:
            self._collective.await_turn(self._posted, self._turn)
            self._add()

    def finish(self) -> Tensor:
        self._collective.await_turn(self._added, self._turn)
        self.tell("complete")
        return self._total.copy_(self._shared_total)


class SharedRows(RowExchange):
    """Messages lie in shared memory, where every worker reads them.

    Two halves in turn: who writes a batch has read the one before, for which it waited for all
    workers; and they had read the one before that, which lay in the same half.
    """

    def __init__(self, collective: SharedMemory) -> None:
        self._collective = collective
        self._room = 0
        self._half = 0
        self._said = 0

    def begin(self, sizes: Sequence[Sequence[int]]) -> None:
        self._sizes = sizes
        ends = np.cumsum([0, *(size for each in sizes for size in each)]).tolist()
        if ends[-1] > self._room:
            self._allocate(ends[-1])
        self._half = 1 - self._half
        memory = self._halves[self._half]
        places = iter(itertools.pairwise(ends))
        self._messages = [
            [memory[a:b] for a, b in itertools.islice(places, len(each))] for each in sizes
        ]
        self._rounds = max(map(len, sizes))
        self._launched = 0
        self._before = self._said

    def _allocate(self, num_bytes: int) -> None:
        turns_bytes = TURN_BYTES * self._collective.num_workers
        self._room = -(-num_bytes // PAGE) * PAGE
        shared = self._collective.share(turns_bytes + 2 * self._room)
        self._turns = turns_in(shared[:turns_bytes])
        self._said = 0  # from zero again, which is before every turn to come
        memory = torch.from_numpy(shared[turns_bytes:][: 2 * self._room])
        self._halves = memory.view(2, self._room)

    def launch(self, message: Tensor) -> None:
        mine = self._messages[self._collective.worker]
        if self._launched < len(mine):
            mine[self._launched].copy_(message)
        self._launched += 1
        self._said += 1
        announce(self._turns, self._collective.worker, self._said)

    def finish(self) -> list[list[Tensor]]:
        self._collective.await_turn(self._turns, self._before + self._rounds)
        return self._messages
