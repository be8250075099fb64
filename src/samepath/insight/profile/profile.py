"""Measures where a step's time goes, engine by engine (`samepath profile`).

In: what the user asked for. Out: a Profile: timelines and numbers of every engine, on the same
recipe, batches, threads and workers, and (unless told not to) what one step is made of, for
`samepath simulate`. Guaranteed: bad input raises before anything is measured; nothing is written
here. Engines take the same number of steps in turns (forwards, then backwards), because noise comes
and goes; the first steps of each turn are dropped; all workers' times are on one clock: that of
their machine, or, where they are on several, clocks set by barriers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from samepath.console import SilentWatcher, Watcher, count
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.environment import Place, machine_name, read_place
from samepath.engine.comm.network import Peers
from samepath.engine.launch.launch import call_workers
from samepath.engine.run.options import Options, Overrides, recipe_of, refuse_recipe, resolve
from samepath.engine.run.request import available_workers
from samepath.engine.run.session import Session, start
from samepath.engine.state.state import State, digest
from samepath.errors import UserError
from samepath.insight.profile.engines import (
    ENGINES,
    Ddp,
    Engine,
    PlainLoop,
    Reducer,
    Samepath,
    Unreduced,
)
from samepath.insight.profile.queue_reduction import QueueReduction, QueueSettings
from samepath.insight.profile.recorder import PhaseRecorder
from samepath.insight.profile.timeline import Numbers, Timeline, TimelineEvent, meet, numbers
from samepath.recipe import Recipe, find_recipe, refuse_whole_batch
from samepath.timing.measured import MeasuredStep
from samepath.timing.stopwatch import BusyCores, crowded_words, measure_step

STEPS = 10
MEASURE_SECONDS = 30.0
WARM_UP = 3
"""Steps dropped of the first turn: memory, kernels, buckets and optimizers are set up."""
AGAIN = 1
"""Steps dropped of later turns: caches are filled again."""
TURN = 2
"""Timed steps of a turn."""
PEER_SECONDS = 120.0
"""How long `ddp` and `queue` wait for another worker."""
BARRIERS = 25
ONE_CLOCK = "one machine: its workers share a clock"


@dataclass(frozen=True, kw_only=True)
class ProfileRequest(Overrides):
    """What the user asked for."""

    recipe: str
    data: str | None = None
    keep: str | None = None
    """A keep-list: the examples to train on."""
    num_workers: int | Literal["auto"] = "auto"
    engines: tuple[str, ...] = ("samepath",)
    timed_steps: int = STEPS
    """How many to time of each engine, after its first ones."""
    queue: QueueSettings = field(default_factory=QueueSettings)
    """Settings of the engine `queue`."""
    measure: bool = True
    """Take a step apart as well, so that it can be simulated."""
    watcher: Callable[[], Watcher] = SilentWatcher
    """Makes, on worker 0, what shows progress; must pickle."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ", ".join(ENGINES)
        for name in self.engines:
            if name not in ENGINES:
                raise UserError(f"--engine {name}: there is no such engine; use {known}")
        if not self.engines:
            raise UserError(f"--engine names nothing; use one or several of {known}")
        if self.timed_steps < 1:
            raise UserError(f"--steps {self.timed_steps}: it must be at least 1")


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
    """One of each timeline."""
    measured: MeasuredStep | None
    busy_cores: float
    """Cores used by other processes meanwhile."""


