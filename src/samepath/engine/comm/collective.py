"""Communication between workers: small records, buckets of sums, messages.

In: a Place. Out: a Collective: small records gathered from all workers, and buckets of partial sums
that become one total. Three kinds: `Alone`; `Network` (gloo on CPU, NCCL on GPU); and, in
`shared_memory`, one for workers of one machine.
Guaranteed: a bucket's total is added in the order the Reduction says, bit for bit, whatever the
kind; every wait has a limit. Beside it, for a parameter server: a Mailbox.
"""

from __future__ import annotations

import itertools
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from samepath.data.loaders import TIMEOUT_SECONDS
from samepath.engine.comm.environment import LOOPBACK, Place
from samepath.engine.comm.tensors import fills
from samepath.errors import WorkerLost
from samepath.faults import fault_point
from samepath.plan import Reduction

Record: TypeAlias = NDArray[np.uint8]
Number = TypeVar("Number", np.int64, np.float64)


class Bucket(ABC):
    """Room for one worker's partial sums of a fixed stretch of values, and for their total."""

    rows: Tensor
    """(sums, length): this worker's partial sums, to be filled before `launch`."""
    watch: Callable[[str], None] | None = None
    """Told "adding" and "added" around this worker's part of the additions, and when the total is
    there: "complete" before it is copied out, or "arrived", by another thread, from the network."""

    @abstractmethod
    def begin(self, reduction: Reduction) -> None:
        """Get ready for a batch with this reduction (the same one on every worker)."""

    @abstractmethod
    def launch(self) -> None:
        """Start adding; buckets are launched in the same order on every worker."""

    @abstractmethod
    def progress(self) -> None:
        """Move on if that is possible without waiting."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for all workers' sums and do this worker's part of adding them."""

    @abstractmethod
    def finish(self) -> Tensor:
        """Wait for the others' parts too, and return the total: this worker's own memory, valid
        until the next launch. Settling all buckets before finishing any saves waits."""


class RowExchange(ABC):
    """Bytes that every worker sends to all others in several rounds of a batch. A round leaves at
    once; its turn among buckets does not matter."""

    @abstractmethod
    def begin(self, sizes: Sequence[Sequence[int]]) -> None:
        """Get ready for a batch: `sizes[worker][turn]` are the bytes that a worker sends in a round
        (the same on every worker; fewer rounds where it has less to send)."""

    @abstractmethod
    def launch(self, message: Tensor) -> None:
        """Send the next round's message: bytes, as many as were said (none after the last)."""

    @abstractmethod
    def finish(self) -> list[list[Tensor]]:
        """Wait for all messages: by worker and round, valid until the batch after the next."""


class Collective(ABC):
    """The workers of a run, seen from one of them."""

    worker: int
    num_workers: int
    device: torch.device
    timeout_seconds: float
    """How long to wait for another worker."""

    @abstractmethod
    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        """Start gathering a record of one size from all workers; the result ends it."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        """Overwrite all workers' tensor with one worker's."""

    @abstractmethod
    def bucket(self, length: int, dtype: torch.dtype, *, exact: bool) -> Bucket:
        """A bucket of so many values."""

    @abstractmethod
    def row_exchange(self) -> RowExchange:
        """An exchange of bytes between all workers (all of them make one together)."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""

    def gather(self, record: Record) -> list[Record]:
        return self.gather_begin(record)()

    def gather_rows(self, mine: NDArray[Number]) -> NDArray[Number]:
        """Gather an array of one shape from all workers: row w is worker w's."""
        records = self.gather(np.ascontiguousarray(mine).view(np.uint8).ravel())
        return np.stack([record.view(mine.dtype).reshape(mine.shape) for record in records])

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """Gather bytes, of any length, from all workers."""
        lengths = self.gather_rows(np.array([len(mine)], np.int64)).ravel()
        padded = np.frombuffer(mine.ljust(int(lengths.max())), np.uint8).copy()
        records = self.gather(padded)
        return [r[:length].tobytes() for r, length in zip(records, lengths, strict=True)]

    def gather_aside(self, mine: bytes) -> list[bytes]:
        """Gather bytes, of any length, from all workers, while a record may be on its way."""
        return self.gather_bytes(mine)

    def agree(self, here: bool) -> bool:
        """True when it is true on every worker."""
        return all(record[0] for record in self.gather(np.array([here], np.uint8)))


