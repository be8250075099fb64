"""Two ways to bring gradients together: buckets of a fixed layout, and a queue with a coordinator.

In: for every trial when each gradient is there on all workers, and what reducing bytes costs. Out:
when the last total is there, how long the link was busy, and how much of that lay behind computing.
Guaranteed: reductions follow one another on the link, none starts before all workers have its
gradients. Trials are computed at once; loops run over buckets, or over the queue's busy cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.plan import BUCKET_BYTES
from samepath.timing.links import Algorithm, Cost

Floats: TypeAlias = NDArray[np.float64]
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Buckets of a fixed layout, in a fixed order, each as soon as all workers have it."""

    bucket_bytes: int = BUCKET_BYTES
    first_bucket_bytes: int | None = None
    """DDP makes its first bucket small, so that something starts soon."""
    algorithm: Algorithm = "samepath"
    overlap: bool = True
    """Buckets leave during the last grain; else after it."""
    stale: bool = False
    """Buckets are those of the step before, and leave when a step begins."""


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Horovod's way: workers announce gradients; every cycle a coordinator finds those that all
    have announced, and they are reduced in fused buffers.

    The defaults are Horovod's before 0.21, those of Gahlot et al. 2020 ("we use default parameters
    for buffer size and cycle time"); 0.21 made them 1 ms and 128 MiB (pull request 2468).
    """

    cycle_seconds: float = 5e-3
    fusion_bytes: int = 64 * MIB
    message_seconds: float = 0.35e-6
    """Of the coordinator's time for one announcement: one gradient of one worker. Assumed: Romero
    et al. 2022 (NSDI) made Horovod twice as fast at 6000 GPUs of Summit by caching announcements;
    were that ResNet-50's 161 gradients in steps of 0.2 s, it would be about 0.35 us. 0 stands for
    the cache (pull request 902, 2019), which sends a bit vector instead."""
    algorithm: Algorithm = "ring"
    waits: bool = True
    """The queue's thread reduces by itself (MPI or gloo on CPUs), so no cycle begins meanwhile;
    False: it only starts reductions (NCCL)."""

    def __post_init__(self) -> None:
        if self.cycle_seconds <= 0.0 or self.fusion_bytes < 0 or self.message_seconds < 0.0:
            raise UserError(
                f"a cycle of {self.cycle_seconds:g} s, a buffer of {self.fusion_bytes} bytes and "
                f"{self.message_seconds:g} s a message: the cycle is above 0, nothing below"
            )


Policy: TypeAlias = Buckets | Queue
HOROVOD_TODAY = Queue(cycle_seconds=1e-3, fusion_bytes=128 * MIB, message_seconds=0.0)
"""0.21 and later, with its cache."""
DDP = Buckets(bucket_bytes=25 * MIB, first_bucket_bytes=MIB, algorithm="ring")
"""torch's DistributedDataParallel with its defaults."""


class Exchange(NamedTuple):
    """One value per trial."""

    finished: Floats
    """When the last total is there."""
    busy: Floats
    """Seconds the link was reducing."""
    hidden: Floats
    """Of these, how many while some worker still computed."""


def bucket_up(num_bytes: Sequence[int], policy: Buckets) -> tuple[list[int], list[int]]:
    """The bytes of each bucket and the number of its last gradient, as the engine fills them: a
    gradient that no longer fits opens the next bucket."""
    sizes: list[int] = []
    last: list[int] = []
    for number, size in enumerate(num_bytes):
        room = policy.bucket_bytes
        if len(sizes) == 1 and policy.first_bucket_bytes is not None:
            room = policy.first_bucket_bytes
        if not sizes or sizes[-1] + size > room:
            sizes.append(0)
            last.append(number)
        sizes[-1] += size
        last[-1] = number
    return sizes, last


LANES = 2
"""gloo has so many threads, each of which sees one exchange to its end."""


