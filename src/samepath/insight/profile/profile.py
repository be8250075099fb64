"""Where a step's time goes, engine by engine.

In: what a person asked for. Out: a Profile: timelines and numbers of every engine, on the same
recipe, batches, threads and workers, and (unless told not to) what one step is made of, for
`samepath simulate`. Guaranteed: bad input, an engine that is not installed included, raises before
anything is measured; nothing is written here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from samepath.console import SilentWatcher, Watcher
from samepath.engine.comm.environment import read_place
from samepath.engine.launch.launch import launch
from samepath.engine.launch.owners import owned_folder
from samepath.engine.run.options import Asked, Options, refuse_recipe, resolve
from samepath.engine.run.request import available_workers
from samepath.errors import UserError
from samepath.insight.profile.engines import ENGINES
from samepath.insight.profile.queue_reduction import QueueSettings
from samepath.insight.profile.timeline import Numbers, Timeline, numbers
from samepath.insight.profile.worker import Found, Job, from_json, launched, work
from samepath.recipe import find_recipe
from samepath.timing.clock import NOISE_CORES
from samepath.timing.measured import MeasuredStep

STEPS = 10
MEASURE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """What a person asked for."""

    recipe: str
    data: str | None = None
    keep: str | None = None
    """A keep-list: the examples to train on."""
    num_workers: int | Literal["auto"] = "auto"
    engines: tuple[str, ...] = ("samepath",)
    steps: int = STEPS
    """To time, of each engine, after its first ones."""
    asked: Asked = field(default_factory=Asked)
    queue: QueueSettings = field(default_factory=QueueSettings)
    """Of the engines `queue` and `horovod`."""
    measure: bool = True
    """Take a step apart as well, so that it can be simulated."""
    watcher: Callable[[], Watcher] = SilentWatcher
    """Makes what worker 0 shows; must pickle."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was found."""

    options: Options
    num_workers: int
    queue: QueueSettings
    clock: str
    """How workers' clocks were brought together."""
    timelines: tuple[Timeline, ...]
    numbers: tuple[Numbers, ...]
    """Of each timeline."""
    measured: MeasuredStep | None
    busy_cores: float
    """What others kept busy meanwhile."""


def profile(request: ProfileRequest, tell: Callable[[str], None]) -> Profile | None:
    """Measure; None on workers but the first, where a launcher started this process."""
    engines = check_engines(request.engines)
    if request.steps < 1:
        raise UserError(f"--steps {request.steps}: it must be at least 1")
    if torch.cuda.is_available():
        raise UserError(
            "profile times processors: a GPU works on while its program goes ahead, and time stamps"
            " would be wrong; set CUDA_VISIBLE_DEVICES= (to nothing) to profile without GPUs"
        )
    place = read_place(os.environ)
    found = find_recipe(
        request.recipe, request.data, request.keep, threads=request.asked.threads or 1
    )
    options = resolve(found, request.asked)
    workers = _num_workers(request, options, engines)
    refuse_recipe(
        found.recipe,
        options if "samepath" in engines else replace(options, exact=False),
        workers,
    )
    job = Job(
        options=options,
        engines=tuple(name for name in engines if name != "horovod"),
        steps=request.steps,
        queue=request.queue,
        watcher=request.watcher,
    )
    if place.launcher != "alone":
        here = work(job)
        if here is None:
            return None
    else:
        here = _launch(job, engines, workers, tell)
    idle = (os.cpu_count() or 1) - here.busy_cores
    if idle < workers * options.threads - NOISE_CORES:
        tell(f"others kept {here.busy_cores:.1f} cores busy meanwhile: times may be too long")
    measured = None
    if request.measure and place.launcher == "alone":
        measured = _measure(options, tell)
    elif request.measure:
        tell(f"under {place.launcher} steps are not taken apart: there is no measured.json")
    return Profile(
        options=options,
        num_workers=workers,
        queue=request.queue,
        clock=here.clock,
        timelines=here.timelines,
        numbers=tuple(map(numbers, here.timelines)),
        measured=measured,
        busy_cores=here.busy_cores,
    )


def check_engines(names: tuple[str, ...]) -> tuple[str, ...]:
    """Known ones that can run here, each once."""
    for name in names:
        if name not in ENGINES:
            raise UserError(f"--engine {name}: there is no such engine; use {', '.join(ENGINES)}")
    if not names:
        raise UserError(f"--engine names nothing; use one or several of {', '.join(ENGINES)}")
    if "horovod" in names:
        from samepath.insight.profile.engines_horovod import refuse_horovod

        refuse_horovod()
    return tuple(dict.fromkeys(names))


def _num_workers(request: ProfileRequest, options: Options, engines: tuple[str, ...]) -> int:
    place = read_place(os.environ)
    workers: int | str = request.num_workers
    if place.launcher != "alone":
        if "horovod" in engines:
            raise UserError(
                f"horovod starts workers of its own, not {place.launcher}'s; "
                "leave the launcher out, or --engine horovod"
            )
        if workers not in ("auto", place.num_workers):
            raise UserError(
                f"-n {workers}, but the launcher started {place.num_workers} workers; "
                "leave -n out under torchrun, mpirun and srun"
            )
        workers = place.num_workers
    if not isinstance(workers, int):
        workers = min(available_workers(), options.plan.num_grains)
    others = [name for name in engines if name != "samepath"]
    if workers == 1 and others:
        raise UserError(
            f"-n 1 --engine {','.join(others)}: one worker has nothing to reduce; use -n 2 or more,"
            " or --engine samepath"
        )
    return workers


def _launch(job: Job, engines: tuple[str, ...], workers: int, tell: Callable[[str], None]) -> Found:
    """Everything on workers of our own (and horovod's on those it starts)."""
    count = f"{workers} {'worker' if workers == 1 else 'workers'}"
    parts: list[Found] = []
    with owned_folder("profile-") as scratch:
        path = Path(scratch) / "found.json"
        if job.engines:
            tell(f"profiling {job.options.recipe} on {count}: {', '.join(job.engines)}")
            launch(launched, (job, path), workers)
            parts.append(from_json(path.read_text()))
        if "horovod" in engines:
            from samepath.insight.profile.engines_horovod import run_horovod

            tell(f"profiling {job.options.recipe} on {count}: horovod")
            parts.append(run_horovod(job, workers, Path(scratch)))
    by_engine = {t.engine: t for part in parts for t in part.timelines}
    return Found(
        timelines=tuple(by_engine[name] for name in engines),
        clock=parts[0].clock,
        busy_cores=max(part.busy_cores for part in parts),
    )


def _measure(options: Options, tell: Callable[[str], None]) -> MeasuredStep:
    from samepath.timing.stopwatch import measure_step

    return measure_step(options, seconds=MEASURE_SECONDS, tell=tell)