def profile(request: ProfileRequest, tell: Callable[[str], None]) -> Profile | None:
    """Measure; None on workers but the first, where a launcher started this process."""
    if torch.cuda.is_available():
        raise UserError(
            "profile times processors: a GPU works on while its program goes ahead, and time stamps"
            " would be wrong; set CUDA_VISIBLE_DEVICES= (to nothing) to profile without GPUs"
        )
    request = replace(request, engines=tuple(dict.fromkeys(request.engines)))
    place = read_place(os.environ)
    recipe = find_recipe(request.recipe, request.data, request.keep, threads=request.threads or 1)
    refuse_whole_batch(recipe, "profile")
    options = resolve(recipe, request)
    workers = _num_workers(request, options, place)
    exact = options.exact and "samepath" in request.engines
    refuse_recipe(recipe, replace(options, exact=exact), workers)
    alone = place.launcher == "alone"
    if alone:
        engines = ", ".join(request.engines)
        tell(f"profiling {options.recipe} on {count(workers, 'worker')}: {engines}")
        found = call_workers(take_all_steps, (options, request), workers)[0]
    else:
        found = take_all_steps(options, request)
        if found is None:
            return None
    for words in crowded_words(found["busy_cores"], workers * options.threads):
        tell(words)
    measured = None
    if request.measure and alone:
        measured = measure_step(options, seconds=MEASURE_SECONDS, tell=tell)
    elif request.measure:
        tell(f"under {place.launcher} steps are not taken apart: there is no measured.json")
    return Profile(
        options=options,
        num_workers=workers,
        queue=request.queue,
        clock=found["clock"],
        timelines=found["timelines"],
        numbers=tuple(map(numbers, found["timelines"])),
        measured=measured,
        busy_cores=found["busy_cores"],
    )


def _num_workers(request: ProfileRequest, options: Options, place: Place) -> int:
    workers: int | str = request.num_workers
    if place.launcher != "alone":
        if workers not in ("auto", place.num_workers):
            raise UserError(
                f"-n {workers}, but the launcher started {place.num_workers} workers; "
                "leave -n out under torchrun, mpirun and srun"
            )
        workers = place.num_workers
    if not isinstance(workers, int):
        workers = min(available_workers(), options.plan.num_grains)
    others = [name for name in request.engines if name != "samepath"]
    if workers == 1 and others:
        raise UserError(
            f"-n 1 --engine {','.join(others)}: one worker has nothing to reduce; use -n 2 or more,"
            " or --engine samepath"
        )
    return workers


# ---- the workers


def take_all_steps(options: Options, request: ProfileRequest) -> dict[str, Any] | None:
    """Take all steps of all engines on one worker; what all noted, on worker 0, and the digest of
    each engine's model after them."""
    with start(seed=options.seed, threads=options.threads) as session:
        recorders = {name: PhaseRecorder(session.worker) for name in request.engines}
        others = [name for name in request.engines if name != "samepath"]
        peers = {name: Peers(PEER_SECONDS) for name in others if session.num_workers > 1}
        try:
            recipe, queue = recipe_of(options), request.queue
            engines = {
                name: make_engine(name, recipe, options, session, recorder, peers.get(name), queue)
                for name, recorder in recorders.items()
            }
            busy = BusyCores()
            _take_turns(request, session, engines, recorders)
            busy_cores = busy.others(session.collective)
            found = gather(session.collective, recorders)
            digests = {name: _digest(engine.model) for name, engine in engines.items()}
        finally:
            engines = {}  # they hold process groups, whose threads end with the last reference
            for each in peers.values():
                each.close()
    steps = sum(map(len, turns(request.timed_steps, several=len(request.engines) > 1)))
    also = {"busy_cores": busy_cores, "digests": digests, "steps": steps}
    return None if found is None else found | also


def _digest(model: torch.nn.Module) -> str:
    state = model.state_dict().items()
    return digest(State({k: v.contiguous() for k, v in state if isinstance(v, Tensor)}, {}))


