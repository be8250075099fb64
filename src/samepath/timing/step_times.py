"""Stopwatches: how long steps take on real workers, and what that says of a grain and an update.

In: a recipe, its options, and which batches to time in which grains. Out: seconds, step by step;
and, from steps of few and many grains, the time of one grain and of what is not grains.
Guaranteed: whole steps of the engine (`Trainer.step`, data and all) in fresh worker processes that
have the machine to themselves; the first steps are dropped; kinds of steps take turns, because
noise comes and goes. The fit is never negative.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from samepath.engine.comm.collective import Collective
from samepath.engine.launch.launch import launch
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.session import Session, start
from samepath.owners import owned_folder
from samepath.recipe import Recipe

WARM_UP = 2
"""Steps dropped at the start of each turn: memory, kernels and optimizer state are set up."""
TURNS = 2
"""Of each kind of step in one start of the workers, forwards and then backwards."""
MOST_STEPS = 100
"""In one turn."""


class Kind(NamedTuple):
    """A kind of step."""

    batch_size: int
    grain_size: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """What workers are told to time."""

    options: Options
    kinds: Mapping[Kind, float]
    """Seconds to spend on each kind in one turn."""
    least_steps: int
    """In one turn, however long they take."""
    path: Path
    """Where the first worker leaves the times."""


def time_steps(
    options: Options, kinds: Mapping[Kind, float], workers: int, *, least_steps: int
) -> tuple[dict[Kind, list[float]], float]:
    """Step times by kind, on so many workers of this machine, and how many cores others kept busy
    meanwhile."""
    with owned_folder("clock-") as folder:
        path = Path(folder) / "seconds.json"
        job = Job(options=options, kinds=dict(kinds), least_steps=least_steps, path=path)
        launch(_work, (job,), workers)
        found = json.loads(path.read_text())
    return dict(zip(kinds, found["seconds"], strict=True)), found["others"]


def _work(job: Job) -> None:
    """One worker's part."""
    recipe = recipe_of(job.options).recipe
    times: dict[Kind, list[float]] = {kind: [] for kind in job.kinds}
    with start(seed=job.options.seed, threads=job.options.threads) as session:
        watch = Watch()
        for turn in range(TURNS):
            for kind in list(job.kinds)[:: 1 if turn % 2 == 0 else -1]:
                times[kind] += _turn(recipe, job, session, kind)
        others = watch.others(session.collective)
        if session.is_first:
            job.path.write_text(json.dumps({"seconds": list(times.values()), "others": others}))


def _turn(recipe: Recipe, job: Job, session: Session, kind: Kind) -> list[float]:
    """Seconds of some steps of one kind. A new trainer each turn, so that only one is alive."""
    options = replace(job.options, **kind._asdict(), exact=True)
    trainer = make_trainer(recipe, options, session, follow_speed=False)
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0  # an update takes as long, and no batch size makes it diverge
    seconds: list[float] = []
    wanted = math.inf
    for share in trainer.stream(trainer.source(recipe.train), 0, 1 << 40):
        is_full = len(share.batch.examples) == kind.batch_size  # an epoch's last may be short
        began = time.perf_counter()
        trainer.step(share)
        if is_full:
            seconds.append(time.perf_counter() - began)
        if len(seconds) == WARM_UP and wanted == math.inf:
            wanted = WARM_UP + _num_steps(session, job.kinds[kind] / seconds[-1], job.least_steps)
        if len(seconds) >= wanted:
            break
    return seconds[WARM_UP:]


def _num_steps(session: Session, here: float, least: int) -> int:
    """How many steps fill the turn: the first worker's opinion, told to everybody."""
    first = from_everybody(session.collective, here)[0]
    return min(max(math.ceil(first), least), MOST_STEPS)


class Watch:
    """How many cores somebody else kept busy, between its making and `others`."""

    def __init__(self) -> None:
        self._start = (time.perf_counter(), _busy_seconds(), time.process_time())

    def others(self, collective: Collective) -> float:
        """What all cores did beyond what these workers did (their loader processes are others)."""
        now = (time.perf_counter(), _busy_seconds(), time.process_time())
        elapsed, busy, mine = (b - a for a, b in zip(self._start, now, strict=True))
        ours = sum(from_everybody(collective, mine))
        return max(busy - ours, 0.0) / elapsed


def _busy_seconds() -> float:
    """Of all cores since the start, as Linux counts them (`man 5 proc_stat`); 0 elsewhere."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _idle, _waiting, *interrupts = file.readline().split()[1:8]
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def from_everybody(collective: Collective, number: float) -> list[float]:
    records = collective.gather(np.array([number], np.float64).view(np.uint8))
    return [float(record.view(np.float64)[0]) for record in records]


# ---- what steps are made of


def fit_steps(step_seconds: Mapping[Kind, float]) -> tuple[float, dict[int, float]]:
    """Serial seconds, and grain seconds by grain size, from steps of n whole grains of each size:
    step = serial + n * grain.

    For every size a line through its steps (Theil and Sen: the median of the slopes of all pairs,
    which one bad time cannot move far); the serial part is the median of the lines' intercepts,
    and what it leaves of the steps is the grains'. Where no size has two numbers of grains there is
    no line, and everything counts as grains.
    """
    by_size: dict[int, list[tuple[int, float]]] = {}
    for kind, seconds in step_seconds.items():
        number, rest = divmod(kind.batch_size, kind.grain_size)
        assert rest == 0, "a short grain would count as a whole one"
        by_size.setdefault(kind.grain_size, []).append((number, seconds))
    intercepts = [_intercept(points) for points in by_size.values() if len(points) > 1]
    shortest = min(step_seconds.values())
    serial = min(max(statistics.median(intercepts), 0.0), shortest) if intercepts else 0.0
    return serial, {
        size: statistics.median((seconds - serial) / number for number, seconds in points)
        for size, points in sorted(by_size.items())
    }


def _intercept(points: Sequence[tuple[int, float]]) -> float:
    slope = statistics.median(
        (later - seconds) / (more - number)
        for (number, seconds), (more, later) in itertools.combinations(points, 2)
    )
    return statistics.median(seconds - slope * number for number, seconds in points)
