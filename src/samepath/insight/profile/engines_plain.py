"""The loop everyone writes, and how torch's DDP and a queue like Horovod's sum its gradients.

In: a recipe, and a Reducer. Out: an Engine. Guaranteed: each worker computes its whole share of a
batch at once, and a share counts for as much of the gradient as it has of the batch's examples (or
of the recipe's weight), so that shares need not be equal. Buffers are as these engines have them:
DDP copies worker 0's to all before a forward pass, a queue leaves each worker its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from samepath.data import Draws, seed_everything
from samepath.engine.comm.peers import Peers, data_parallel
from samepath.engine.run.options import Options
from samepath.errors import UserError, WorkerLost
from samepath.insight.profile.engines_base import Engine, shares_of
from samepath.insight.profile.queue_reduction import QueueReduction, QueueSettings
from samepath.insight.profile.recorder import Recorder
from samepath.keys import key
from samepath.plan import divide
from samepath.recipe import Recipe


class Reducer(ABC):
    """How a plain loop's gradients become the batch's."""

    module: nn.Module
    """What the loss is computed with."""

    @abstractmethod
    def backward(self, loss: Tensor, scale: float) -> None:
        """From a loss that counts for so much of the batch to the batch's gradient, in `.grad`;
        notes the backward pass and the wait after it."""

    def running(self) -> AbstractContextManager[None]:
        """Around steps that follow one another."""
        return nullcontext()


class PlainLoop(Engine):
    """The loop everyone writes: zero, forward, backward, step."""

    def __init__(
        self,
        recipe: Recipe,
        options: Options,
        recorder: Recorder,
        make_reducer: Callable[[nn.Module], Reducer],
        *,
        worker: int,
        workers: int,
        total: Callable[[float], float],
    ) -> None:
        """`total` sums a number over all workers."""
        self._recipe = recorder.recipe(recipe)
        self._seed = options.seed
        self._worker, self._workers, self._total = worker, workers, total
        seed_everything(key("model", options.seed))
        self.model = recipe.model()
        self.optimizer = recipe.optimizer(p for p in self.model.parameters() if p.requires_grad)
        self._schedule = None if recipe.schedule is None else recipe.schedule(self.optimizer)
        self._reducer = make_reducer(self.model)
        recorder.optimizer(self.optimizer)
        self.shares = shares_of(
            recipe, options, recorder, worker=worker, workers=workers, exact=False
        )

    def running(self) -> AbstractContextManager[None]:
        return self._reducer.running()

    def step(self) -> None:
        recipe, share = self._recipe, next(self.shares)
        batch = share.batch
        (examples,) = divide(batch, self._workers, exact=False).grains(self._worker).values()
        data = next(share.grains)
        scale = len(examples) / len(batch.examples)
        if recipe.weight is not None:
            mine = float(recipe.weight(data))
            scale = mine / (self._total(mine) or 1.0)
        seed_everything(key("grain", self._seed, batch.step, self._worker))
        if recipe.augment is not None:
            draws = Draws(seed=self._seed, epoch=batch.epoch, examples=examples)
            data = recipe.augment(data, draws)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", recipe.autocast, enabled=recipe.autocast is not None):
            loss = self._loss(data)
        self._reducer.backward(loss, scale)
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm)
        self.optimizer.step()
        if self._schedule is not None and recipe.schedule_every == "step":
            self._schedule.step()
        loss.item()  # people look at the loss

    def _loss(self, data: Any) -> Tensor:
        module = self._reducer.module
        try:
            return self._recipe.loss(module, data)
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


class LastGradient:
    """When the newest gradient was there: where a backward pass has nothing left to compute."""

    def __init__(self, model: nn.Module, now: Callable[[], float]) -> None:
        self.at = 0.0
        self._now = now
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook)

    def _hook(self, _: Tensor) -> None:
        self.at = self._now()


class Ddp(Reducer):
    """torch's DistributedDataParallel as it comes: static buckets of 25 MiB (the first one of 1),
    all-reduced by gloo while backward goes on. It waits inside of backward; the wait begins with
    the last gradient, or the last bucket that left. Where a model has buffers, forward begins with
    copying worker 0's to all: that wait counts as forward."""

    def __init__(self, model: nn.Module, peers: Peers, recorder: Recorder) -> None:
        self._peers = peers
        self._recorder = recorder
        self._last = LastGradient(model, recorder.now)
        self.module = data_parallel(model, self._reduce)

    def _reduce(self, number: int, values: Tensor) -> torch.futures.Future[Tensor]:
        recorder, workers = self._recorder, self._peers.num_workers
        step, launched = recorder.step, recorder.now()
        sent = round(2 * (workers - 1) / workers * values.nbytes)

        def arrived(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            recorder.note_beside(
                "reduction", launched, recorder.now(), f"bucket {number}", step, sent
            )
            return future.value()[0]

        future = self._peers.add_begin(values).then(arrived)
        self._last.at = recorder.now()
        return future

    def backward(self, loss: Tensor, scale: float) -> None:
        began = self._recorder.now()
        try:
            loss.backward(torch.full_like(loss, scale))
        except RuntimeError as error:
            if "gloo" in str(error):
                raise WorkerLost(f"another worker left or stopped answering ({error})") from error
            raise
        ended, computed = self._recorder.now(), max(self._last.at, began)
        self._recorder.note("backward", began, computed)
        self._recorder.note("wait", computed, ended)


class Queued(Reducer):
    """Horovod's way, ours: gradients announce themselves to a QueueReduction. What a worker had no
    gradient for is announced as zeros after its backward pass, as Horovod's optimizer does."""

    def __init__(
        self,
        model: nn.Module,
        peers: Peers,
        recorder: Recorder,
        settings: QueueSettings,
    ) -> None:
        self.module = model
        self._recorder = recorder
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._queue = QueueReduction(peers, len(self._parameters), recorder, settings)
        self._announced = [False] * len(self._parameters)
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self._announced[index] = True
            self._queue.announce(index, parameter.grad)

        return ready

    def backward(self, loss: Tensor, scale: float) -> None:
        recorder = self._recorder
        self._announced = [False] * len(self._parameters)
        began = recorder.now()
        loss.backward(torch.full_like(loss, scale))
        for index, parameter in enumerate(self._parameters):
            if not self._announced[index]:
                parameter.grad = torch.zeros_like(parameter)
                self._queue.announce(index, parameter.grad)
        recorder.note("backward", began, recorder.now())
        recorder.timed("wait", self._queue.wait)()

    def running(self) -> AbstractContextManager[None]:
        return self._queue.running()