def make_engine(
    name: str,
    recipe: Recipe,
    options: Options,
    session: Session,
    recorder: PhaseRecorder,
    peers: Peers | None,
    settings: QueueSettings,
) -> Engine:
    """An engine on the workers of a session; `ddp` and `queue` need a Peers each where there are
    several workers."""
    if name == "samepath":
        return Samepath(recipe, options, session, recorder)
    if peers is None:
        assert session.num_workers == 1
        return PlainLoop(
            recipe, options, session, recorder, lambda model: Unreduced(model, recorder)
        )
    reducer: Callable[..., Reducer] = (
        Ddp if name == "ddp" else partial(QueueReduction, settings=settings)
    )
    return PlainLoop(recipe, options, session, recorder, lambda m: reducer(m, peers, recorder))


def _take_turns(
    request: ProfileRequest,
    session: Session,
    engines: Mapping[str, Engine],
    recorders: Mapping[str, PhaseRecorder],
) -> None:
    """Take all steps of all engines, in turns."""
    watcher = request.watcher() if session.is_first else SilentWatcher()
    all_turns = turns(request.timed_steps, several=len(engines) > 1)
    all_steps = sum(map(len, all_turns)) * len(engines)
    done = 0
    try:
        for number, turn in enumerate(all_turns):
            for name in list(engines)[:: 1 if number % 2 == 0 else -1]:
                session.collective.agree(True)  # all workers have ended the engine before
                with engines[name].running():
                    for step in turn:
                        take_step(engines[name], recorders[name], step)
                        done += 1
                        facts = f"step {done} of {all_steps}: {name}"
                        watcher.progress("profiling", done, all_steps, facts)
    finally:
        watcher.close()


def turns(steps: int, *, several: bool) -> list[list[int | None]]:
    """The steps of each turn: their numbers, None for those that are not timed. An engine alone
    takes all in one turn."""
    numbers, size = range(steps), TURN if several else steps
    return [
        [*[None] * (AGAIN if first else WARM_UP), *numbers[first : first + size]]
        for first in range(0, steps, size)
    ]


def take_step(engine: Engine, recorder: PhaseRecorder, number: int | None) -> None:
    """Take one step, timed if it has a number; on a GPU it ends when the GPU has ended."""
    recorder.begin_step(number)
    engine.step()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    recorder.end_step()


# ---- bringing notes together


def gather(collective: Collective, recorders: Mapping[str, PhaseRecorder]) -> dict[str, Any] | None:
    """The timelines of all engines, and how workers' clocks were brought together, on worker 0."""
    offset, clock = set_clock(collective, PhaseRecorder.now)
    notes = {
        name: [e._replace(begin=e.begin - offset, end=e.end - offset) for e in recorder.events]
        for name, recorder in recorders.items()
    }
    records = collective.gather_bytes(json.dumps(notes).encode())
    if collective.worker != 0:
        return None
    all_notes: list[dict[str, Any]] = [json.loads(record) for record in records]
    timelines = []
    for name, recorder in recorders.items():
        found = [TimelineEvent(*row) for notes_of_one in all_notes for row in notes_of_one[name]]
        found = meet(found) if recorder.in_memory else found
        events = tuple(sorted(found, key=lambda e: (e.begin, -e.end, e.worker)))
        workers = collective.num_workers
        timelines.append(Timeline(engine=name, num_workers=workers, events=events))
    return {"clock": clock, "timelines": tuple(timelines)}


def set_clock(collective: Collective, now: Callable[[], float]) -> tuple[float, str]:
    """How far this worker's clock is ahead of worker 0's, and how that is known.

    All workers leave a barrier at about the same time; the median over some tells clocks apart."""
    machines = len(set(collective.gather_bytes(machine_name().encode())))
    if machines == 1:
        return 0.0, ONE_CLOCK
    times = []
    for _ in range(BARRIERS):
        collective.agree(True)
        times.append(now())
    all_times = collective.gather_rows(np.array(times))
    low, middle, high = np.quantile(all_times - all_times[0], [0.25, 0.5, 0.75], axis=1)
    return float(middle[collective.worker]), (
        f"{machines} machines: clocks set by {BARRIERS} barriers, to about "
        f"{1e3 * float((high - low).max()):.2g} ms"
    )
