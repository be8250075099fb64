"""Time stamps from inside a worker: what wraps a recipe and a collective so that both tell.

In: a recipe and a collective. Out: the same, which behave alike and note when they did what.
Guaranteed: nothing that is computed changes; a note costs about a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from samepath.engine.comm.collective import (
    Bucket,
    Collective,
    Record,
    RowExchange,
    Travelling,
)
from samepath.engine.comm.shared_memory import SharedMemory
from samepath.insight.profile.timeline import MainPhase, Phase, TimelineEvent
from samepath.plan import LinkSpeed, Reduction, whole_bytes
from samepath.recipe import Recipe

Given = ParamSpec("Given")
Made = TypeVar("Made")
SHORTEST = 1e-6
"""Seconds; less is the cost of looking at the clock."""


class PhaseRecorder:
    """One worker's notes of when it did what. `events` are of timed steps; others are dropped."""

    now = staticmethod(time.perf_counter)
    """The clock, on Linux one for all processes of a machine."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.events: list[TimelineEvent] = []
        self.in_memory = False
        """Reductions go through shared memory: they are noted with this worker's end, and `meet`
        the others'."""
        self.step: int | None = None
        """The step that is being timed."""
        self._open: tuple[MainPhase, float, str] | None = None
        self._last = 0.0

    def begin_step(self, number: int | None) -> None:
        """Begin a step; None: one that is not timed."""
        self.step = number
        self._began = self._last = self.now()

    def end_step(self) -> None:
        self.note_beside("step", self._began, self.now(), "", self.step)
        self.step = None

    def note(self, phase: MainPhase, begin: float, end: float, name: str = "") -> None:
        """Note what the main thread did."""
        self.note_beside(phase, begin, end, name, self.step)
        self._last = end

    def note_beside(
        self, phase: Phase, begin: float, end: float, name: str, step: int | None, sent: int = 0
    ) -> None:
        """Note what happened beside the main thread, in any thread: which step it belongs to is
        given."""
        if step is not None:
            self.events.append(TimelineEvent(self.worker, step, phase, name, begin, end, sent))

    def switch(self, phase: MainPhase | None, name: str = "") -> None:
        """Note that the main thread goes over to this phase (None: back to what it did before)."""
        now = self.now()
        if self._open is not None:
            was, began, called = self._open
            if now - began > SHORTEST:
                self.note(was, began, now, called)
        self._open = None if phase is None else (phase, now, name)

    def timed(
        self, phase: MainPhase, function: Callable[Given, Made], name: str = ""
    ) -> Callable[Given, Made]:
        """Wrap a function so that its calls are noted as this phase."""

        def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            began = self.now()
            made = function(*args, **kwargs)
            self.note(phase, began, self.now(), name)
            return made

        return call

    def recipe(self, recipe: Recipe) -> Recipe:
        """Wrap a recipe so that its forward passes and augmentations are noted."""
        augment = recipe.augment
        return replace(
            recipe,
            loss=self.timed("forward", recipe.loss),
            augment=None if augment is None else self.timed("load", augment, "augment"),
        )

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note its updates, from what came before (a wait, a backward pass) to the end of its step:
        norms and clipping are in it."""
        optimizer.register_step_post_hook(lambda *_: self.note("update", self._last, self.now()))


class TimedCollective(Collective):
    """A collective that notes waits and reductions."""

    def __init__(self, inner: Collective, recorder: PhaseRecorder) -> None:
        self.worker = inner.worker
        self.num_workers = inner.num_workers
        self.device = inner.device
        self.speed = inner.speed
        self.recorder = recorder
        recorder.in_memory = isinstance(inner, SharedMemory)
        self._inner = inner
        self._num_buckets = 0

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        return self.recorder.timed("wait", self._inner.gather_begin(record), "facts")

    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        self.recorder.timed("wait", self._inner.broadcast, "broadcast")(tensor, worker)

    def bucket(
        self, length: int, dtype: torch.dtype, *, exact: bool, what: Travelling = "gradients"
    ) -> Bucket:
        name = f"bucket {self._num_buckets}"
        self._num_buckets += 1
        inner = self._inner.bucket(length, dtype, exact=exact, what=what)
        speed = self.speed if exact else None
        return TimedBucket(inner, self, name, length * dtype.itemsize, speed)

    def row_exchange(self) -> RowExchange:
        return TimedRows(self._inner.row_exchange(), self)

    def gather_aside(self, mine: bytes) -> list[bytes]:
        return self.recorder.timed("wait", self._inner.gather_aside, "rows")(mine)

    def bytes_sent(self, num_bytes: int, reduction: Reduction, speed: LinkSpeed | None) -> int:
        """Bytes this worker sends to reduce a bucket. In memory: its sums and its chunk of the
        total. On the network: its sums to all workers where they are few bytes, else its sums'
        chunks to their owners and its own chunk's total to all (a ring's bytes where it has one
        sum)."""
        in_memory = self.recorder.in_memory
        if not in_memory and num_bytes <= whole_bytes(reduction.num_sums, speed):
            return num_bytes * reduction.num_sums[self.worker] * (self.num_workers - 1)
        part, sums = num_bytes / self.num_workers, reduction.num_sums[self.worker]
        others = self.num_workers if in_memory else self.num_workers - 1
        return round(part * (sums * others + (1 if in_memory else others)))

    def close(self) -> None:
        self._inner.close()


class TimedRows(RowExchange):
    """An exchange of rows that notes the main thread's waiting."""

    def __init__(self, inner: RowExchange, owner: TimedCollective) -> None:
        self._inner = inner
        self._recorder = owner.recorder
        self._others = owner.num_workers - 1

    def begin(self, sizes: Sequence[Sequence[int]]) -> None:
        self._inner.begin(sizes)
        self._launched: float | None = None
        self._bytes_sent = 0

    def launch(self, message: Tensor) -> None:
        if self._launched is None:
            self._step, self._launched = self._recorder.step, self._recorder.now()
        # in memory a message is written once; on the network it goes to every other worker
        self._bytes_sent += message.numel() * (1 if self._recorder.in_memory else self._others)
        self._inner.launch(message)

    def finish(self) -> list[list[Tensor]]:
        found = self._recorder.timed("wait", self._inner.finish, "rows")()
        assert self._launched is not None
        what = (self._launched, self._recorder.now(), "rows", self._step, self._bytes_sent)
        self._recorder.note_beside("reduction", *what)
        return found