class Alone(Collective):
    """The collective of a single process: everything is already together."""

    worker = 0
    num_workers = 1

    def __init__(self, device: torch.device, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.device = device
        self.timeout_seconds = timeout_seconds

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        return lambda: [record]

    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        pass

    def bucket(self, length: int, dtype: torch.dtype, *, exact: bool) -> Bucket:
        raise AssertionError("one worker adds its own sums and needs no bucket")

    def row_exchange(self) -> RowExchange:
        raise AssertionError("one worker has all rows")

    def close(self) -> None:
        pass


class Network(Collective):
    """Workers that talk through torch.distributed."""

    def __init__(self, place: Place, device: torch.device, timeout_seconds: float) -> None:
        self.worker = place.worker
        self.num_workers = place.num_workers
        self.device = device
        self.timeout_seconds = timeout_seconds
        timeout = timedelta(seconds=timeout_seconds)
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            _join("nccl" if device.type == "cuda" else "gloo", place, timeout)
        # Chunks come back through a group of their own: they start whenever a worker is ready, so
        # their order against outgoing buckets differs between workers, their own order does not.
        self.scatter_group: dist.ProcessGroup | None = dist.group.WORLD
        with _peers_may_leave():
            self.gather_group: dist.ProcessGroup | None = dist.new_group(timeout=timeout)
        self.row_group: dist.ProcessGroup | None = None
        """Of messages between all workers, whose order against buckets differs between workers."""
        self._travelling: deque[NetworkBucket] = deque()

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        mine = torch.from_numpy(record).to(self.device)
        gathered = mine.new_empty(self.num_workers * len(record))
        work = dist.all_gather_single(gathered, mine, group=self.scatter_group, async_op=True)

        def end() -> list[Record]:
            wait(work)
            return list(gathered.cpu().numpy().reshape(self.num_workers, -1))

        return end

    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        # as bytes: gloo carries neither 16-bit integers nor 8-bit floats
        dense = tensor if fills(tensor) else tensor.contiguous()
        flat = dense.detach().as_strided((dense.numel(),), (1,)).view(torch.uint8)
        if flat.numel():
            with _peers_may_leave():
                dist.broadcast(flat, src=worker, group=self.scatter_group)
        if dense is not tensor:
            tensor.copy_(dense)

    def bucket(self, length: int, dtype: torch.dtype, *, exact: bool) -> Bucket:
        return NetworkBucket(self, length, dtype, exact=exact)

    def row_exchange(self) -> RowExchange:
        if self.row_group is None:
            with _peers_may_leave():
                self.row_group = dist.new_group(timeout=timedelta(seconds=self.timeout_seconds))
        return NetworkRows(self)

    def sent(self, bucket: NetworkBucket) -> None:
        """A bucket's sums are on their way to the workers that add them."""
        self._travelling.append(bucket)

    def return_chunks(self, until: NetworkBucket | None = None) -> None:
        """Return added chunks, strictly in the order the buckets were sent: as many as have
        arrived, or everything up to one bucket."""
        while self._travelling and (until is not None or self._travelling[0].has_arrived()):
            bucket = self._travelling.popleft()
            bucket.return_chunk()
            if bucket is until:
                return

    def close(self) -> None:
        if self._owns_group and dist.is_initialized():
            # A group ends its threads when the last who holds it lets go. Left for the end of the
            # interpreter, a thread that still has a tensor to free there aborts the process.
            self.scatter_group = self.gather_group = self.row_group = None
            dist.destroy_process_group()


_joined = itertools.count()
"""Groups that this process has joined: what one left in a store must not be met by the next."""


def _join(backend: str, place: Place, timeout: timedelta) -> None:
    if backend == "gloo":
        # torch remembers the Python stack of 2000 collectives, for debugging NCCL: memory that
        # grows for hours where a run has few of them
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    with _peers_may_leave():
        where: dict[str, Any] = {"store": _store(place, timeout)}
        if where["store"] is None:
            where = {"init_method": "env://"}
        dist.init_process_group(
            backend, rank=place.worker, world_size=place.num_workers, timeout=timeout, **where
        )


def _store(place: Place, timeout: timedelta) -> Store | None:
    """Open the store by which workers find each other: our launcher's; or worker 0's, which
    listens only where it has to; or (None) torchrun's."""
    if place.store_prefix:
        launchers = TCPStore(
            place.address, place.port, is_master=False, wait_for_workers=False, timeout=timeout
        )
        return PrefixStore(f"{place.store_prefix}/{next(_joined)}", launchers)
    if place.agent_has_store:
        return None
    first = place.worker == 0
    listener = None
    if first and place.one_machine:  # torch itself would listen to the whole world
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, place.port))
        listener.listen(1024)
    return TCPStore(
        LOOPBACK if place.one_machine else place.address,
        place.port,
        place.num_workers,
        is_master=first,
        timeout=timeout,
        master_listen_fd=None if listener is None else listener.detach(),
    )


