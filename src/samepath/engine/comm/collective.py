"""Communication between workers: small records, and buckets of sums.

In: who this worker is. Out: a Collective: small records gathered from all workers, and buckets of
partial sums that become one total. Three kinds: `Alone` here, `Network` and `SharedMemory` in files
of their own. Guaranteed: a bucket's total is added in the order the Reduction says, bit for bit,
whatever the kind; every wait has a limit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath.data.loaders import TIMEOUT_SECONDS
from samepath.plan import LinkSpeed, Reduction

Record: TypeAlias = NDArray[np.uint8]
Number = TypeVar("Number", np.int64, np.float64)
Travelling: TypeAlias = Literal["gradients", "buffers"]


class Bucket(ABC):
    """Room for one worker's partial sums of a fixed stretch of values, and for their total."""

    rows: Tensor
    """(sums, length): this worker's partial sums. Each but the last is to be filled before its
    `launch_early`, the last before `launch`."""
    watch: Callable[[str], None] | None = None
    """Told "adding" and "added" around this worker's part of the additions, and when the total is
    there: "complete" before it is copied out, or "arrived", by another thread, from the network."""

    def tell(self, point: str) -> None:
        if self.watch is not None:
            self.watch(point)

    @abstractmethod
    def begin(self, reduction: Reduction) -> None:
        """Get ready for a batch with this reduction (the same one on every worker)."""

    def launch_early(self, row: int) -> None:
        """Send one of the sums that no later grain of this worker changes, where it must travel.
        Called for every row but the last of the worker that has most, in order, and in the same
        order of buckets on every worker; who has no such row sends nothing."""
        return

    @abstractmethod
    def launch(self) -> None:
        """Start adding; buckets are launched in the same order on every worker."""

    @abstractmethod
    def progress(self) -> None:
        """Move on if that is possible without waiting."""

    @abstractmethod
    def add_chunk(self) -> None:
        """Wait for all workers' sums and do this worker's part of adding them."""

    @abstractmethod
    def finish(self) -> Tensor:
        """Wait for the others' parts too, and return the total: this worker's own memory, valid
        until the next launch. `add_chunk` of all buckets before `finish` of any saves waits."""


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
    speed: LinkSpeed | None = None
    """Of the network, the same on every worker; None: they share memory, or it was not measured."""

    @abstractmethod
    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        """Start gathering a record of one size from all workers; the result ends it."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        """Overwrite all workers' tensor with one worker's."""

    @abstractmethod
    def bucket(
        self, length: int, dtype: torch.dtype, *, exact: bool, what: Travelling = "gradients"
    ) -> Bucket:
        """Make a bucket of so many values. Early sums of gradients and those of buffers pass each
        other: their order differs between workers."""

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
        """Say whether it is true on every worker."""
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

    def bucket(
        self, length: int, dtype: torch.dtype, *, exact: bool, what: Travelling = "gradients"
    ) -> Bucket:
        raise AssertionError("one worker adds its own sums and needs no bucket")

    def row_exchange(self) -> RowExchange:
        raise AssertionError("one worker has all rows")

    def close(self) -> None:
        pass
