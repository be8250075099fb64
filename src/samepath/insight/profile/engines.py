"""Engines that take the same steps in their own way, and note when they did what.

In: a recipe with its options, the workers of a session, a Recorder. Out: an Engine, which takes one
step after another on shares of the same batches. `samepath` is ours as `samepath train` runs it,
grain by grain. `ddp`, `queue` and `horovod` are the loop everyone writes: each worker computes its
share of the batch at once, and they differ in how its gradients are summed.
Guaranteed: all start from the same weights and sum the gradient of the same batch (each example
counts the same); augmentation is the same, dropout and batch norm are per share and not per grain.
"""

from __future__ import annotations

import math

import numpy as np

from samepath.engine.comm.peers import Peers
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options
from samepath.engine.run.session import Session
from samepath.insight.profile.engines_base import Engine, shares_of
from samepath.insight.profile.engines_plain import Ddp, PlainLoop, Queued
from samepath.insight.profile.queue_reduction import QueueSettings
from samepath.insight.profile.recorder import Recorder, TimedCollective
from samepath.recipe import Recipe

ENGINES = ("samepath", "ddp", "queue", "horovod")


class Samepath(Engine):
    """Ours: static buckets, the plan's tree, the same bits at every number of workers."""

    def __init__(
        self, recipe: Recipe, options: Options, session: Session, recorder: Recorder
    ) -> None:
        self._recorder = recorder
        timed = Session(TimedCollective(session.collective, recorder), seed=options.seed)
        self.trainer = make_trainer(recorder.recipe(recipe), options, timed, follow_speed=False)
        self.trainer.watch = self._watch
        self.model = self.trainer.model
        recorder.optimizer(self.trainer.optimizer)
        self.shares = shares_of(
            recipe,
            options,
            recorder,
            worker=session.worker,
            workers=session.num_workers,
            exact=options.exact,
        )

    def _watch(self, point: str, grain: int, _: object) -> None:
        if point == "loss":
            self._began = self._recorder.now()
        elif point == "done":
            self._recorder.note("backward", self._began, self._recorder.now(), f"grain {grain}")

    def step(self) -> None:
        self.trainer.step(next(self.shares))


def make_engine(
    name: str,
    recipe: Recipe,
    options: Options,
    session: Session,
    recorder: Recorder,
    peers: Peers | None,
    settings: QueueSettings,
) -> Engine:
    """An engine on the workers of a session; `ddp` and `queue` need peers of their own."""
    if peers is None:
        assert name == "samepath"
        return Samepath(recipe, options, session, recorder)

    def total(weight: float) -> float:
        records = session.collective.gather(np.array([weight]).view(np.uint8))
        return math.fsum(float(record.view(np.float64)[0]) for record in records)

    return PlainLoop(
        recipe,
        options,
        recorder,
        lambda model: (
            Ddp(model, peers, recorder)
            if name == "ddp"
            else Queued(model, peers, recorder, settings)
        ),
        worker=session.worker,
        workers=session.num_workers,
        total=recorder.timed("wait", total, "weights"),
    )
