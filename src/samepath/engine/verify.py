"""Is it the same path at every worker count, and if not, where does it part and why?

In: a recipe and worker counts. Out: a Verdict: a digest per count and, when they do not agree, the
first difference. Every run is in processes of its own, at one worker too, so that nothing a run
leaves behind reaches the next. Guaranteed: bad input raises before anything is trained; nothing is
left on disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from samepath.data.sources import TensorSource
from samepath.engine import checkpoint
from samepath.engine.cause import Cause, Evidence, explain
from samepath.engine.compare import (
    Parting,
    Values,
    compare_tensors,
    first_event,
    first_parting,
)
from samepath.engine.environment import read_place
from samepath.engine.launch import launch
from samepath.engine.options import Asked, Options, refuse_recipe, resolve, training_source
from samepath.engine.progress import Display
from samepath.engine.trace import Grains, Job, Trace, record, state_path, trace_path
from samepath.errors import UserError
from samepath.recipe import FoundRecipe, find_recipe

COUNTS = (1, 2, 3, 5)
"""Tried when none are given: alone, even, uneven."""
ATTEMPTS = 3
"""How often a difference that moves from run to run is chased."""


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """What a person asked for."""

    recipe: str
    data: str | None = None
    """Data for a recipe that takes some."""
    keep: str | None = None
    """A keep-list: the examples to train on."""
    counts: Sequence[int] | None = None
    """Worker counts; the first is what the others are compared with."""
    asked: Asked = field(default_factory=lambda: Asked(steps=20))
    tell: Callable[[str], None] = lambda text: None
    """Told what begins."""
    display: Callable[[Options, int], Display] | None = None
    """Makes what worker 0 shows; must pickle."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The run at one worker count."""

    num_workers: int
    status: str
    steps: int
    digest: str
    train_loss: float | None
    valid_loss: float | None
    seconds: float
    parts_at: int | None
    """The first step at which it is not the first run's path; None when it is the same."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where and why two runs part."""

    num_workers: tuple[int, int]
    worker: int
    """Of the second run: whose state it is."""
    step: int
    """Completed steps; 0 is before the first."""
    name: str
    """The first tensor of the state (or setting, loss or metric) that differs."""
    values: Values | None
    """How its values differ; None when it is no tensor, or has another shape."""
    grain: int | None
    module: str | None
    """The first module whose output differs for the same grain, or the one that makes an input, a
    buffer or a gradient differ; "" is the model itself."""
    module_kind: str | None
    repeatable: bool
    """The same worker count, run again, gave the same bits."""
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came out."""

    options: Options
    runs: list[Counted]
    difference: Difference | None

    @property
    def equal(self) -> bool:
        return self.difference is None


def verify(request: VerifyRequest) -> Verdict:
    """Train at every count and compare everything the promise covers."""
    found, options, counts = _prepare(request)
    with tempfile.TemporaryDirectory(prefix="samepath-verify-") as folder:
        run = _Runner(request, options, Path(folder))
        traces = [run.at(count) for count in counts]
        reference = traces[0][0]
        partings = [_first_worker(reference, workers) for workers in traces]
        runs = [
            _counted(workers[0], parting) for workers, parting in zip(traces, partings, strict=True)
        ]
        parted = [(p.parting.step, place) for place, p in enumerate(partings) if p is not None]
        difference = None
        if parted:
            _, place = min(parted)
            first = partings[place]
            assert first is not None
            look = _Look(run, found, counts[0], counts[place])
            difference = look.into(first, reference, traces[place][first.worker])
    return Verdict(options=options, runs=runs, difference=difference)


def _prepare(request: VerifyRequest) -> tuple[FoundRecipe, Options, list[int]]:
    """Check everything that can be checked."""
    if read_place(os.environ).launcher != "alone":
        raise UserError(
            "verify starts its own workers at every count; run it without torchrun, mpirun or srun"
        )
    if (request.asked.steps or 0) < 1:
        raise UserError(f"--steps {request.asked.steps}: at least one step is needed to compare")
    found = find_recipe(request.recipe, request.data, request.keep)
    options = resolve(found, request.asked)
    most = options.plan.num_grains
    counts = list(request.counts or (count for count in COUNTS if count <= most))
    if len(counts) < 2 and request.counts:
        instead = "1,2" if counts == [1] else f"1,{counts[0]}"
        raise UserError(f"-n {counts[0]}: one run has nothing to agree with; try -n {instead}")
    if len(counts) < 2:
        raise UserError(
            f"a batch of {options.batch_size} is a single grain, so only one worker can train it; "
            f"add --grain {max(1, options.batch_size // 2)}"
        )
    for count in counts:
        refuse_recipe(found.recipe, options, count)
    return found, options, counts


class _Runner:
    """Starts recorded runs and reads what they leave."""

    def __init__(self, request: VerifyRequest, options: Options, folder: Path) -> None:
        self._request = request
        self.options = options
        self._folder = folder
        self._number = 0

    def at(self, count: int, look_into: int | None = None, keep_worker: int = 0) -> list[Trace]:
        """What every worker saw; with `look_into`, of a run that ends at that step."""
        options = self.options
        if look_into is not None:
            options = replace(options, steps=look_into)
        self._number += 1
        folder = self.folder
        folder.mkdir()
        verb = "training" if look_into is None else f"looking into step {look_into} of"
        self._request.tell(
            f"{verb} {options.recipe} on {count} {'worker' if count == 1 else 'workers'}"
        )
        job = Job(
            options=options,
            folder=folder,
            look_into=look_into,
            keep_worker=keep_worker,
            display=self._request.display,
        )
        launch(record, (job,), count)
        return [Trace.read(trace_path(folder, worker)) for worker in range(count)]

    @property
    def folder(self) -> Path:
        """Of the newest run."""
        return self._folder / f"run-{self._number}"


class _WorkerParting(NamedTuple):
    worker: int
    parting: Parting


def _first_worker(
    reference: Trace, workers: Sequence[Trace], last_step: int | None = None
) -> _WorkerParting | None:
    """Which worker leaves the reference first. All workers of a run hold the whole state."""
    found = [
        _WorkerParting(worker, parting)
        for worker, trace in enumerate(workers)
        if (parting := first_parting(reference, trace, last_step)) is not None
    ]
    return min(found, key=lambda f: (f.parting.step, f.worker), default=None)


def _counted(trace: Trace, parting: _WorkerParting | None) -> Counted:
    names = ("num_workers", "status", "steps", "digest", "train_loss", "valid_loss", "seconds")
    return Counted(
        **{name: trace.result[name] for name in names},
        parts_at=None if parting is None else parting.parting.step,
    )


class _Look:
    """Repeats two runs up to the step at which they part, and looks inside."""

    def __init__(self, run: _Runner, found: FoundRecipe, count: int, other: int) -> None:
        self._run = run
        self._found = found
        self._counts = (count, other)

    def into(self, first: _WorkerParting, before: Trace, other_before: Trace) -> Difference:
        """The whole difference, given what the first runs of both counts saw."""
        worker, parting = first
        reproduced = False
        repeatable, event, values, same_gradient = True, None, None, True
        for _ in range(ATTEMPTS):
            step = parting.step
            traces = self._run.at(self._counts[0], step)
            folder = self._run.folder
            others = self._run.at(self._counts[1], step, worker)
            ours, theirs = traces[0], others[worker]
            for trace, earlier in ((ours, before), (theirs, other_before)):
                repeatable &= first_parting(earlier, trace, step) is None
            again = first_parting(ours, theirs, step)
            if again is not None:
                parting = again
            reproduced = again is not None and again.step == step
            if reproduced:
                validation = parting.name.startswith("valid ")
                event = first_event(_grains(traces), _grains(others), validation=validation)
                values = _values(folder, self._run.folder, parting.name)
                same_gradient = ours.batch_gradient == theirs.batch_gradient
                break
        return self._difference(
            worker,
            values,
            Evidence(
                parting=parting if reproduced else first.parting,
                event=event,
                repeatable=repeatable,
                reproduced=reproduced,
                same_batch_gradient=same_gradient,
                data_in_memory=isinstance(training_source(self._found.recipe), TensorSource),
                kinds=before.kinds,
            ),
        )

    def _difference(self, worker: int, values: Values | None, evidence: Evidence) -> Difference:
        cause = explain(evidence)
        return Difference(
            num_workers=self._counts,
            worker=worker,
            step=evidence.parting.step,
            name=evidence.parting.name,
            values=values,
            grain=None if evidence.event is None else evidence.event.grain,
            module=cause.module,
            module_kind=None if cause.module is None else evidence.kinds.get(cause.module),
            repeatable=evidence.repeatable,
            cause=cause,
        )


def _grains(workers: Sequence[Trace]) -> Grains:
    return {grain: events for trace in workers for grain, events in trace.grains.items()}


def _values(folder: Path, other: Path, name: str) -> Values | None:
    """How the first differing tensor differs, from the states that were kept."""
    paths = [checkpoint.list_checkpoints(state_path(f)) for f in (folder, other)]
    if not all(paths):  # a run that diverged in this step has no state after it
        return None
    ours, theirs = (checkpoint.load(found[-1]).state.tensors.get(name) for found in paths)
    return None if ours is None or theirs is None else compare_tensors(ours, theirs)
