"""Is it the same path at every worker count, and if not, where does it part and why?

In: a recipe and worker counts. Out: a Verdict: a digest per run and, when they do not agree, the
first difference. Every run is what `samepath train` does at that count, through an epoch's end, its
evaluation and its short last batch; one more is saved and continued at other counts. Guaranteed:
bad input raises before anything is trained; runs whose digests, metrics or ends differ are never
called equal; nothing is left on disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samepath.data.sources import TensorSource
from samepath.engine.comm.environment import read_place
from samepath.engine.run.options import Options, Overrides, refuse_recipe, resolve, training_source
from samepath.engine.run.request import Request
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.engine.state import checkpoint
from samepath.engine.state.progress import Display
from samepath.engine.verify.compare import (
    RunParting,
    Values,
    compare_tensors,
    first_difference,
    first_event,
    first_parting,
)
from samepath.engine.verify.explain import AT_END, Cause, Evidence, explain
from samepath.engine.verify.runs import Leg, Recorded, Route, Runner
from samepath.engine.verify.shorten import num_valid, shorten
from samepath.engine.verify.trace import Grains, WorkerTrace, state_path
from samepath.errors import UserError
from samepath.owners import owned_folder
from samepath.recipe import Recipe, find_recipe
from samepath.threads import limited_threads

COUNTS = (1, 2, 3, 5)
"""Tried when none are given: alone, even, uneven."""
ATTEMPTS = 3
"""How often a difference that moves from run to run is chased."""


@dataclass(frozen=True, kw_only=True)
class VerifyRequest(Overrides):
    """What a person asked for."""

    recipe: str
    data: str | None = None
    """Data for a recipe that takes some."""
    keep: str | None = None
    """A keep-list: the examples to train on."""
    counts: Sequence[int] | None = None
    """Worker counts; the first is what the others are compared with."""
    steps: int | None = 20
    tell: Callable[[str], None] = lambda text: None
    """Told what begins."""
    display: Callable[[Options, int], Display] | None = None
    """Makes what worker 0 shows; must pickle."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One run that was compared."""

    num_workers: int
    """That ended it."""
    route: list[Leg]
    """More than one leg where the run was saved, and continued in new processes."""
    status: str
    steps: int
    digest: str
    worker_digests: list[str]
    """Of every worker that ended it."""
    train_loss: float | None
    valid_loss: float | None
    metrics: dict[str, float]
    """Of its last evaluation."""
    seconds: float
    parts_at: int | None
    """The first step at which it is not the first run's path; None when it is the same."""

    @property
    def outcome(self) -> str:
        """Equal texts, equal bits."""
        digests = sorted({self.digest, *self.worker_digests})
        values = [self.train_loss, self.valid_loss, self.metrics]
        return json.dumps([self.status, self.steps, digests, values], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the runs were made of."""

    steps: int
    """Asked for; runs may end before, at a target."""
    steps_per_epoch: int
    num_examples: int
    all_examples: int
    """Before they were made fewer, to reach an epoch's end."""
    last_batch: int
    """Examples of an epoch's last batch."""
    num_valid: int | None
    all_valid: int | None
    resumed_at: list[int]
    """Steps at which one of the runs was saved and continued."""
    loader_workers: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where and why two runs part."""

    num_workers: tuple[int, int]
    resumed_at: int | None
    """The step after which the second run was continued from a checkpoint; None where it parts
    without."""
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
    trained: Trained
    runs: list[Counted]
    difference: Difference | None

    @property
    def equal(self) -> bool:
        """Whether no difference was found, neither on the way nor in how the runs ended."""
        return (
            self.difference is None
            and all(run.parts_at is None for run in self.runs)
            and all(len({run.digest, *run.worker_digests}) == 1 for run in self.runs)
            and len({run.outcome for run in self.runs}) == 1
        )


def verify(request: VerifyRequest) -> Verdict:
    """Train at every count and compare everything the promise covers."""
    threads = request.threads or 1
    with limited_threads(threads):
        recipe, options, counts = _prepare(request, threads)
    plan = StrategySchedule(options).plan(0, ())
    valid, steps = num_valid(recipe), options.steps or 1
    shortened = shorten(plan, valid, steps, max(counts))
    per_epoch = -(-shortened.num_train // plan.batch_size)
    routes: list[Route] = [[Leg(count, steps)] for count in counts]
    stops = stops_of(steps, per_epoch)
    if stops:
        routes.append(_resumed(counts, [*stops, steps]))
    said = request.said
    if request.strategy is not None:
        said["virtual_workers"] = options.virtual_workers
    to_train = Request(
        recipe=request.recipe,
        data=request.data,
        keep=request.keep,
        **said,
        display=request.display,
        source=recipe.origin.source,
        instead=shortened,
    )
    with owned_folder("verify-") as folder:
        runner = Runner(to_train, Path(folder), request.tell)
        runs = [runner.run(route) for route in routes]
        partings = [first_difference(runs[0], run) for run in runs]
        parted = [(p.parting.step, place) for place, p in enumerate(partings) if p is not None]
        difference = None
        if parted:
            _, place = min(parted)
            first = partings[place]
            assert first is not None
            difference = _Look(runner, recipe, runs[0], runs[place]).into(first)
    return Verdict(
        options=options,
        trained=Trained(
            steps=steps,
            steps_per_epoch=per_epoch,
            num_examples=shortened.num_train,
            all_examples=plan.num_examples,
            last_batch=(plan.num_examples - 1) % plan.batch_size + 1,
            num_valid=shortened.num_valid,
            all_valid=valid,
            resumed_at=stops,
            loader_workers=options.loader_workers,
        ),
        runs=[_counted(run, parting) for run, parting in zip(runs, partings, strict=True)],
        difference=difference,
    )


def stops_of(steps: int, per_epoch: int) -> list[int]:
    """Where a run is saved and continued: within the first epoch, and after its end if there are
    steps left."""
    first = max(1, min(per_epoch, steps) // 2)
    second = min(per_epoch + 1, steps - 1)
    return [stop for stop in (first, second if second > first else steps) if stop < steps]


def _resumed(counts: Sequence[int], stops: Sequence[int]) -> Route:
    """A run that begins at another count than the reference and goes on at others."""
    order = [counts[1], counts[0], *counts[2:]]
    return [Leg(order[number % len(order)], stop) for number, stop in enumerate(stops)]


def _prepare(request: VerifyRequest, threads: int) -> tuple[Recipe, Options, list[int]]:
    """Check everything that can be checked."""
    if read_place(os.environ).launcher != "alone":
        raise UserError(
            "verify starts its own workers at every count; run it without torchrun, mpirun or srun"
        )
    if (request.steps or 0) < 1:
        raise UserError(f"--steps {request.steps}: at least one step is needed to compare")
    recipe = find_recipe(request.recipe, request.data, request.keep, threads=threads)
    options = resolve(recipe, request)
    counts = list(request.counts or ())
    if request.strategy is not None and request.virtual_workers is None:
        options = replace(options, virtual_workers=max(counts, default=max(COUNTS)))
    plan = StrategySchedule(options).plan(0, ())
    counts = counts or [count for count in COUNTS if count <= plan.num_grains]
    if len(counts) < 2 and request.counts:
        instead = "1,2" if counts == [1] else f"1,{counts[0]}"
        raise UserError(f"-n {counts[0]}: one run has nothing to agree with; try -n {instead}")
    if len(counts) < 2:
        raise UserError(
            f"a batch of {plan.batch_size} is a single grain, so only one worker can train it; "
            f"add --grain {max(1, plan.batch_size // 2)}"
        )
    for count in counts:
        refuse_recipe(recipe, options, count, plan)
    return recipe, options, counts


def _counted(run: Recorded, found: RunParting | None) -> Counted:
    result = run.last[0].result
    names = ("num_workers", "status", "steps", "digest", "train_loss", "valid_loss", "metrics")
    return Counted(
        **{name: result[name] for name in names},
        route=list(run.route),
        worker_digests=[trace.result["digest"] for trace in run.last],
        seconds=sum(leg[0].result["seconds"] for leg in run.legs),
        parts_at=None if found is None else found.parting.step,
    )


class _Look:
    """Repeats two runs up to the step at which they part, and looks inside."""

    def __init__(self, runner: Runner, recipe: Recipe, one: Recorded, other: Recorded) -> None:
        self._runner = runner
        self._recipe = recipe
        self._runs = (one, other)

    def into(self, first: RunParting) -> Difference:
        """The whole difference, given where the runs part."""
        leg, worker, parting = first
        reproduced = False
        repeatable, event, values, same_gradient = True, None, None, True
        before, other_before = self._runs[0].first, self._runs[1].legs[leg][worker]
        attempts = 0 if parting.name in AT_END or parting.name.startswith("logged ") else ATTEMPTS
        for _ in range(attempts):
            step = parting.step
            one = self._runner.run([Leg(self._runs[0].route[0].num_workers, step)], step)
            route = [*self._runs[1].route[:leg], replace(self._runs[1].route[leg], stop=step)]
            other = self._runner.run(route, step, worker)
            ours, theirs = one.first, other.last[worker]
            for trace, earlier in ((ours, before), (theirs, other_before)):
                repeatable &= first_parting(earlier, trace, step) is None
            again = first_parting(ours, theirs, step)
            if again is not None:
                parting = again
            reproduced = again is not None and again.step == step
            if reproduced:
                validation = parting.name.startswith("valid ")
                event = first_event(_grains(one.last), _grains(other.last), validation=validation)
                values = _values(one.folders[-1], other.folders[-1], parting.name)
                same_gradient = ours.batch_gradient == theirs.batch_gradient
                break
        return self._difference(
            first,
            values,
            Evidence(
                parting=parting if reproduced else first.parting,
                event=event,
                repeatable=repeatable,
                reproduced=reproduced or not attempts,
                resumed_at=self._runs[1].legs[leg][worker].first_step if leg else None,
                same_batch_gradient=same_gradient,
                data_in_memory=isinstance(training_source(self._recipe), TensorSource),
                kinds=before.kinds,
            ),
        )

    def _difference(
        self, found: RunParting, values: Values | None, evidence: Evidence
    ) -> Difference:
        cause = explain(evidence)
        one, other = self._runs
        return Difference(
            num_workers=(len(one.last), len(other.legs[found.leg])),
            resumed_at=evidence.resumed_at,
            worker=found.worker,
            step=evidence.parting.step,
            name=evidence.parting.name,
            values=values,
            grain=None if evidence.event is None else evidence.event.grain,
            module=cause.module,
            module_kind=None if cause.module is None else evidence.kinds.get(cause.module),
            repeatable=evidence.repeatable,
            cause=cause,
        )


def _grains(workers: Sequence[WorkerTrace]) -> Grains:
    return {grain: events for trace in workers for grain, events in trace.grains.items()}


def _values(folder: Path, other: Path, name: str) -> Values | None:
    """How the first differing tensor differs, from the states that were kept."""
    paths = [checkpoint.list_checkpoints(state_path(f)) for f in (folder, other)]
    if not all(paths):  # a run that diverged in this step has no state after it
        return None
    ours, theirs = (checkpoint.load(found[-1]).state.tensors.get(name) for found in paths)
    return None if ours is None or theirs is None else compare_tensors(ours, theirs)
