"""What a smaller number of workers at most would gain, found out in the first steps of a run.

In: a trainer, the times of its first steps, a grain as it was trained on. Out: the part of a step
that larger grains would save. Guaranteed: the path is as it was (what is timed is a copy of the
model, random state is put back, and a loss that changes from call to call is not called); it takes
less than a second, on one worker; nothing is said where that cannot be told.

Two sizes are timed, the grain and half of it: their difference is what examples take, the rest
what each grain takes, which larger grains would pay less often. No larger grain than the run's own
is computed, for it may not fit into memory.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from samepath.data.randomness import random_state_kept
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.rows import tensors_in, with_tensors
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.factors import Factors
from samepath.engine.step.loss_metrics import loss_alone
from samepath.plan import grain_size_for
from samepath.recipe import WholeBatchLoss

STEPS = 5
"""The steps of a run after which it is found out; the first warms up."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 10
"""The times that each size is timed, and once before that."""
MOST_SECONDS = 1.0
"""Where the fewest rounds would take longer, nothing is timed."""
LEAST_GAIN = 0.1
"""Less is not worth a line."""


def normalises_over_grains(model: nn.Module) -> bool:
    """Whether another grain size would change what the model computes."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


class FewerWorkers:
    """Looks at the first steps of a run on its first worker."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._data: Any = None
        self._watch = trainer.watch
        trainer.watch = self._see

    def _see(self, point: str, grain: int, value: Any) -> None:
        """Keep the first grain of a step, if it is a whole one with a row for each example."""
        settings = self._trainer.settings
        if grain == 0 and point == ("loaded" if settings.augment is None else "augmented"):
            tensors = tensors_in(value)
            if tensors and all(t.dim() and len(t) == settings.grain_size for t in tensors):
                self._data = value
        self._watch(point, grain, value)

    def words(self, step_seconds: Sequence[float]) -> str:
        """What to say, once so many steps were taken; empty: nothing."""
        self._trainer.watch = self._watch
        gain = self._gain(min(step_seconds[1:]))  # as of grains: others may use the machine
        if gain < LEAST_GAIN:
            return ""
        workers = self._trainer.collective.num_workers
        return (
            f"with --max-workers {workers} a step would take about {gain:.0%} less; no more than "
            f"{workers} could then take part, and the last digits of the result would be others"
        )

    def _gain(self, step_seconds: float) -> float:
        trainer, settings = self._trainer, self._trainer.settings
        batch, size = settings.batch_size, settings.grain_size
        workers = trainer.collective.num_workers
        larger = grain_size_for(batch, workers)
        if larger < 2 * size or size < 2 or self._data is None or not _is_simple(trainer):
            return 0.0
        many = math.ceil(math.ceil(batch / size) / workers)  # of the worker that has most
        if 1.5 * (LEAST_ROUNDS + 1) * step_seconds / many > MOST_SECONDS:
            return 0.0
        half = size // 2
        fewer = with_tensors(self._data, [tensor[:half] for tensor in tensors_in(self._data)])
        try:
            found = self._times({size: self._data, half: fewer})
        except Exception:  # what a half of a grain cannot do, or a copy of the model
            return 0.0
        each = max(found[size] - found[half], 0.0) / (size - half)
        fixed = found[size] - size * each
        saved = many * found[size] - (fixed + larger * each)
        return saved / step_seconds

    def _times(self, grains: dict[int, Any]) -> dict[int, float]:
        """The shortest seconds of a forward and backward pass, by the number of examples."""
        trainer, settings = self._trainer, self._trainer.settings
        model = copy.deepcopy(trainer.model)
        factors = Factors(
            model, dict(model.named_parameters()), settings.factors, settings.batch_size
        )
        found = dict.fromkeys(grains, math.inf)
        # a loss may use another way to the model than its argument, and change what it holds
        as_it_is = [LeftAlone(trainer.model), LeftAlone(trainer.outside)]
        try:
            first = self._now()
            with random_state_kept():
                for number in range(MOST_ROUNDS + 1):
                    if number > LEAST_ROUNDS and self._now() - first > MOST_SECONDS / 2:
                        break
                    for size, data in grains.items():
                        model.zero_grad()
                        began = self._now()
                        with factors.of_grain(size, settings.batch_size):
                            with trainer.forward_context():
                                loss = loss_alone(trainer.loss(model, data))
                            with factors.collecting():
                                loss.backward()
                        if number:
                            found[size] = min(found[size], self._now() - began)
        finally:
            for each in as_it_is:
                each.put_back()
        return found

    def _now(self) -> float:
        """The time when all that was asked of the device is done."""
        if self._trainer.collective.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.collective.device)
        return time.perf_counter()


def _is_simple(trainer: Trainer) -> bool:
    """Whether a grain's loss can be computed by itself, and another grain size leaves what it
    computes as it is. (A loss that counts its calls, say, would go another way for being timed.)"""
    settings, model = trainer.settings, trainer.model
    compiled = settings.compile or any(m._compiled_call_impl is not None for m in model.modules())
    return (
        settings.exact
        and trainer.loss_repeats
        and not compiled
        and not hasattr(model, "_orig_mod")
        and not isinstance(trainer.loss, WholeBatchLoss)
        and not trainer.pending
        and not normalises_over_grains(model)
    )
