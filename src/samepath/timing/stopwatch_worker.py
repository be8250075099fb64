"""One worker's part in timing steps: it times whole steps, grains and reductions.

In: a TimingJob, the same for all workers of this machine. Out: each worker leaves what it found in
a file. Guaranteed: times are of the engine's own trainer, data and all, in fresh processes; what is
compared (one worker alone, all side by side, all together) takes turns, because noise comes and
goes; the first steps of everything are dropped; nothing diverges (the learning rate is 0).

A grain's time runs from the end of the grain before it to its own end: loading, augmentation,
forward, backward, adding up. What a step takes beyond its grains is the update.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from samepath.engine.checks.refuse import OwnHook
from samepath.engine.comm.collective import Alone, Bucket, Collective
from samepath.engine.comm.environment import read_place
from samepath.engine.comm.shared_memory import SharedMemory
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.session import Link, Session, connect, start
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.settings import WorkerBatch
from samepath.errors import UserError
from samepath.plan import BUCKET_BYTES, Reduction, reduction
from samepath.recipe import Recipe
from samepath.timing.links import Sample, traffic

WARM_UP = 2
"""Steps dropped at the start of everything: memory, kernels and optimizer state are set up."""
LEAST_ROUNDS, MOST_ROUNDS = 2, 8
"""Everything has so many turns."""
MOST_STEPS = 1000
"""In one turn."""
PATIENCE = 3.0
"""What cannot be timed in so many times the seconds asked for is refused."""

Circumstance: TypeAlias = Literal["alone", "ready", "beside", "together"]
"""The first worker computes and the others wait; the same, and it looks when each gradient is
there; each computes by itself; all share each batch."""


class StepShape(NamedTuple):
    """A kind of step."""

    batch_size: int
    grain_size: int


class Turn(NamedTuple):
    """What is timed in one go."""

    how: Circumstance
    shape: StepShape


@dataclass(frozen=True, kw_only=True)
class TimingJob:
    """What workers are told to time."""

    options: Options
    turns: Mapping[Turn, float]
    """Each with the seconds to spend on it."""
    folder: Path
    """Where each worker leaves what it found."""
    least_steps: int = 1
    """Of each turn, however long they take."""
    asked_seconds: float | None = None
    """For everything, as a person asked: what is far too slow for them is refused. None: it is
    timed, however long it takes."""
    reductions: int = 0
    """To time of each size, over both links (two workers only)."""
    link: Link | None = None
    """Of workers that share batches; None: what they would use."""


class Steps(NamedTuple):
    """Some steps of one kind."""

    steps: list[float]
    """Seconds of each."""
    grains: list[list[float]]
    """For each step the seconds of its grains, without the first (it begins with the step)."""


def time_on_worker(job: TimingJob) -> None:
    """Run one worker from start to end."""
    options = job.options
    # two processes cannot share one GPU in NCCL
    device = "cpu" if not job.turns and torch.cuda.device_count() < 2 else None
    with start(seed=options.seed, threads=options.threads, link=job.link, device=device) as session:
        busy = BusyCores()
        network = connect(read_place(os.environ), session.device, link="network")
        bench = Bench(job, session, network)
        found: dict[str, Any] = {"turns": bench.go(), "ready": bench.ready}
        found["others"] = busy.others(session.collective)
        found["device"] = session.device.type
        if job.reductions:
            found["links"] = {
                "shared": isinstance(session.collective, SharedMemory),
                "local": time_reductions(session.collective, job.reductions),
                "network": time_reductions(network, job.reductions),
            }
        (job.folder / f"worker-{session.worker}.json").write_text(json.dumps(found))


class Bench:
    """One worker's trainers, and their turns."""

    def __init__(self, job: TimingJob, session: Session, network: Collective) -> None:
        self._job = job
        self._session = session
        self._network = network
        """A worker that waits here sleeps; in shared memory it would look again and again."""
        self._alone = Session(Alone(session.device), seed=job.options.seed)
        self._trainers: dict[Turn, Trainer] = {}
        self._shares: dict[Turn, Iterator[WorkerBatch]] = {}
        recipe = recipe_of(job.options) if job.turns else None
        for turn in job.turns:
            assert recipe is not None
            self._trainers[turn] = trainer = self._trainer(recipe, turn)
            self._shares[turn] = trainer.stream(trainer.source(recipe.train), 0, 1 << 40)
        self.ready: dict[str, list[float]] = {}
        """By parameter: when its gradient was there, as a part of the grain's time."""

    def _trainer(self, recipe: Recipe, turn: Turn) -> Trainer:
        """Trainers of one worker by itself share a model and an optimizer: memory is not free."""
        session = self._session if turn.how == "together" else self._alone
        shape = turn.shape._asdict()
        for known in self._trainers.values():
            if known.collective is session.collective:
                settings = replace(known.settings, **shape)
                what = (known.model, known.optimizer, known.loss, settings, known.schedule)
                return Trainer(known.collective, *what)
        trainer = make_trainer(
            recipe,
            replace(self._job.options, **shape, exact=True),
            session,
            follow_speed=False,  # what is timed are even shares
        )
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.0  # an update takes as long, and no batch size makes it diverge
        return trainer

    def go(self) -> list[list[Steps]]:
        """Run all turns; returns for each what every round found."""
        turns = list(self._job.turns)
        once = [self._turn(turn, WARM_UP + 1).steps[WARM_UP:] for turn in turns]
        rounds, counts = self._agree(plan_rounds([sum(seconds) for seconds in once], self._job))
        self.ready.clear()
        found: list[list[Steps]] = [[] for _ in turns]
        for number in range(rounds):
            places = range(len(turns))
            for place in places if number % 2 == 0 else reversed(places):
                found[place].append(self._turn(turns[place], counts[place]))
        return found

    def _agree(self, plan: tuple[int, list[int]]) -> tuple[int, list[int]]:
        """The first worker's plan: it alone has timed everything."""
        mine = np.array([plan[0], *plan[1]], np.int64)
        rounds, *counts = self._network.gather_rows(mine)[0].tolist()
        return rounds, counts

    def _turn(self, turn: Turn, count: int) -> Steps:
        """Time so many full steps, which all workers begin at once."""
        trainer, shares = self._trainers[turn], self._shares[turn]
        self._network.agree(True)
        found = Steps([], [])
        if turn.how in ("alone", "ready") and not self._session.is_first:
            return found
        ends: list[float] = []
        with self._looking(turn, trainer, ends):
            while len(found.steps) < count:
                share = next(shares)
                ends.clear()
                began = self._now()
                trainer.step(share)
                if len(share.batch.examples) == turn.shape.batch_size:  # an epoch's last is short
                    found.steps.append(self._now() - began)
                    found.grains.append(np.diff(ends).tolist())
        return found

    @contextmanager
    def _looking(self, turn: Turn, trainer: Trainer, ends: list[float]) -> Iterator[None]:
        """Note when each grain ends, unless whole steps are timed; for "ready", also when each
        gradient is there, in all grains but a step's first."""
        if turn.how == "together":
            yield
            return
        names = {id(p): name for name, p in trainer.model.named_parameters() if p.requires_grad}
        there: dict[str, float] = {}

        def note(parameter: Tensor) -> None:
            there[names[id(parameter)]] = self._now()

        def done(end: float) -> None:
            for name, when in there.items() if ends else ():
                self.ready.setdefault(name, []).append((when - ends[-1]) / (end - ends[-1]))
            there.clear()

        def watch(point: str, grain: int, value: Any) -> None:
            if point == "done":
                end = self._now()
                done(end)
                ends.append(end)

        handles = [
            parameter.register_post_accumulate_grad_hook(OwnHook(note))
            for parameter in trainer.model.parameters()
            if parameter.requires_grad and turn.how == "ready"
        ]
        before, trainer.watch = trainer.watch, watch
        try:
            yield
        finally:
            trainer.watch = before
            for handle in handles:
                handle.remove()

    def _now(self) -> float:
        """The time when all that was asked of the device is done."""
        if self._session.device.type == "cuda":
            torch.cuda.synchronize(self._session.device)
        return time.perf_counter()


