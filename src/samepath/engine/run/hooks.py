"""`after_step(run)` and `after_epoch(run)`: a recipe's own code between steps.

In: a trainer, and what it has done. Out: whatever the recipe changes (weights, the optimizer, extra
state, the epoch's metrics), and whether the training is to end. Guaranteed: hooks run on every
worker, with the same random numbers, before the step is saved; a stop that one worker asks for is
all workers'; metrics and extra state that differ between workers end the run by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from samepath.data.sources import Data
from samepath.engine.checks.replicas import refuse_other_values
from samepath.engine.run.evaluation import evaluate
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.settings import StepResult
from samepath.errors import UserError
from samepath.recipe import Recipe


class HookRun:
    """A run as `after_step(run)` and `after_epoch(run)` see it."""

    result: StepResult
    """The result of the last update."""

    def __init__(self, trainer: Trainer, valid: Data | None) -> None:
        self._trainer = trainer
        self._valid = valid
        self.epoch = 0
        """The epoch under way, from 0; in after_epoch the one that has just ended."""
        self.metrics: dict[str, float] = {}
        """The epoch's validation metrics, in after_epoch. What is added is logged with them."""
        self.stops = False

    @property
    def model(self) -> nn.Module:
        return self._trainer.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._trainer.optimizer

    @property
    def schedule(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        return self._trainer.schedule

    @property
    def extra(self) -> dict[str, Any]:
        """The extra state, by name."""
        return self._trainer.extra

    @property
    def step(self) -> int:
        """Steps completed."""
        return self._trainer.step_number

    @property
    def is_first(self) -> bool:
        """True on the worker that prints and writes."""
        return self._trainer.collective.worker == 0

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Means over the validation data with another model, such as averaged weights (on every
        worker)."""
        if self._valid is None:
            raise UserError("run.evaluate() needs validation data; give the recipe `valid`")
        self._trainer.settle()
        return evaluate(self._trainer, self._trainer.source(self._valid), model)

    def stop(self) -> None:
        """End the training after this step."""
        self.stops = True


class Hooks:
    """Calls a recipe's hooks."""

    def __init__(self, recipe: Recipe, trainer: Trainer) -> None:
        self._after_step, self._after_epoch = recipe.after_step, recipe.after_epoch
        self._trainer = trainer
        self._run = HookRun(trainer, recipe.valid)

    def after_step(self, results: list[StepResult]) -> bool:
        """Once for every update; whether the training is to end."""
        for result in results:
            self._run.result, self._run.epoch = result, result.epoch
            if self._after_step is not None:
                self._after_step(self._run)
        return bool(results) and self._after_step is not None and self._stops()

    def after_epoch(self, epoch: int, metrics: dict[str, float]) -> bool:
        """Once an epoch, after its evaluation; whether the training is to end. `metrics` are the
        epoch's, to which the recipe may add."""
        trainer = self._trainer
        if self._after_epoch is None:
            return False
        self._run.epoch, self._run.metrics = epoch, metrics
        self._after_epoch(self._run)
        for name, value in metrics.items():
            metrics[name] = float(value)
        refuse_other_values(trainer.collective, {"run.metrics": metrics}, f"after epoch {epoch}")
        trainer.compare_extra(f"after epoch {epoch}")
        return self._stops()

    def _stops(self) -> bool:
        """Whether any worker asks for it (all workers together)."""
        for pending in self._trainer.pending:
            pending.know()  # one gather travels at a time
        return not self._trainer.collective.agree(not self._run.stops)