@contextmanager
def _peers_may_leave() -> Iterator[None]:
    """Turn the loss of another worker into one clear error, which is not blamed on this worker."""
    try:
        yield
    except RuntimeError as error:
        raise WorkerLost(f"another worker left or stopped answering ({error})") from error


def wait(work: dist.Work) -> None:
    """Wait for a collective."""
    with _peers_may_leave():
        work.wait()


class Mailbox:
    """Bytes from one process to another, in order; threads may talk to different ones at once.

    Always gloo: NCCL's messages would keep a GPU's stream waiting for a worker that is busy. On
    GPUs weights and gradients therefore pass through main memory (reasoned; not run on one).
    """

    def __init__(self, place: Place, timeout_seconds: float) -> None:
        self.worker = place.worker
        self.num_workers = place.num_workers
        self.timeout_seconds = timeout_seconds
        _join("gloo", place, timedelta(seconds=timeout_seconds))

    def send(self, message: Tensor, to: int) -> None:
        self._move(dist.isend, torch.tensor([message.numel()]), to)
        if message.numel():
            self._move(dist.isend, message, to)

    def receive(self, sender: int) -> Tensor:
        length = torch.empty(1, dtype=torch.int64)
        self._move(dist.irecv, length, sender)
        message = torch.empty(int(length), dtype=torch.uint8)
        if message.numel():
            self._move(dist.irecv, message, sender)
        return message

    def _move(
        self, begin: Callable[[Tensor, int], dist.Work | None], tensor: Tensor, other: int
    ) -> None:
        try:
            work = begin(tensor, other)
        except RuntimeError as error:
            raise WorkerLost(f"worker {other} left ({error})") from error
        assert work is not None
        wait(work)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class NetworkBucket(Bucket):
    """Adds over the network in the tree's order.

    Two workers with one sum each: a plain all-reduce, because a + b has only one order. Otherwise
    every worker owns one chunk of the bucket: all sums of that chunk come to it (all_to_all), it
    adds them in order, and the totals go round (2(N-1)/N of the bucket sent per worker when each
    has one sum: a ring's traffic).
    """

    def __init__(
        self, collective: Network, length: int, dtype: torch.dtype, *, exact: bool
    ) -> None:
        self._collective = collective
        self._exact = exact
        self._length = length
        self._chunk = -(-length // collective.num_workers)
        padded = self._chunk * collective.num_workers
        self._rows = torch.zeros(1, padded, dtype=dtype, device=collective.device)
        self._work: dist.Work | None = None

    def begin(self, reduction: Reduction) -> None:
        self._reduction = reduction
        mine = reduction.num_sums[self._collective.worker]
        if mine > len(self._rows):
            self._rows = self._rows.new_zeros(mine, self._rows.shape[1])
        self.rows = self._rows[:mine, : self._length]
        self._plain = (not self._exact or self._collective.num_workers == 2) and max(
            reduction.num_sums
        ) <= 1
        if self._plain and mine == 0:
            self._rows[0].fill_(-0.0)  # x + -0.0 is x for every x, +0.0 and -0.0 included
        self._returned = False

    def launch(self) -> None:
        if self._plain:
            self._work = dist.all_reduce(
                self._rows[0], group=self._collective.scatter_group, async_op=True
            )
            self._tell_arrival()
            return
        workers, chunk = self._collective.num_workers, self._chunk
        num_sums = self._reduction.num_sums
        mine = num_sums[self._collective.worker]
        # worker w gets chunk w of each of my sums; with one sum that is the row as it lies
        outgoing = self._rows[:mine].view(mine, workers, chunk).transpose(0, 1).reshape(-1)
        self._outgoing = outgoing  # keeps it alive while it travels
        self._sums = outgoing.new_empty(sum(num_sums), chunk)
        self._work = dist.all_to_all_single(
            self._sums.view(-1),
            outgoing,
            output_split_sizes=[n * chunk for n in num_sums],
            input_split_sizes=[mine * chunk] * workers,
            group=self._collective.scatter_group,
            async_op=True,
        )
        self._collective.sent(self)

    def progress(self) -> None:
        self._collective.return_chunks()

    def has_arrived(self) -> bool:
        # On a GPU is_completed() would ask the stream; there finish() queues the rest instead
        assert self._work is not None
        return self._collective.device.type == "cpu" and self._work.is_completed()

    def return_chunk(self) -> None:
        """My chunk is here: add its sums in the tree's order and send the total to all workers."""
        fault_point("reduction")
        assert self._work is not None
        wait(self._work)
        if self.watch is not None:
            self.watch("adding")
        for into, other in self._reduction.additions:
            self._sums[into].add_(self._sums[other])
        total, group = self._rows[0], self._collective.gather_group
        if self._collective.device.type == "cpu":
            # gloo's all_gather takes two to three times as long as its all_to_all
            self._outgoing = self._sums[0].repeat(self._collective.num_workers)
            self._work = dist.all_to_all_single(total, self._outgoing, group=group, async_op=True)
        else:
            self._work = dist.all_gather_single(total, self._sums[0], group=group, async_op=True)
        self._returned = True
        if self.watch is not None:
            self.watch("added")
        self._tell_arrival()

    def _tell_arrival(self) -> None:
        watch = self.watch
        if watch is not None:
            assert self._work is not None
            self._work.get_future().then(lambda _: watch("arrived"))

    def settle(self) -> None:
        if not self._plain and not self._returned:
            self._collective.return_chunks(until=self)

    def finish(self) -> Tensor:
        assert self._work is not None
        wait(self._work)
        return self._rows[0, : self._length]


class NetworkRows(RowExchange):
    """Sends every message to all other workers at once (all_to_all)."""

    def __init__(self, collective: Network) -> None:
        self._collective = collective

    def begin(self, sizes: Sequence[Sequence[int]]) -> None:
        self._sizes = sizes
        self._rounds: list[tuple[dist.Work, Tensor, list[int], Tensor]] = []

    def launch(self, message: Tensor) -> None:
        here, turn = self._collective, len(self._rounds)
        received = [each[turn] if turn < len(each) else 0 for each in self._sizes]
        assert message.numel() == received[here.worker]
        outgoing = message.repeat(here.num_workers)
        incoming = message.new_empty(sum(received))
        work = dist.all_to_all_single(
            incoming,
            outgoing,
            output_split_sizes=received,
            input_split_sizes=[message.numel()] * here.num_workers,
            group=here.row_group,
            async_op=True,
        )
        self._rounds.append((work, incoming, received, outgoing))

    def finish(self) -> list[list[Tensor]]:
        found: list[list[Tensor]] = [[] for _ in self._sizes]
        for turn, (work, incoming, received, _) in enumerate(self._rounds):
            wait(work)
            for worker, message in enumerate(incoming.split(received)):
                if turn < len(self._sizes[worker]):
                    found[worker].append(message)
        return found


def machine_name() -> str:
    """Name the host and its boot, which two workers must have in common to share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return socket.gethostname() + file.read().strip()
    except OSError:
        return socket.gethostname()
