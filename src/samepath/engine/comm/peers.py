"""Plain sums between the workers of a session, for engines that are compared with ours.

In: workers that have joined (a Network, or shared memory above one). Out: tensors summed or passed
on over a gloo group of their own, so that its order of calls disturbs no other talk.
Guaranteed: every wait has the group's limit; a peer that left becomes one clear error. Sums are
added in gloo's order: they are not ours to the bit. torch.distributed stays in here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from samepath.engine.comm.collective import wait
from samepath.errors import WorkerLost


class Peers:
    """The workers of a run in a group of their own. Made by all workers in the same order."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.worker = dist.get_rank()
        self.num_workers = dist.get_world_size()
        timeout = timedelta(seconds=timeout_seconds)
        self._group: dist.ProcessGroup | None = dist.new_group(timeout=timeout, backend="gloo")

    def add(self, tensor: Tensor) -> None:
        """Sum all workers' tensors into each worker's."""
        wait(self._begun(lambda: dist.all_reduce(tensor, group=self._group, async_op=True)))

    def add_begin(self, tensor: Tensor) -> torch.futures.Future[list[Tensor]]:
        """Start summing while the caller goes on; the result ends it."""
        return self._begun(
            lambda: dist.all_reduce(tensor, group=self._group, async_op=True)
        ).get_future()

    def collect(self, mine: Tensor) -> list[Tensor]:
        """Gather all workers' tensors on worker 0; elsewhere none."""
        gathered = (
            [torch.empty_like(mine) for _ in range(self.num_workers)] if self.worker == 0 else None
        )
        wait(self._begun(lambda: dist.gather(mine, gathered, group=self._group, async_op=True)))
        return gathered or []

    def spread(self, tensor: Tensor) -> None:
        """Copy worker 0's tensor to all workers."""
        wait(self._begun(lambda: dist.broadcast(tensor, 0, group=self._group, async_op=True)))

    def _begun(self, begin: Callable[[], dist.Work | None]) -> dist.Work:
        try:
            work = begin()
        except RuntimeError as error:
            raise WorkerLost(f"another worker left or stopped answering ({error})") from error
        assert work is not None
        return work

    def close(self) -> None:
        """Let go of the group, which ends its threads."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


def data_parallel(
    model: nn.Module, reduce: Callable[[int, Tensor], torch.futures.Future[Tensor]]
) -> DistributedDataParallel:
    """torch's own, as it comes, but for who sums a bucket: `reduce` is given its number and its
    values when it is full, and gives the future with the sums."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP takes annotations, but no strings
        return reduce(bucket.index(), bucket.buffer())

    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, hook)
    return wrapped
