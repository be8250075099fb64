"""Forward and backward of one grain.

In: a trainer, a grain's examples, and what the grain counts for. Out: its loss; its gradient is
with the batch's sum. Guaranteed: random numbers are keyed by (seed, step, grain), so that nothing
depends on which worker computes it, or after which other grain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath.data import Draws, seed_everything
from samepath.engine.run.evaluation import to_device
from samepath.engine.step.adversarial import moved
from samepath.engine.step.balance import Stopwatch
from samepath.engine.step.gradients import GradientSum
from samepath.engine.step.grain_loader import Mine
from samepath.engine.step.settings import Share
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Batch, Division
from samepath.strategies import Adversarial

if TYPE_CHECKING:
    from samepath.engine.step.trainer import Trainer


def weigh(
    trainer: Trainer, share: Share, division: Division, mine: Mine, busy: Stopwatch
) -> tuple[Iterator[Any], dict[int, float], float]:
    """This worker's grains, what each counts for in the batch's mean, and what the batch counts for
    in the epoch's."""
    weight, collective = trainer.settings.weight, trainer.collective
    if weight is None:
        total = len(share.batch.examples)
        scales = {n: len(examples) / total for n, examples in mine.items()}
        return share.grains, scales, float(total)
    # The weight of the whole batch must be known before the first backward pass
    if trainer.underway:
        trainer.underway[-1].know()
    weights = np.zeros(division.most_grains)
    with busy:
        data = [to_device(next(share.grains), collective.device) for _ in mine]
        weights[: len(data)] = [float(weight(grain)) for grain in data]
    records = collective.gather(weights.view(np.uint8))
    batch_weight = math.fsum(w for record in records for w in record.view(np.float64))
    if not math.isfinite(batch_weight) or min(weights, default=0.0) < 0:
        raise UserError(f"weight() gave {weights.tolist()}; weights must be finite and >= 0")
    scales = {
        number: float(of_grain) / batch_weight if batch_weight else 0.0
        for number, of_grain in zip(mine, weights, strict=False)
    }
    return iter(data), scales, batch_weight


def compute_grain(
    trainer: Trainer,
    batch: Batch,
    number: int,
    examples: NDArray[np.int64],
    data: Any,
    scale: float,
    gradients: GradientSum,
    attack: Adversarial | None,
    *,
    measure: bool,
) -> Tensor:
    """The loss; `measure` has the gradient's norm taken."""
    settings, watch = trainer.settings, trainer.watch
    data = to_device(data, trainer.collective.device)
    watch("loaded", number, data)
    watch("weight", number, scale)
    gradients.before_forward()
    seed_everything(key("grain", settings.seed, batch.step, number))
    if settings.augment is not None:
        draws = Draws(seed=settings.seed, epoch=batch.epoch, examples=examples)
        data = settings.augment(data, draws)
        watch("augmented", number, data)
    if attack is not None:
        with trainer.forward_context():
            data = moved(attack, data, trainer.model, trainer.loss)
        seed_everything(key("grain", settings.seed, batch.step, number))
    with trainer.forward_context():
        loss = trainer.loss(trainer.model, data)
    watch("loss", number, loss)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
        shape = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is {loss!r}"
        raise UserError(
            f"the loss of a grain {shape}; return a tensor with one number, the mean over its "
            "examples"
        )
    start = torch.full_like(loss, scale)
    # a loss of 16 bits has no room for most scales; what is lost of them is made up for in the
    # gradients, which have more
    correction = 1.0
    if scale and loss.dtype.itemsize < 4:
        if not float(start):  # too small for any
            start = torch.ones_like(loss)
        correction = scale / float(start)
    gradients.before_backward(measure=measure, correction=correction)
    # a grain that counts for nothing may have no loss to speak of (0 / 0); one of which nothing is
    # to be learnt may have one without a gradient
    if scale and loss.requires_grad:
        loss.backward(start)
    watch("done", number, None)
    gradients.after_backward()
    return loss.detach().reshape(())