class TimedBucket(Bucket):
    """A bucket that notes: the main thread's adding and waiting, and its way from launch to
    arrival."""

    def __init__(
        self,
        inner: Bucket,
        owner: TimedCollective,
        name: str,
        num_bytes: int,
        speed: LinkSpeed | None,
    ) -> None:
        self._inner = inner
        self._owner = owner
        self._recorder = owner.recorder
        self._name = name
        self._num_bytes = num_bytes
        self._speed = speed
        self._settling = False
        inner.watch = self._told

    def begin(self, reduction: Reduction) -> None:
        self._inner.begin(reduction)
        self.rows = self._inner.rows
        self._bytes_sent = self._owner.bytes_sent(self._num_bytes, reduction, self._speed)

    def launch_early(self, row: int) -> None:
        self._during("reduce", lambda: self._inner.launch_early(row))

    def launch(self) -> None:
        self._step, self._launched = self._recorder.step, self._recorder.now()
        self._during("reduce", self._inner.launch)

    def progress(self) -> None:
        self._inner.progress()

    def add_chunk(self) -> None:
        self._settling = True
        self._during("wait", self._inner.add_chunk)
        self._settling = False

    def finish(self) -> Tensor:
        return self._during("wait", self._inner.finish)

    def _during(self, phase: MainPhase, act: Callable[[], Made]) -> Made:
        self._recorder.switch(phase, self._name)
        made = act()
        self._recorder.switch(None)
        return made

    def _told(self, point: str) -> None:
        recorder = self._recorder
        if point == "adding":
            recorder.switch("reduce", self._name)
        elif point == "added":
            self._added = recorder.now()
            recorder.switch("wait" if self._settling else None, self._name)
        else:  # complete, in memory, when all have added; or arrived, which another thread tells
            end = self._added if recorder.in_memory else recorder.now()
            if recorder.in_memory:
                recorder.switch("reduce", self._name)
            what = (self._launched, end, self._name, self._step, self._bytes_sent)
            recorder.note_beside("reduction", *what)
