"""Engines that take the same steps in their own way, and note when they did what.

In: a recipe with its options, the workers of a session, a PhaseRecorder. Out: an Engine, which
takes one step after another on shares of the same batches. `samepath` is ours as `samepath train`
runs it, grain by grain. `ddp` and `queue` are the plain loop: each worker computes its share of the
batch at once, and they differ in the Reducer that sums its gradients.
Guaranteed: all start from the same weights and sum the gradient of the same batch; a share counts
for as much of it as it has of the batch's examples (or of the recipe's weight), so that shares need
not be equal. Augmentation is the same; dropout and batch norm are per share and not per grain.
Buffers are as these engines have them: DDP copies worker 0's to all before a forward pass, a queue
leaves each worker its own.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samepath.data import Draws, GrainRequest, Loaders, as_source, seed_everything
from samepath.engine.comm.network import Peers, data_parallel
from samepath.engine.comm.tensors import to_device
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options
from samepath.engine.run.session import Session
from samepath.engine.step.loss_metrics import loss_alone
from samepath.engine.step.settings import WorkerBatch
from samepath.errors import UserError, WorkerLost
from samepath.insight.profile.recorder import PhaseRecorder, TimedCollective
from samepath.keys import key
from samepath.plan import Batch, divide
from samepath.recipe import Recipe, sampled

ENGINES = ("samepath", "ddp", "queue")


class Engine(ABC):
    """One worker's way to train."""

    model: nn.Module
    shares: Iterator[WorkerBatch]
    """Whole batches, one after another, each with what this worker computes of it."""

    @abstractmethod
    def step(self) -> None:
        """Make one update from the next share."""

    def running(self) -> AbstractContextManager[None]:
        """A context around steps that follow one another; outside of it the engine is at rest."""
        return nullcontext()


def shares_of(
    recipe: Recipe, options: Options, session: Session, recorder: PhaseRecorder, *, exact: bool
) -> Iterator[WorkerBatch]:
    """All whole batches (an epoch's short last one takes less time, and says nothing of the rest),
    each with this worker's grains, or its one share where not `exact`."""
    plan = options.plan
    every = as_source(
        recipe.train,
        seed=options.seed,
        loaders=Loaders(options.loader_workers, options.threads),
        collate=recipe.collate,
    )
    source = sampled(every, recipe.sampler, seed=options.seed)

    def batches() -> Iterator[Batch]:
        every = map(plan.batch, itertools.count())
        return (batch for batch in every if len(batch.examples) == plan.batch_size)

    def requests() -> Iterator[GrainRequest]:
        for batch in batches():
            mine = divide(batch, session.num_workers, exact=exact).grains(session.worker)
            yield from (GrainRequest(batch.epoch, examples) for examples in mine.values())

    load = recorder.timed("load", source.load(requests()).__next__)
    grains = (load() for _ in itertools.count())
    return (WorkerBatch(batch, grains) for batch in batches())


class Samepath(Engine):
    """samepath itself: static buckets, the plan's tree, the same bits at every worker count."""

    def __init__(
        self, recipe: Recipe, options: Options, session: Session, recorder: PhaseRecorder
    ) -> None:
        self._recorder = recorder
        timed = Session(TimedCollective(session.collective, recorder), seed=options.seed)
        noted = replace(recorder.recipe(recipe), loss=recipe.loss)
        self.trainer = make_trainer(noted, options, timed, follow_speed=False)
        self.trainer.grain_loss = recorder.timed("forward", self.trainer.grain_loss)
        self.trainer.watch = self._watch
        self.model = self.trainer.model
        recorder.optimizer(self.trainer.optimizer)
        self.shares = shares_of(recipe, options, session, recorder, exact=options.exact)

    def _watch(self, point: str, grain: int, _: object) -> None:
        if point == "loss":
            self._began = self._recorder.now()
        elif point == "done":
            self._recorder.note("backward", self._began, self._recorder.now(), f"grain {grain}")

    def step(self) -> None:
        self.trainer.step(next(self.shares))


# ---- the plain loop


class Reducer(ABC):
    """Turns a plain loop's gradients into the batch's."""

    module: nn.Module
    """The model that the loss is computed with."""

    @abstractmethod
    def backward(self, loss: Tensor, scale: float) -> None:
        """Go from a loss that counts for so much of the batch to the batch's gradient, in `.grad`;
        note the backward pass and the wait after it."""

    def running(self) -> AbstractContextManager[None]:
        """A context around steps that follow one another."""
        return nullcontext()


class Unreduced(Reducer):
    """What one worker needs: its gradient is the batch's."""

    def __init__(self, model: nn.Module, recorder: PhaseRecorder) -> None:
        self.module = model
        self._recorder = recorder

    def backward(self, loss: Tensor, scale: float) -> None:
        began = self._recorder.now()
        loss.backward(torch.full_like(loss, scale))
        self._recorder.note("backward", began, self._recorder.now())


