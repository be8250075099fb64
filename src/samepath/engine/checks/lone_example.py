"""Whether a grain of one example gets through batch norm: found out before the first step.

In: a recipe, a model to throw away, a plan. Out: nothing, or a UserError that names the batch and
what to change. Only a plan whose last grain has one example, where the others have more, is looked
at, and only for a model with batch norm: nothing else takes any time.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from samepath.data import Draws, GrainRequest, Loaders, as_source, seed_everything
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Plan
from samepath.recipe import Recipe

_TORCH_SAYS = "Expected more than 1 value per channel"


def refuse_lone_example(recipe: Recipe, model: nn.Module, plan: Plan) -> None:
    """Raise if a batch of the plan ends with a grain that batch norm cannot take."""
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return
    if plan.batch_size % plan.grain_size == 1 and _fails(recipe, model, plan, step=0):
        raise UserError(
            f"the last grain of every batch has 1 example ({plan.batch_size} in grains of "
            f"{plan.grain_size}), and the model's batch norm needs more; use a batch_size that "
            "grain_size divides"
        )
    last = plan.steps_per_epoch - 1
    size = len(plan.batch(last).examples)
    if (
        size < plan.batch_size
        and size % plan.grain_size == 1
        and _fails(recipe, model, plan, step=last)
    ):
        raise UserError(
            f"the last batch of an epoch ends with a grain of 1 example ({size} left of "
            f"{plan.num_examples} examples, in grains of {plan.grain_size}), and the model's batch "
            "norm needs more; use drop_last=True, or another batch_size or grain_size"
        )


def _fails(recipe: Recipe, model: nn.Module, plan: Plan, *, step: int) -> bool:
    """Whether batch norm refuses the last grain of a batch. (Any other error is left to the step
    that meets it, which can say where and on which worker.)"""
    batch = plan.batch(step)
    number = batch.num_grains - 1
    examples = batch.grain(number)
    # a data set that will be read by loader processes must not open its files here
    loaders = Loaders(1 if recipe.loader_workers else 0)
    source = as_source(recipe.train, seed=plan.seed, loaders=loaders, collate=recipe.collate)
    autocast = recipe.autocast
    try:
        (data,) = source.load([GrainRequest(batch.epoch, examples)])
        seed_everything(key("grain", plan.seed, step, number))
        if recipe.augment is not None:
            data = recipe.augment(data, Draws(seed=plan.seed, epoch=batch.epoch, examples=examples))
        with nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast):
            recipe.loss(model, data)
    except Exception as error:
        return _TORCH_SAYS in str(error)
    return False
