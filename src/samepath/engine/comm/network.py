"""Workers that talk through torch.distributed: gloo on CPU, NCCL on GPU.

In: a Place. Out: `Network`, a Collective; `Mailbox`, messages between two processes, for a
parameter server; `Peers`, plain sums for engines that are compared with ours; `open_store`, through
which processes find each other. Guaranteed: every wait has a limit, and the loss of another worker
becomes one clear error; a store listens on one address (torch's own would listen on all).
"""

from __future__ import annotations

import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from samepath.engine.comm.collective import (
    Bucket,
    Collective,
    Record,
    RowExchange,
    Travelling,
)
from samepath.engine.comm.environment import LOOPBACK, Place
from samepath.engine.comm.tensors import fills
from samepath.errors import UserError, WorkerLost
from samepath.faults import fault_point
from samepath.plan import Reduction, whole_bytes

STORE_SECONDS = 15.0
"""How long an answer of the store is waited for."""
_joined = itertools.count()
"""Groups that this process has joined: what one left in a store must not be met by the next."""


@contextmanager
def _may_be_lost(who: str = "another worker") -> Iterator[None]:
    """Turn the loss of another worker into an error that is not blamed on this one."""
    try:
        yield
    except RuntimeError as error:
        raise WorkerLost(f"{who} left or stopped answering ({error})") from error


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    with _may_be_lost():
        work.wait()


# ---- how workers find each other


def open_store(address: str) -> tuple[TCPStore, int]:
    """Open a store on a free port of one address, for processes that this one starts."""
    listener = socket.socket()
    try:
        listener.bind((address, 0))
        listener.listen(1024)
        port = int(listener.getsockname()[1])
        store = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_SECONDS),
            master_listen_fd=listener.fileno(),
        )
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError):
            listener.close()
        else:
            listener.detach()  # whose it is by now only the store knows
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError(
            f"nothing can listen on {address} ({why}); give another --interface"
        ) from None
    listener.detach()  # it is the store's now
    return store, port