def plan_rounds(once: Sequence[float], job: TimingJob) -> tuple[int, list[int]]:
    """How many rounds, and steps of each turn in one, fill the seconds; `once` is what one step of
    each takes."""
    whole, seconds = sum(once), sum(job.turns.values())
    if job.asked_seconds is not None and whole * LEAST_ROUNDS > PATIENCE * seconds:
        needed = whole * LEAST_ROUNDS / seconds * job.asked_seconds
        raise UserError(
            f"{job.options.recipe} is too slow to be timed in {job.asked_seconds:g} s: one step of "
            f"each kind takes {whole:.1f} s here; give --seconds {math.ceil(needed)}"
        )
    rounds = min(max(round(seconds / max(whole, 1e-9)), LEAST_ROUNDS), MOST_ROUNDS)
    least = math.ceil(job.least_steps / rounds)
    return rounds, [
        min(max(math.floor(given / rounds / max(taken, 1e-9)), least), MOST_STEPS)
        for given, taken in zip(job.turns.values(), once, strict=True)
    ]


# ---- what other processes do meanwhile


class BusyCores:
    """Counts the cores that other processes use, from its making to `others`."""

    def __init__(self) -> None:
        self._start = (time.perf_counter(), _busy_seconds(), time.process_time())

    def others(self, collective: Collective) -> float:
        """What all cores did beyond what these workers did (their loader processes are others)."""
        now = (time.perf_counter(), _busy_seconds(), time.process_time())
        elapsed, busy, mine = (b - a for a, b in zip(self._start, now, strict=True))
        ours = float(collective.gather_rows(np.array([mine])).sum())
        return max(busy - ours, 0.0) / elapsed


