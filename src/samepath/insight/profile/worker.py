"""The workers of a profile: engines take turns on them, and everybody's notes come together.

In: a Job. Out: a Timeline for each engine, on worker 0. Guaranteed: engines take the same number
of steps in turns (forwards, then backwards), because noise comes and goes; the first steps of each
turn are dropped; all workers' times are on one clock: that of their machine, or, where they are on
several, clocks set by barriers.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from samepath.console import SilentWatcher, Watcher
from samepath.engine.comm.collective import Collective, machine_name
from samepath.engine.comm.peers import Peers
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.session import Session, start
from samepath.insight.profile.engines import make_engine
from samepath.insight.profile.engines_base import Engine
from samepath.insight.profile.queue_reduction import QueueSettings
from samepath.insight.profile.recorder import Recorder
from samepath.insight.profile.timeline import Event, Timeline, meet
from samepath.timing.step_times import Watch

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
class Job:
    """What workers are told to do."""

    options: Options
    engines: tuple[str, ...]
    steps: int
    """To time, of each engine."""
    queue: QueueSettings
    watcher: Callable[[], Watcher] = SilentWatcher
    """Makes, on worker 0, what shows progress; must pickle."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of it."""

    timelines: tuple[Timeline, ...]
    clock: str
    """How workers' clocks were brought together."""
    busy_cores: float
    """What others kept busy meanwhile."""


def launched(job: Job, path: Path) -> None:
    """A worker's life under our launcher; worker 0 leaves what was found in a file."""
    found = work(job)
    if found is not None:
        path.write_text(to_json(found))


def work(job: Job) -> Found | None:
    """One worker's part; what was found, on worker 0."""
    with start(seed=job.options.seed, threads=job.options.threads) as session:
        recorders = {name: Recorder(session.worker) for name in job.engines}
        peers = {name: Peers(PEER_SECONDS) for name in job.engines if name != "samepath"}
        try:
            recipe = recipe_of(job.options).recipe
            engines = {
                name: make_engine(
                    name,
                    recipe,
                    job.options,
                    session,
                    recorders[name],
                    peers.get(name),
                    job.queue,
                )
                for name in job.engines
            }
            watch = Watch()
            take_turns(job, session, engines, recorders)
            busy_cores = watch.others(session.collective)
            return gather(session.collective, recorders, busy_cores)
        finally:
            engines = {}  # they hold groups, which end their threads when nobody does
            for each in peers.values():
                each.close()


def take_turns(
    job: Job, session: Session, engines: Mapping[str, Engine], recorders: Mapping[str, Recorder]
) -> None:
    """All steps of all engines."""
    watcher = job.watcher() if session.is_first else SilentWatcher()
    all_turns = turns(job.steps, several=len(engines) > 1)
    all_steps = sum(map(len, all_turns)) * len(engines)
    done = 0
    try:
        for number, turn in enumerate(all_turns):
            for name in list(engines)[:: 1 if number % 2 == 0 else -1]:
                session.collective.agree(True)  # everybody has ended the engine before
                with engines[name].running():
                    for step in turn:
                        take_step(engines[name], recorders[name], step)
                        done += 1
                        facts = f"step {done} of {all_steps}: {name}"
                        watcher.progress("profiling", done, all_steps, facts)
    finally:
        watcher.close()


def turns(steps: int, *, several: bool) -> list[list[int | None]]:
    """The steps of each turn: their numbers, None for those that are not timed. One engine has
    nobody to take turns with."""
    numbers, size = range(steps), TURN if several else steps
    return [
        [*[None] * (AGAIN if first else WARM_UP), *numbers[first : first + size]]
        for first in range(0, steps, size)
    ]


def take_step(engine: Engine, recorder: Recorder, number: int | None) -> None:
    """One step, timed if it has a number."""
    recorder.begin_step(number)
    engine.step()
    recorder.end_step()


# ---- bringing notes together


def gather(
    collective: Collective, recorders: Mapping[str, Recorder], busy_cores: float
) -> Found | None:
    """Everybody's notes as timelines, on worker 0."""
    offset, clock = set_clock(collective, Recorder.now)
    notes = {
        name: [
            [astuple(replace(e, begin=e.begin - offset, end=e.end - offset)) for e in events]
            for events in (recorder.events, recorder.shared)
        ]
        for name, recorder in recorders.items()
    }
    records = _gather_text(collective, json.dumps(notes))
    if collective.worker != 0:
        return None
    everybody: list[dict[str, Any]] = [json.loads(record) for record in records]
    timelines = []
    for name in recorders:
        own = [event_of(row) for notes in everybody for row in notes[name][0]]
        shared = [event_of(row) for notes in everybody for row in notes[name][1]]
        timelines.append(
            Timeline(
                engine=name,
                num_workers=collective.num_workers,
                events=in_order([*own, *meet(shared)]),
            )
        )
    return Found(timelines=tuple(timelines), clock=clock, busy_cores=busy_cores)


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    return tuple(sorted(events, key=lambda e: (e.begin, -e.end, e.worker)))


def set_clock(collective: Collective, now: Callable[[], float]) -> tuple[float, str]:
    """How far this worker's clock is ahead of worker 0's, and how that is known.

    Everybody leaves a barrier at about the same time; the median over some tells clocks apart."""
    names = _gather_text(collective, machine_name())
    if len(set(names)) == 1:
        return 0.0, ONE_CLOCK
    times = []
    for _ in range(BARRIERS):
        collective.agree(True)
        times.append(now())
    records = collective.gather(np.array(times).view(np.uint8))
    everybody = [record.view(np.float64) for record in records]
    apart = [np.sort(mine - everybody[0]) for mine in everybody]
    spread = max(float(each[-1 - BARRIERS // 4] - each[BARRIERS // 4]) for each in apart)
    offset = statistics.median(apart[collective.worker].tolist())
    machines = len(set(names))
    return offset, (
        f"{machines} machines: clocks set by {BARRIERS} barriers, to about {1e3 * spread:.2g} ms"
    )


def _gather_text(collective: Collective, text: str) -> list[str]:
    """Everybody's text, of any length."""
    data = np.frombuffer(text.encode(), np.uint8)
    lengths = [
        int(record.view(np.int64)[0])
        for record in collective.gather(np.array([len(data)]).view(np.uint8))
    ]
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(data)] = data
    return [
        record[:length].tobytes().decode()
        for record, length in zip(collective.gather(padded), lengths, strict=True)
    ]


def event_of(row: Sequence[Any]) -> Event:
    worker, step, phase, name, begin, end, sent = row
    return Event(
        worker=worker,
        step=step,
        phase=phase,
        name=name,
        begin=begin,
        end=end,
        bytes_sent=sent,
    )


def to_json(found: Found) -> str:
    rows = [[t.engine, t.num_workers, [astuple(e) for e in t.events]] for t in found.timelines]
    facts = {"clock": found.clock, "busy_cores": found.busy_cores}
    return json.dumps({**facts, "timelines": rows})


def from_json(text: str) -> Found:
    content = json.loads(text)
    return Found(
        clock=content["clock"],
        busy_cores=content["busy_cores"],
        timelines=tuple(
            Timeline(engine=engine, num_workers=workers, events=tuple(map(event_of, rows)))
            for engine, workers, rows in content["timelines"]
        ),
    )