class _Link:
    """Reduces one thing after another, in every trial; latencies of LANES of them overlap."""

    def __init__(self, computed: Floats) -> None:
        self._computed = computed
        self.free = np.zeros_like(computed)
        self._lanes = [np.zeros_like(computed)] * LANES
        self.there = np.zeros_like(computed)
        self.busy = np.zeros_like(computed)
        self.hidden = np.zeros_like(computed)

    def reduce(self, ready: Floats, seconds: Floats | float, latency: float = 0.0) -> None:
        """Reduce as soon as it is ready and the link and a lane are free; nothing where it takes
        0 s. The total is there a latency later."""
        taken = np.broadcast_to(seconds, ready.shape)
        lane = self._lanes[0] if latency else self.free
        start = np.maximum(np.maximum(ready, self.free), lane)
        end = start + taken
        self.free = np.where(taken > 0.0, end, self.free)
        self._arrive(np.where(taken > 0.0, end + latency, self.there))
        self.busy = self.busy + taken
        self.hidden = self.hidden + np.clip(self._computed - start, 0.0, taken)

    def tell(self, seconds: float) -> None:
        """Something small, after computing: it takes a lane, but not the link."""
        self._arrive(np.maximum(self._computed, self._lanes[0]) + seconds)

    def _arrive(self, when: Floats) -> None:
        self._lanes = [*self._lanes[1:], when]
        self.there = np.maximum(self.there, when)

    def result(self) -> Exchange:
        return Exchange(np.maximum(self.there, self._computed), self.busy, self.hidden)


def run_buckets(
    ready: Floats,
    computed: Floats,
    num_bytes: Sequence[int],
    cost: Cost,
    policy: Buckets,
    *,
    buffer_bytes: int = 0,
) -> Exchange:
    """`ready`: (trials, gradients), rising; `computed`: (trials,), when the slowest is done. Our
    own engine also adds buffers, and exchanges records, after computing."""
    link = _Link(computed)
    for size, last in zip(*bucket_up(num_bytes, policy), strict=True):
        when = ready[:, last] if policy.overlap else computed
        if policy.stale:
            when = np.zeros_like(computed)
        link.reduce(when, cost.occupied(size), cost.latency_seconds)
    if policy.algorithm == "samepath":
        if buffer_bytes:
            link.reduce(computed, cost.occupied(buffer_bytes), cost.latency_seconds)
        link.tell(cost.record_seconds)
    return link.result()


def run_queue(
    ready: Floats,
    computed: Floats,
    num_bytes: Sequence[int],
    cost: Cost,
    policy: Queue,
    *,
    workers: int,
    agree_seconds: float,
    phase: Floats,
) -> Exchange:
    """Run the queue, as `run_buckets` does buckets. `agree_seconds`: of a round from all workers to
    the coordinator and back; `phase`: (trials,) in [0, 1), where in a cycle the step begins.

    Cycles in which nothing is ready are passed over at once. An announcement counts in the cycle in
    which the last worker makes it; in truth those of quick workers are read in earlier ones.
    """
    num = len(num_bytes)
    bytes_before = np.concatenate([[0], np.cumsum(num_bytes)])
    rows = np.arange(len(computed))
    link = _Link(computed)
    idle_cycle = max(policy.cycle_seconds, agree_seconds)
    now = phase * idle_cycle
    done = np.zeros(len(computed), np.int64)
    while (done < num).any():
        next_ready = ready[rows, np.minimum(done, num - 1)]
        now = now + idle_cycle * np.ceil(np.maximum(next_ready - now, 0.0) / idle_cycle)
        found = np.maximum((ready <= now[:, None]).sum(axis=1), done)
        agreed = now + agree_seconds + policy.message_seconds * workers * (found - done)
        while (done < found).any():
            full = np.searchsorted(
                bytes_before, bytes_before[done] + policy.fusion_bytes, side="right"
            )
            upto = np.minimum(np.maximum(full - 1, done + 1), found)
            size = bytes_before[upto] - bytes_before[done]
            seconds = cost.fixed_seconds + size * cost.seconds_per_byte
            link.reduce(agreed, np.where(upto > done, seconds, 0.0), cost.latency_seconds)
            done = upto
        free = np.maximum(link.there, agreed) if policy.waits else agreed
        now = np.maximum(now + policy.cycle_seconds, free)
    return link.result()
