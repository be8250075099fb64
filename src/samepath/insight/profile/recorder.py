"""Time stamps from inside a worker: what wraps a recipe and a collective so that both tell.

In: a recipe and a collective. Out: the same, which behave alike and note when they did what.
Guaranteed: nothing that is computed changes; a note costs about a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from samepath.engine.comm.collective import Bucket, Collective, Record
from samepath.engine.comm.shared_memory import SharedMemory
from samepath.insight.profile.timeline import Event, MainPhase, Phase
from samepath.plan import Reduction
from samepath.recipe import Recipe

Given = ParamSpec("Given")
Made = TypeVar("Made")
SHORTEST = 1e-6
"""Seconds; less is the cost of looking at the clock."""


class Recorder:
    """One worker's notes. `events` are of timed steps; those of others are dropped."""

    now = staticmethod(time.perf_counter)
    """On Linux one clock for all processes of a machine."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.events: list[Event] = []
        self.shared: list[Event] = []
        """Reductions in shared memory: with this worker's end, to `meet` the others'."""
        self.step: int | None = None
        """The step that is being timed."""
        self._open: tuple[MainPhase, float, str] | None = None
        self._last = 0.0

    def begin_step(self, number: int | None) -> None:
        """None: a step that is not timed."""
        self.step = number
        self._began = self._last = self.now()

    def end_step(self) -> None:
        self._add("step", self._began, self.now(), "", self.step)
        self.step = None

    def note(self, phase: MainPhase, begin: float, end: float, name: str = "") -> None:
        """What the main thread did."""
        self._add(phase, begin, end, name, self.step)
        self._last = end

    def note_beside(
        self,
        phase: Literal["reduction", "negotiation"],
        begin: float,
        end: float,
        name: str,
        step: int | None,
        sent: int = 0,
    ) -> None:
        """What happened beside it, told by any thread: which step it belongs to is said."""
        self._add(phase, begin, end, name, step, sent)

    def note_shared(self, begin: float, end: float, name: str, step: int | None, sent: int) -> None:
        """A reduction in shared memory has ended as far as this worker has to do with it."""
        self._add("reduction", begin, end, name, step, sent, self.shared)

    def _add(
        self,
        phase: Phase,
        begin: float,
        end: float,
        name: str,
        step: int | None,
        sent: int = 0,
        into: list[Event] | None = None,
    ) -> None:
        if step is not None:
            (self.events if into is None else into).append(
                Event(
                    worker=self.worker,
                    step=step,
                    phase=phase,
                    name=name,
                    begin=begin,
                    end=end,
                    bytes_sent=sent,
                )
            )

    def switch(self, phase: MainPhase | None, name: str = "") -> None:
        """The main thread goes over to this phase (or back to what it did before)."""
        now = self.now()
        if self._open is not None:
            was, began, called = self._open
            if now - began > SHORTEST:
                self.note(was, began, now, called)
        self._open = None if phase is None else (phase, now, name)

    def timed(
        self, phase: MainPhase, function: Callable[Given, Made], name: str = ""
    ) -> Callable[Given, Made]:
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            began = self.now()
            made = function(*args, **kwargs)
            self.note(phase, began, self.now(), name)
            return made

        return call

    def each(self, phase: MainPhase, values: Iterator[Made]) -> Iterator[Made]:
        """The same values, each timed as it is fetched."""
        fetch = self.timed(phase, lambda: next(values))
        while True:
            try:
                yield fetch()
            except StopIteration:
                return

    def recipe(self, recipe: Recipe) -> Recipe:
        """A recipe whose forward passes and augmentations are timed."""
        augment = recipe.augment
        return replace(
            recipe,
            loss=self.timed("forward", recipe.loss),
            augment=None if augment is None else self.timed("load", augment, "augment"),
        )

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Its updates: from whatever came before (a wait, a backward pass) to the end of its step,
        so that norms and clipping are in it."""
        optimizer.register_step_post_hook(lambda *_: self.note("update", self._last, self.now()))


class TimedCollective(Collective):
    """A collective that notes waits and reductions."""

    def __init__(self, inner: Collective, recorder: Recorder) -> None:
        self.worker = inner.worker
        self.num_workers = inner.num_workers
        self.device = inner.device
        self._inner = inner
        self._recorder = recorder
        self._num_buckets = 0

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        return self._recorder.timed("wait", self._inner.gather_begin(record), "facts")

    def broadcast(self, tensor: Tensor, worker: int = 0) -> None:
        self._recorder.timed("wait", self._inner.broadcast, "broadcast")(tensor, worker)

    def bucket(self, length: int, dtype: torch.dtype, *, exact: bool) -> Bucket:
        self._num_buckets += 1
        return TimedBucket(
            self._inner.bucket(length, dtype, exact=exact),
            self._recorder,
            name=f"bucket {self._num_buckets - 1}",
            num_bytes=length * dtype.itemsize,
            num_workers=self.num_workers,
            worker=self.worker,
            in_memory=isinstance(self._inner, SharedMemory),
        )

    def close(self) -> None:
        self._inner.close()


class TimedBucket(Bucket):
    """A bucket that notes: the main thread's adding and waiting, and its way from launch to
    arrival."""

    def __init__(
        self,
        inner: Bucket,
        recorder: Recorder,
        *,
        name: str,
        num_bytes: int,
        num_workers: int,
        worker: int,
        in_memory: bool,
    ) -> None:
        self._inner = inner
        self._recorder = recorder
        self._name = name
        self._num_bytes = num_bytes
        self._num_workers = num_workers
        self._worker = worker
        self._in_memory = in_memory
        self._settling = False
        inner.watch = self._told

    def begin(self, reduction: Reduction) -> None:
        self._inner.begin(reduction)
        self.rows = self._inner.rows
        # In memory: its sums and its chunk of the total. On the network: its sums' chunks to their
        # owners and its own chunk's total to everybody (a ring's bytes where it has one sum).
        part = self._num_bytes / self._num_workers
        mine = reduction.num_sums[self._worker]
        others = self._num_workers if self._in_memory else self._num_workers - 1
        self._bytes_sent = round(part * (mine * others + (1 if self._in_memory else others)))

    def launch(self) -> None:
        recorder = self._recorder
        self._step, self._launched = recorder.step, recorder.now()
        recorder.switch("reduce", self._name)
        self._inner.launch()
        recorder.switch(None)

    def progress(self) -> None:
        self._inner.progress()

    def settle(self) -> None:
        self._settling = True
        self._recorder.switch("wait", self._name)
        self._inner.settle()
        self._recorder.switch(None)
        self._settling = False

    def finish(self) -> Tensor:
        self._recorder.switch("wait", self._name)
        total = self._inner.finish()
        self._recorder.switch(None)
        return total

    def _told(self, point: str) -> None:
        recorder = self._recorder
        if point == "adding":
            recorder.switch("reduce", self._name)
        elif point == "added":
            self._added = recorder.now()
            recorder.switch("wait" if self._settling else None, self._name)
        elif point == "complete":
            recorder.switch("reduce", self._name)
            recorder.note_shared(
                self._launched, self._added, self._name, self._step, self._bytes_sent
            )
        else:  # arrived; another thread tells it
            recorder.note_beside(
                "reduction",
                self._launched,
                recorder.now(),
                self._name,
                self._step,
                self._bytes_sent,
            )