def _store_of(place: Place, timeout: timedelta) -> Store | None:
    """Reach the store by which workers find each other: our launcher's; or worker 0's, which
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
        listener = socket.create_server((LOOPBACK, place.port), backlog=1024)
    return TCPStore(
        LOOPBACK if place.one_machine else place.address,
        place.port,
        place.num_workers,
        is_master=first,
        timeout=timeout,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _join(backend: str, place: Place, timeout_seconds: float) -> None:
    if backend == "gloo":
        # torch remembers the Python stack of 2000 collectives, for debugging NCCL: memory that
        # grows for hours where a run has few of them
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    timeout = timedelta(seconds=timeout_seconds)
    with _may_be_lost():
        dist.init_process_group(
            backend,
            rank=place.worker,
            world_size=place.num_workers,
            timeout=timeout,
            store=_store_of(place, timeout),
        )


# ---- the collective


class Network(Collective):
    """Workers that talk through torch.distributed."""

    def __init__(self, place: Place, device: torch.device, timeout_seconds: float) -> None:
        self.worker = place.worker
        self.num_workers = place.num_workers
        self.device = device
        self.timeout_seconds = timeout_seconds
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            _join("nccl" if device.type == "cuda" else "gloo", place, timeout_seconds)
        # Chunks come back through a group of their own: they start whenever a worker is ready, so
        # their order against outgoing buckets differs between workers, their own order does not.
        self.scatter_group: dist.ProcessGroup | None = dist.group.WORLD
        self.gather_group = self.new_group()
        self.row_group: dist.ProcessGroup | None = None
        """The group of messages between all workers, whose order against buckets differs between
        workers."""
        self.early_groups: dict[Travelling, dist.ProcessGroup | None] = {}
        """The groups of sums that leave before a worker's last grain, at a time of each worker's
        own."""
        self.travelling: deque[NetworkBucket] = deque()
        """Buckets whose sums are on their way to the workers that add them."""

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        mine = torch.from_numpy(record).to(self.device)
        work, gathered = self.to_all(mine, self.scatter_group)

        def end() -> list[Record]:
            _wait(work)
            return list(gathered.cpu().numpy().reshape(self.num_workers, -1))

        return end

    def to_all(
        self, mine: Tensor, group: dist.ProcessGroup | None, into: Tensor | None = None
    ) -> tuple[dist.Work | None, Tensor]:
        """Start sending a tensor of one size on all workers to all of them."""
        gathered = mine.new_empty(self.num_workers * mine.numel()) if into is None else into
        if self.device.type == "cpu":
            # gloo's all_gather is a ring: two to four times as long at 2 to 16 workers
            work = dist.all_to_all_single(
                gathered, mine.repeat(self.num_workers), group=group, async_op=True
            )
        else:
            work = dist.all_gather_single(gathered, mine, group=group, async_op=True)
        return work, gathered

    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        # as bytes: gloo carries neither 16-bit integers nor 8-bit floats
        dense = tensor if fills(tensor) else tensor.contiguous()
        flat = dense.detach().as_strided((dense.numel(),), (1,)).view(torch.uint8)
        if flat.numel():
            with _may_be_lost():
                dist.broadcast(flat, src=worker, group=self.scatter_group)
        if dense is not tensor:
            tensor.copy_(dense)

    def bucket(
        self, length: int, dtype: torch.dtype, *, exact: bool, what: Travelling = "gradients"
    ) -> Bucket:
        return NetworkBucket(self, length, dtype, exact=exact, what=what)

    def row_exchange(self) -> RowExchange:
        if self.row_group is None:
            self.row_group = self.new_group()
        return NetworkRows(self)

    def new_group(self) -> dist.ProcessGroup | None:
        """Make one more group of all workers (all of them together)."""
        with _may_be_lost():
            made: dist.ProcessGroup | None = dist.new_group(
                timeout=timedelta(seconds=self.timeout_seconds)
            )
        return made

    def return_chunks(self, until: NetworkBucket | None = None) -> None:
        """Return added chunks, strictly in the order the buckets were sent: as many as have
        arrived, or everything up to one bucket."""
        while self.travelling and (until is not None or self.travelling[0].has_arrived()):
            bucket = self.travelling.popleft()
            bucket.return_chunk()
            if bucket is until:
                return

    def close(self) -> None:
        if self._owns_group and dist.is_initialized():
            # A group ends its threads when the last who holds it lets go. Left for the end of the
            # interpreter, a thread that still has a tensor to free there aborts the process.
            self.scatter_group = self.gather_group = None
            self.row_group = None
            self.early_groups.clear()
            dist.destroy_process_group()


class _Sent(NamedTuple):
    """Sums on their way."""

    work: dist.Work | None
    incoming: Sequence[Tensor]
    """Sums by the worker that they come from."""
    outgoing: Tensor
    """Kept alive while it travels."""


class NetworkBucket(Bucket):
    """Adds over the network in the tree's order.

    A small bucket goes whole (`plan.whole_bytes`): every worker gets all sums (all_to_all) and adds
    them in order. Two workers with one sum each: a plain all-reduce, because a + b has only one
    order. Otherwise every worker owns one chunk of the bucket: all sums of that chunk come to it,
    it adds them in order, and the totals go round (2(N-1)/N of the bucket sent per worker when
    each has one sum: a ring's traffic). Where some worker has several sums, all but its last leave
    one by one, each when it is complete.
    """

    def __init__(
        self,
        collective: Network,
        length: int,
        dtype: torch.dtype,
        *,
        exact: bool,
        what: Travelling,
    ) -> None:
        self._collective = collective
        self._what = what
        self._exact = exact
        self._speed = collective.speed if exact else None
        self._length = length
        self._chunk = -(-length // collective.num_workers)
        padded = self._chunk * collective.num_workers
        self._rows = torch.zeros(1, padded, dtype=dtype, device=collective.device)
        self._work: dist.Work | None = None
        self._early: list[_Sent] = []

    def begin(self, reduction: Reduction) -> None:
        self._reduction = reduction
        mine = reduction.num_sums[self._collective.worker]
        self._early = []
        if mine > len(self._rows):
            self._rows = self._rows.new_zeros(mine, self._rows.shape[1])
        self.rows = self._rows[:mine, : self._length]
        num_bytes = self._length * self._rows.dtype.itemsize
        on_cpu = self._collective.device.type == "cpu"  # NCCL's times were not measured
        self._whole = on_cpu and num_bytes <= whole_bytes(reduction.num_sums, self._speed)
        has_one_order = not self._exact or self._collective.num_workers == 2
        self._plain = has_one_order and max(reduction.num_sums) <= 1 and not self._whole
        if self._plain and mine == 0:
            self._rows[0].fill_(-0.0)  # x + -0.0 is x for every x, +0.0 and -0.0 included
        self._leaves_early = (
            on_cpu and max(reduction.num_sums) > 1 and not (self._plain or self._whole)
        )
        groups = self._collective.early_groups
        if self._leaves_early and self._what not in groups:
            groups[self._what] = self._collective.new_group()
        self._returned = False

    def launch_early(self, row: int) -> None:
        if self._leaves_early:
            counts = [int(row < number - 1) for number in self._reduction.num_sums]
            group = self._collective.early_groups[self._what]
            self._early.append(self._send(row, counts, self._chunk, group))

    def launch(self) -> None:
        group = self._collective.scatter_group
        if self._plain:
            self._work = dist.all_reduce(self._rows[0], group=group, async_op=True)
            self._tell_arrival()
            return
        counts = list(self._reduction.num_sums)
        first = 0
        if self._early:
            first = max(counts[self._collective.worker] - 1, 0)
            counts = [min(number, 1) for number in counts]
        chunk = self._rows.shape[1] if self._whole else self._chunk
        self._sent = self._send(first, counts, chunk, group)
        self._work = self._sent.work
        if self._whole:
            self._tell_arrival()
        else:
            self._collective.travelling.append(self)

    def _send(
        self, first: int, counts: Sequence[int], chunk: int, group: dist.ProcessGroup | None
    ) -> _Sent:
        """Start sending some of this worker's sums: to each worker its chunk of them, or all of
        them where a chunk is the whole bucket. `counts`: how many come from each worker."""
        workers, mine = self._collective.num_workers, counts[self._collective.worker]
        rows = self._rows[first : first + mine]
        if self._whole:
            outgoing = rows.reshape(-1).repeat(workers)
        else:
            # worker w gets chunk w of each of my sums; with one sum that is the row as it lies
            outgoing = rows.view(mine, workers, chunk).transpose(0, 1).reshape(-1)
        incoming = outgoing.new_empty(sum(counts), chunk)
        work = dist.all_to_all_single(
            incoming.view(-1),
            outgoing,
            output_split_sizes=[number * chunk for number in counts],
            input_split_sizes=[mine * chunk] * workers,
            group=group,
            async_op=True,
        )
        return _Sent(work, incoming.split(counts), outgoing)

    def progress(self) -> None:
        self._collective.return_chunks()

    def has_arrived(self) -> bool:
        # On a GPU is_completed() would ask the stream; there finish() queues the rest instead
        works = [sent.work for sent in (*self._early, self._sent)]
        return self._collective.device.type == "cpu" and all(
            work is not None and work.is_completed() for work in works
        )

    def return_chunk(self) -> None:
        """Add the sums of this worker's chunk in the tree's order; send the total to all."""
        group = self._collective.gather_group
        self._work, _ = self._collective.to_all(self._add(), group, into=self._rows[0])
        self._returned = True
        self._tell_arrival()

    def _add(self) -> Tensor:
        """Add the sums that have come, in the tree's order."""
        fault_point("reduction")
        parts = []
        for sent in (*self._early, self._sent):
            _wait(sent.work)
            parts.append(sent.incoming)
        self.tell("adding")
        # by worker, and of each worker the early ones first: the order of the grains
        sums: list[Tensor] = [
            row for of_worker in zip(*parts, strict=True) for part in of_worker for row in part
        ]
        for into, other in self._reduction.additions:
            sums[into].add_(sums[other])
        self.tell("added")
        return sums[0]

    def _tell_arrival(self) -> None:
        if self.watch is not None:
            assert self._work is not None
            self._work.get_future().then(lambda _: self.tell("arrived"))

    def add_chunk(self) -> None:
        if not (self._plain or self._whole or self._returned):
            self._collective.return_chunks(until=self)

    def finish(self) -> Tensor:
        if self._whole:
            self._rows[0].copy_(self._add())
        else:
            _wait(self._work)
        return self._rows[0, : self._length]


# ---- beside it


class Mailbox:
    """Bytes from one process to another, in order; threads may talk to different ones at once.

    Always gloo: NCCL's messages would keep a GPU's stream waiting for a worker that is busy. On
    GPUs weights and gradients therefore pass through main memory (reasoned; not run on one).
    """

    def __init__(self, place: Place, timeout_seconds: float) -> None:
        self.num_workers = place.num_workers
        self.timeout_seconds = timeout_seconds
        _join("gloo", place, timeout_seconds)

    def send(self, message: Tensor, to: int) -> None:
        for tensor in (torch.tensor([message.numel()]), message):
            self._move(dist.isend, tensor, to)

    def receive(self, sender: int) -> Tensor:
        length = torch.empty(1, dtype=torch.int64)
        self._move(dist.irecv, length, sender)
        message = torch.empty(int(length), dtype=torch.uint8)
        self._move(dist.irecv, message, sender)
        return message

    def _move(
        self, begin: Callable[[Tensor, int], dist.Work | None], tensor: Tensor, other: int
    ) -> None:
        if tensor.numel():
            with _may_be_lost(f"worker {other}"):
                work = begin(tensor, other)
                assert work is not None
                work.wait()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class Peers:
    """The workers of a run in a group of their own (of gloo, or on GPUs of NCCL), so that its order
    of calls disturbs no other talk; made by all workers in the same order. Sums are added in its
    order: they are not ours to the bit."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.worker = dist.get_rank()
        self.num_workers = dist.get_world_size()
        timeout = timedelta(seconds=timeout_seconds)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        self._group: dist.ProcessGroup | None = dist.new_group(timeout=timeout, backend=backend)

    def add(self, tensor: Tensor) -> None:
        """Sum all workers' tensors into each worker's."""
        with _may_be_lost():
            dist.all_reduce(tensor, group=self._group)

    def add_begin(self, tensor: Tensor) -> torch.futures.Future[list[Tensor]]:
        """Start summing while the caller goes on; the result ends it."""
        with _may_be_lost():
            work: dist.Work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return work.get_future()

    def collect(self, mine: Tensor) -> list[Tensor]:
        """Gather all workers' tensors on worker 0; elsewhere none."""
        there = range(self.num_workers) if self.worker == 0 else ()
        gathered = [torch.empty_like(mine) for _ in there]
        with _may_be_lost():
            dist.gather(mine, gathered or None, group=self._group)
        return gathered

    def spread(self, tensor: Tensor) -> None:
        """Copy worker 0's tensor to all workers."""
        with _may_be_lost():
            dist.broadcast(tensor, 0, group=self._group)

    def close(self) -> None:
        """Let go of the group, which ends its threads."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


def data_parallel(
    model: nn.Module, reduce: Callable[[int, Tensor], torch.futures.Future[Tensor]]
) -> DistributedDataParallel:
    """Wrap a model in torch's own, as it comes, but for who sums a bucket: `reduce` is given its
    number and its values when it is full, and gives the future with the sums."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP takes annotations, but no strings
        return reduce(bucket.index(), bucket.buffer())

    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, hook)
    return wrapped


class NetworkRows(RowExchange):
    """Sends every message to all other workers at once (all_to_all)."""

    def __init__(self, collective: Network) -> None:
        self._collective = collective

    def begin(self, sizes: Sequence[Sequence[int]]) -> None:
        self._sizes = sizes
        self._rounds: list[tuple[dist.Work | None, Tensor, list[int], Tensor]] = []

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
            _wait(work)
            for worker, message in enumerate(incoming.split(received)):
                if turn < len(self._sizes[worker]):
                    found[worker].append(message)
        return found