class PlainLoop(Engine):
    """The usual training loop: zero, forward, backward, step."""

    def __init__(
        self,
        recipe: Recipe,
        options: Options,
        session: Session,
        recorder: PhaseRecorder,
        make_reducer: Callable[[nn.Module], Reducer],
    ) -> None:
        self._recipe = recorder.recipe(recipe)
        self._seed = options.seed
        self._session = session
        self._total_weight = recorder.timed("wait", self._add_weights, "weights")
        seed_everything(key("model", options.seed))
        self.model = recipe.model().to(session.device)
        self.optimizer = recipe.optimizer(p for p in self.model.parameters() if p.requires_grad)
        self._schedule = None if recipe.schedule is None else recipe.schedule(self.optimizer)
        self._reducer = make_reducer(self.model)
        recorder.optimizer(self.optimizer)
        self.shares = shares_of(recipe, options, session, recorder, exact=False)

    def running(self) -> AbstractContextManager[None]:
        return self._reducer.running()

    def step(self) -> None:
        recipe, share = self._recipe, next(self.shares)
        batch, worker = share.batch, self._session.worker
        division = divide(batch, self._session.num_workers, exact=False)
        (examples,) = division.grains(worker).values()
        data = to_device(next(share.grains), self._session.device)
        scale = len(examples) / len(batch.examples)
        if recipe.weight is not None:
            mine = float(recipe.weight(data))
            scale = mine / (self._total_weight(mine) or 1.0)
        seed_everything(key("grain", self._seed, batch.step, worker))
        if recipe.augment is not None:
            draws = Draws(seed=self._seed, epoch=batch.epoch, examples=examples)
            data = recipe.augment(data, draws)
        self.optimizer.zero_grad(set_to_none=True)
        device = self._session.device.type
        with torch.autocast(device, recipe.autocast, enabled=recipe.autocast is not None):
            loss = self._loss(data)
        self._reducer.backward(loss, scale)
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm)
        self.optimizer.step()
        if self._schedule is not None and recipe.schedule_every == "step":
            self._schedule.step()
        loss.item()  # people look at the loss

    def _add_weights(self, weight: float) -> float:
        return math.fsum(self._session.collective.gather_rows(np.array([weight])).ravel())

    def _loss(self, data: Any) -> Tensor:
        module = self._reducer.module
        try:
            found: Tensor = loss_alone(self._recipe.loss(module, data))
            return found
        except AttributeError as error:
            if error.obj is module and module is not self.model:
                raise UserError(
                    f"ddp: the recipe's loss uses model.{error.name}, which {type(module).__name__}"
                    " hides; profile without ddp, or let the loss only call the model"
                ) from error
            raise
        except RuntimeError as error:
            if "Expected to have finished reduction" in str(error):
                raise UserError(
                    "ddp: a worker's share gave some parameters no gradient, which DDP does not "
                    "take; profile without ddp"
                ) from error
            raise


def ring_bytes(num_bytes: int, num_workers: int) -> int:
    """Bytes that each worker sends to sum so many in a ring."""
    return round(2 * (num_workers - 1) / num_workers * num_bytes)


class Ddp(Reducer):
    """torch's DistributedDataParallel as it comes: static buckets of 25 MiB (the first one of 1),
    all-reduced by gloo while backward goes on. It waits inside of backward; the wait begins with
    the last gradient, or the last bucket that left. Where a model has buffers, forward begins with
    copying worker 0's to all: that wait counts as forward."""

    def __init__(self, model: nn.Module, peers: Peers, recorder: PhaseRecorder) -> None:
        self._peers = peers
        self._recorder = recorder
        self._last = 0.0
        """When the newest gradient was there, or the newest bucket left."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._note_gradient)
        self.module = data_parallel(model, self._reduce)

    def _note_gradient(self, _: Tensor) -> None:
        self._last = self._recorder.now()

    def _reduce(self, number: int, values: Tensor) -> torch.futures.Future[Tensor]:
        recorder, name = self._recorder, f"bucket {number}"
        step, launched = recorder.step, recorder.now()
        sent = ring_bytes(values.nbytes, self._peers.num_workers)

        def arrived(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            recorder.note_beside("reduction", launched, recorder.now(), name, step, sent)
            return future.value()[0]

        future = self._peers.add_begin(values).then(arrived)
        self._last = recorder.now()
        return future

    def backward(self, loss: Tensor, scale: float) -> None:
        began = self._recorder.now()
        try:
            loss.backward(torch.full_like(loss, scale))
        except RuntimeError as error:
            if "gloo" in str(error):
                raise WorkerLost(f"another worker left or stopped answering ({error})") from error
            raise
        ended, computed = self._recorder.now(), max(self._last, began)
        self._recorder.note("backward", began, computed)
        self._recorder.note("wait", computed, ended)
