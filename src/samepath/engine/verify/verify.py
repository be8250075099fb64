"""Is it the same path at every worker count, and if not, where does it part and why?

In: a recipe and worker counts. Out: a Verdict: a digest per run and, when they do not agree, the
first difference. Every run is what `samepath train` does at that count, through an epoch's end, its
evaluation and its short last batch; one more is saved and continued at other counts. Guaranteed:
bad input raises before anything is trained; runs whose digests, metrics or ends differ are never
called equal; nothing is left on disk.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samepath.console import Watcher
from samepath.data.sources import DatasetSource, TensorSource, as_source
from samepath.engine.comm.environment import read_place
from samepath.engine.run.options import Options, Overrides, refuse_recipe, resolve
from samepath.engine.run.request import Request
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.engine.state import checkpoint
from samepath.engine.verify.compare import (
    RunParting,
    Values,
    compare_tensors,
    first_difference,
    first_event,
    first_parting,
)
from samepath.engine.verify.explain import AT_END, Cause, Evidence, explain
from samepath.engine.verify.items import find_escape
from samepath.engine.verify.runs import Leg, Recorded, Route, Runner, num_valid, shorten
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
    keep: str | None = None
    counts: Sequence[int] | None = None
    """Worker counts; the first is what the others are compared with."""
    steps: int | None = 20
    tell: Callable[[str], None] = lambda text: None
    """Told what begins."""
    display: Callable[[], Watcher] | None = None
    """Makes what worker 0 shows; must pickle."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One run that was compared."""

    num_workers: int
    """Workers that ended it."""
    route: list[Leg]
    """More than one leg where the run was saved, and continued in new processes."""
    status: str
    steps: int
    digest: str
    worker_digests: list[str]
    train_loss: float | None
    valid_loss: float | None
    metrics: dict[str, float]
    """What its last evaluation found."""
    seconds: float
    parts_at: int | None
    """The first step at which it is not the first run's path; None when it is the same."""

    @property
    def outcome(self) -> str:
        """How the run ended, as a text: equal texts, equal bits."""
        values = [self.digest, self.train_loss, self.valid_loss, self.metrics]
        return json.dumps([self.status, self.steps, values], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the runs were made of."""

    steps: int
    """Steps asked for; runs may end before, at a target."""
    steps_per_epoch: int
    num_examples: int
    all_examples: int
    """Examples before they were made fewer, to reach an epoch's end."""
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
    """The step after which the second run was continued from a checkpoint, where it was."""
    worker: int
    """The worker of the second run whose state differs."""
    step: int
    """Completed steps; 0 is before the first."""
    name: str
    """The first tensor of the state (or setting, loss or metric) that differs."""
    values: Values | None
    """How its values differ; None when it is no tensor, or has another shape."""
    grain: int | None
    module: str | None
    """The cause's module; "" is the model itself."""
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
            and all({run.digest} == set(run.worker_digests) for run in self.runs)
            and len({run.outcome for run in self.runs}) == 1
        )


def verify(request: VerifyRequest) -> Verdict:
    """Train at every count and compare everything the promise covers."""
    threads = request.threads or 1
    with limited_threads(threads):
        recipe, options, counts = _prepare(request, threads)
    plan, valid = StrategySchedule(options).plan(0, ()), num_valid(recipe)
    steps = options.steps or 1
    shortened = shorten(plan, valid, steps, max(counts))
    per_epoch = -(-shortened.num_train // plan.batch_size)
    routes: list[Route] = [[Leg(count, steps)] for count in counts]
    stops = stops_of(steps, per_epoch)
    if stops:  # one more begins at another count than the reference, and goes on at others
        order = [counts[1], counts[0], *counts[2:]]
        resumed = zip(itertools.cycle(order), [*stops, steps], strict=False)
        routes.append([Leg(count, stop) for count, stop in resumed])
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
        parted = [(p, run) for p, run in zip(partings, runs, strict=True) if p is not None]
        difference = None
        if parted:
            first, run = min(parted, key=lambda each: each[0].parting.step)
            source = as_source(recipe.train, seed=0, collate=recipe.collate)
            in_memory = isinstance(source, TensorSource)
            difference = _look_into(first, runner, runs[0], run, data_in_memory=in_memory)
            difference = replace(difference, cause=_with_escape(difference.cause, recipe, options))
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
    """Say where a run is saved and continued: within the first epoch, and after its end if there
    are steps left."""
    first = max(1, min(per_epoch, steps) // 2)
    second = min(per_epoch + 1, steps - 1)
    return [stop for stop in (first, second if second > first else steps) if stop < steps]


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
            "add --max-workers 2"
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
        seconds=result["seconds"],
        parts_at=None if found is None else found.parting.step,
    )


def _with_escape(cause: Cause, recipe: Recipe, options: Options) -> Cause:
    """Add to a cause in the data which function gives something else each time, where one does."""
    if cause.where != "data":
        return cause
    for data in (recipe.train, recipe.valid):
        if data is None:
            continue
        source = as_source(data, seed=options.seed, collate=recipe.collate)
        escape = find_escape(source) if isinstance(source, DatasetSource) else None
        if escape is not None:
            found = f"{escape} returns something else when an example is loaded again"
            return replace(cause, found=f"{cause.found}; {found}")
    return cause


def _look_into(
    first: RunParting, runner: Runner, one: Recorded, other: Recorded, *, data_in_memory: bool
) -> Difference:
    """Repeat two runs up to the step at which they part, and look inside."""
    leg, worker, parting = first
    ours, theirs = one.first, other.legs[leg][worker]
    evidence = Evidence(
        parting=parting,
        event=None,
        repeatable=True,
        reproduced=parting.name in AT_END or parting.name.startswith("logged "),
        resumed_at=theirs.first_step if leg else None,
        data_in_memory=data_in_memory,
        kinds=ours.kinds,
    )
    values = None
    for _ in range(0 if evidence.reproduced else ATTEMPTS):
        step = parting.step
        mine = runner.run([Leg(one.route[0].num_workers, step)], step)
        route = [*other.route[:leg], replace(other.route[leg], stop=step)]
        yours = runner.run(route, step, worker)
        for before, now in ((ours, mine.first), (theirs, yours.last[worker])):
            if first_parting(before, now, step) is not None:
                evidence = replace(evidence, repeatable=False)
        again = first_parting(mine.first, yours.last[worker], step)
        if again is None:
            continue
        parting = again
        if parting.step == step:
            validation = parting.name.startswith("valid ")
            gradients = mine.first.batch_gradient, yours.last[worker].batch_gradient
            evidence = replace(
                evidence,
                parting=parting,
                event=first_event(_grains(mine.last), _grains(yours.last), validation=validation),
                reproduced=True,
                same_batch_gradient=gradients[0] == gradients[1],
            )
            values = _values(mine.folders[-1], yours.folders[-1], parting.name)
            break
    cause = explain(evidence)
    return Difference(
        num_workers=(len(one.last), len(other.legs[leg])),
        resumed_at=evidence.resumed_at,
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


def _grains(workers: Sequence[WorkerTrace]) -> Grains:
    return {grain: events for trace in workers for grain, events in trace.grains.items()}


def _values(folder: Path, other: Path, name: str) -> Values | None:
    """How the first differing tensor differs, from the states that were kept."""
    paths = [checkpoint.list_checkpoints(state_path(f)) for f in (folder, other)]
    if not all(paths):  # a run that diverged in this step has no state after it
        return None
    ours, theirs = (checkpoint.load(found[-1]).state.tensors.get(name) for found in paths)
    return None if ours is None or theirs is None else compare_tensors(ours, theirs)