def _busy_seconds() -> float:
    """Busy seconds of all cores since the start, as Linux counts them (`man 5 proc_stat`); 0
    elsewhere."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _idle, _waiting, *interrupts = file.readline().split()[1:8]
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


# ---- reductions

SIZES = tuple(1 << power for power in (14, 16, 18, 20, 22, 24))
"""Bytes of gradients."""
GRAINS = (2, 6)
"""Two workers with one sum each (a plain all-reduce), and with two each (all_to_all)."""
DROPPED = 3
"""Reductions of each size that are not counted."""


def time_reductions(collective: Collective, repeats: int) -> list[Sample]:
    """Median seconds of reductions of several sizes between two workers (run by both)."""
    kinds = [(reduction(grains, 2), traffic(2, grains)) for grains in GRAINS]
    cases = [(how, what, size, _buckets(collective, size)) for how, what in kinds for size in SIZES]
    times: list[list[tuple[float, float]]] = [[] for _ in cases]
    for _ in range(DROPPED + repeats):  # all cases in turn: noise comes and goes
        for case, (how, _, _, buckets) in enumerate(cases):
            times[case].append(_reduce_once(collective, how, buckets))
    return [
        Sample(
            what.rounds,
            what.gradients * size,
            *map(statistics.median, zip(*taken[DROPPED:], strict=True)),
        )
        for (_, what, size, _), taken in zip(cases, times, strict=True)
    ]


def _buckets(collective: Collective, size: int) -> list[Bucket]:
    """Room for so many bytes, in buckets as the engine fills them."""
    lengths = [min(BUCKET_BYTES, size - first) // 4 for first in range(0, size, BUCKET_BYTES)]
    return [collective.bucket(length, torch.float32, exact=True) for length in lengths]


def _reduce_once(
    collective: Collective, how: Reduction, buckets: Sequence[Bucket]
) -> tuple[float, float]:
    """Seconds one reduction takes, and seconds of this worker's cores."""
    for bucket in buckets:
        bucket.begin(how)
        bucket.rows.fill_(1.0)  # other workers' caches do not have it yet, as after a backward pass
    collective.agree(True)  # both are ready
    began, cores = time.perf_counter(), time.process_time()
    for bucket in buckets:
        bucket.launch()
    for bucket in buckets:
        bucket.add_chunk()
    for bucket in buckets:
        bucket.finish()
    if collective.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, time.process_time() - cores
