"""Forward and backward of one grain.

In: a trainer, a grain's examples, and what the grain counts for. Out: its loss; its gradient is
with the batch's sum. Guaranteed: random numbers are keyed by (seed, step, grain), so that nothing
depends on which worker computes it, or after which other grain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath.data import Draws, seed_everything
from samepath.engine.adversarial import moved
from samepath.engine.evaluation import to_device
from samepath.engine.gradients import GradientSum
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Batch
from samepath.strategies import Adversarial

if TYPE_CHECKING:
    from samepath.engine.trainer import Trainer


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
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is {loss!r}"
        raise UserError(
            f"the loss of a grain {shape}; return a tensor with one number, the mean over its "
            "examples"
        )
    gradients.before_backward(measure=measure)
    if scale:  # a grain that counts for nothing may have no loss to speak of (0 / 0)
        loss.backward(torch.full_like(loss, scale))
    watch("done", number, None)
    gradients.after_backward()
    return loss.detach().reshape(())
