"""One worker's part in taking a step apart: it times grains, steps and reductions.

In: a Job, the same for all workers of this machine. Out: each worker leaves what it found in a
file. Guaranteed: times are of the engine's own trainer, in fresh processes; what is compared (one
worker alone, all side by side, all together) takes turns, because noise comes and goes; the first
steps of everything are dropped; nothing diverges (the learning rate is 0).

A grain's time runs from the end of the grain before it to its own end: loading, augmentation,
forward, backward, adding up. What a step takes beyond its grains is the update.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from samepath.engine.checks.refuse import OwnHook
from samepath.engine.comm.collective import Alone, Collective
from samepath.engine.comm.environment import read_place
from samepath.engine.comm.shared_memory import SharedMemory
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.session import Link, Session, connect, start
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.settings import WorkerBatch
from samepath.errors import UserError
from samepath.recipe import Recipe
from samepath.timing.links import time_reductions
from samepath.timing.step_times import WARM_UP, Kind, Watch

LEAST_ROUNDS, MOST_ROUNDS = 2, 8
"""Everything has so many turns."""
MOST_STEPS = 1000
"""In one turn."""
PATIENCE = 3.0
"""What cannot be timed in so many times the seconds asked for is refused."""

How: TypeAlias = Literal["alone", "ready", "beside", "together"]
"""The first worker computes and the others wait; the same, and it looks when each gradient is
there; each computes by itself; all share each batch."""


class Turn(NamedTuple):
    """What is timed in one go."""

    how: How
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Job:
    """What workers are told to time."""

    options: Options
    turns: tuple[Turn, ...]
    seconds: float
    """For all of them."""
    asked_seconds: float
    """For everything, as a person asked."""
    reductions: int
    """To time of each size, over both links (two workers only)."""
    folder: Path
    """Where each worker leaves what it found."""
    link: Link | None = None
    """Of workers that share batches; None: what they would use."""


class Steps(NamedTuple):
    """Some steps of one kind."""

    steps: list[float]
    """Seconds of each."""
    grains: list[list[float]]
    """For each step the seconds of its grains, without the first (it begins with the step)."""


def work(job: Job) -> None:
    """One worker's whole life."""
    with start(seed=job.options.seed, threads=job.options.threads, link=job.link) as session:
        watch = Watch()
        network = connect(read_place(os.environ), session.device, link="network")
        bench = Bench(recipe_of(job.options).recipe, job, session, network)
        found: dict[str, Any] = {"turns": bench.go(), "ready": bench.ready}
        found["others"] = watch.others(session.collective)
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

    def __init__(self, recipe: Recipe, job: Job, session: Session, network: Collective) -> None:
        self._recipe = recipe
        self._job = job
        self._session = session
        self._network = network
        """Who waits here sleeps; who waits in shared memory looks again and again."""
        self._alone = Session(Alone(session.device), seed=job.options.seed)
        self._trainers: dict[Turn, Trainer] = {}
        self._shares: dict[Turn, Iterator[WorkerBatch]] = {}
        for turn in job.turns:
            self._trainers[turn] = trainer = self._trainer(turn)
            self._shares[turn] = trainer.stream(trainer.source(recipe.train), 0, 1 << 40)
        self.ready: dict[str, list[float]] = {}
        """By parameter: when its gradient was there, as a part of the grain's time."""

    def _trainer(self, turn: Turn) -> Trainer:
        """Trainers of one worker by itself share a model and an optimizer: memory is not free."""
        session = self._session if turn.how == "together" else self._alone
        kind = turn.kind._asdict()
        for known in self._trainers.values():
            if known.collective is session.collective:
                settings = replace(known.settings, **kind)
                what = (known.model, known.optimizer, known.loss, settings, known.schedule)
                return Trainer(known.collective, *what)
        trainer = make_trainer(
            self._recipe,
            replace(self._job.options, **kind, exact=True),
            session,
            follow_speed=False,  # what is timed are even shares
        )
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.0  # an update takes as long, and no batch size makes it diverge
        return trainer

    def go(self) -> list[list[Steps]]:
        """For each turn, what every round found."""
        turns = self._job.turns
        once = [self._turn(turn, WARM_UP + 1).steps[WARM_UP:] for turn in turns]
        rounds, counts = self._agree(_plan([sum(seconds) for seconds in once], self._job))
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
        rounds, *counts = self._network.gather(mine.view(np.uint8))[0].view(np.int64)
        return int(rounds), [int(count) for count in counts]

    def _turn(self, turn: Turn, count: int) -> Steps:
        """So many full steps, begun by everybody at once."""
        trainer, shares = self._trainers[turn], self._shares[turn]
        self._network.agree(True)
        found = Steps([], [])
        if turn.how in ("alone", "ready") and not self._session.is_first:
            return found
        ends: list[float] = []
        look = self._looking(trainer, ends) if turn.how == "ready" else _ending(trainer, ends)
        with look:
            while len(found.steps) < count:
                share = next(shares)
                ends.clear()
                began = self._now()
                trainer.step(share)
                if len(share.batch.examples) == turn.kind.batch_size:  # an epoch's last is short
                    found.steps.append(self._now() - began)
                    found.grains.append(np.diff(ends).tolist())
        return found

    def _now(self) -> float:
        return now(self._session.device)

    @contextmanager
    def _looking(self, trainer: Trainer, ends: list[float]) -> Iterator[None]:
        """Note when each gradient is there, in all grains but a step's first."""
        names = {id(p): name for name, p in trainer.model.named_parameters() if p.requires_grad}
        there: dict[str, float] = {}

        def note(parameter: Tensor) -> None:
            there[names[id(parameter)]] = self._now()

        def done(end: float) -> None:
            for name, when in there.items() if ends else ():
                self.ready.setdefault(name, []).append((when - ends[-1]) / (end - ends[-1]))
            there.clear()

        handles = [
            parameter.register_post_accumulate_grad_hook(OwnHook(note))
            for parameter in trainer.model.parameters()
            if parameter.requires_grad
        ]
        try:
            with _ending(trainer, ends, done):
                yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _ending(
    trainer: Trainer, ends: list[float], done: Callable[[float], None] | None = None
) -> Iterator[None]:
    """Note when each grain ends."""
    before = trainer.watch

    def watch(point: str, grain: int, value: Any) -> None:
        if point == "done":
            end = now(trainer.collective.device)
            if done is not None:
                done(end)
            ends.append(end)

    trainer.watch = watch
    try:
        yield
    finally:
        trainer.watch = before


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _plan(once: list[float], job: Job) -> tuple[int, list[int]]:
    """How many rounds, and steps of each turn in one, fill the seconds; `once` is what one step of
    each takes."""
    whole = sum(once)
    if whole * LEAST_ROUNDS > PATIENCE * job.seconds:
        needed = whole * LEAST_ROUNDS / job.seconds * job.asked_seconds
        raise UserError(
            f"{job.options.recipe} is too slow to be timed in {job.asked_seconds:g} s: one step of "
            f"each kind takes {whole:.1f} s here; give --seconds {math.ceil(needed)}"
        )
    rounds = min(max(round(job.seconds / max(whole, 1e-9)), LEAST_ROUNDS), MOST_ROUNDS)
    # the recipe's own grain size matters most
    parts = [2 if turn.kind.grain_size == job.options.grain_size else 1 for turn in job.turns]
    share = job.seconds / rounds / max(sum(parts), 1)
    return rounds, [
        min(max(math.floor(part * share / max(seconds, 1e-9)), 1), MOST_STEPS)
        for part, seconds in zip(parts, once, strict=True)
    ]
