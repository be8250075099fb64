"""Refusals by name, before anything starts, of what the engine cannot train.

In: a model and an optimizer, later a recipe and its plan. Out: nothing, or a UserError that says
what to use instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from samepath.data import Draws, GrainRequest, Loaders, as_source, seed_everything
from samepath.engine.checks.replicas import LeftAlone
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Plan
from samepath.recipe import Recipe, WholeBatchLoss, sampled

_SYNCHRONISES_ITSELF = (
    "SyncBatchNorm",
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
)


def refuse_unsupported(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise for models and optimizers that break the promise or the engine."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        where = f"{kind} at {name!r}" if name else kind
        if kind in _SYNCHRONISES_ITSELF:
            instead = "use plain BatchNorm" if kind == "SyncBatchNorm" else "pass the plain module"
            raise UserError(f"{where} synchronises workers by itself; {instead}, samepath does it")
        is_embedding = isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        if is_embedding and module.sparse:
            raise UserError(f"{where} makes sparse gradients; set sparse=False")
        if is_embedding and module.max_norm is not None:
            raise UserError(
                f"{where} has max_norm, which changes the weights of the words it meets during the "
                "forward pass, so that workers would part; renormalise once a step instead: "
                "optimizer.register_step_post_hook"
            )
        if any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
            raise UserError(
                f"{where} has no weights before its first forward pass; run one example through "
                "the model in the recipe's model()"
            )
    for name, buffer in model.named_buffers():
        if buffer.is_conj() or buffer.is_neg():
            raise UserError(
                f"buffer {name!r} is a conjugate view; use resolve_conj().resolve_neg()"
            )
        if buffer.layout != torch.strided:
            raise UserError(
                f"buffer {name!r} is {str(buffer.layout).removeprefix('torch.')}; keep it dense "
                "(buffer.to_dense()), or outside buffers, so that it can be compared and saved"
            )
    refuse_hooks(dict(model.named_parameters()))
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("LBFGS evaluates the loss several times a step; use SGD, Adam or AdamW")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{type(optimizer).__name__} needs a closure, with which it evaluates the loss several "
            "times a step; use SGD, Adam or AdamW"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UserError("SparseAdam takes sparse gradients; use Adam")
    if not {"state", "param_groups"} <= optimizer.state_dict().keys():
        raise UserError(
            f"{type(optimizer).__name__} keeps its state in a form of its own, which cannot be "
            "saved; use the optimizer inside it, or one that is a torch.optim.Optimizer throughout"
        )
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not updated <= {id(parameter) for parameter in model.parameters()}:
        raise UserError(
            "the optimizer updates a tensor that is not a parameter of the model; make it an "
            "nn.Parameter of a module"
        )


def modules_outside(loss: Callable[..., Any], model: nn.Module) -> nn.ModuleList:
    """Modules that a loss has beside the model: itself, its object's, closure's or partial's, or
    global variables that it names."""
    if isinstance(loss, WholeBatchLoss):
        parts = (modules_outside(part, model) for part in (loss.encode, loss.batch_loss))
        return nn.ModuleList([module for found in parts for module in found])
    plain = loss.func if isinstance(loss, partial) else loss
    held = [loss, plain, getattr(plain, "__self__", None)]
    if isinstance(loss, partial):
        held += [*loss.args, *loss.keywords.values()]
    for cell in getattr(plain, "__closure__", None) or ():
        with suppress(ValueError):  # one that has no content yet
            held.append(cell.cell_contents)
    names = getattr(getattr(plain, "__code__", None), "co_names", ())
    held += [getattr(plain, "__globals__", {}).get(name) for name in names]
    inside = {id(module) for module in model.modules()}
    found = {id(h): h for h in held if isinstance(h, nn.Module) and id(h) not in inside}
    alone = [h for h in found.values() if not any(id(m) in inside for m in h.modules())]
    return nn.ModuleList(alone)


def refuse_outside(modules: LeftAlone) -> None:
    """Raise if a batch's grains have changed modules that are not merged, compared or saved."""
    modules.put_back()
    for name in sorted(modules.changed):
        raise UserError(
            f"the loss changes {name.partition('.')[2]!r} of a module that is not in the model, so "
            "that it depends on which grains a worker has, and is not saved; make that module a "
            "part of the model"
        )


@dataclass(frozen=True)
class OwnHook:
    """A hook of samepath's that autograd calls when it has added to a parameter's `.grad`."""

    function: Callable[[Tensor], None]

    def __call__(self, parameter: Tensor) -> None:
        self.function(parameter)


def refuse_hooks(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise for hooks of the user's that would see a grain's gradient, or several grains' sum."""
    for name, parameter in parameters.items():
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            if not isinstance(hook, OwnHook):
                raise UserError(
                    f"{name!r} has a hook of register_post_accumulate_grad_hook, which would be "
                    "called for every grain and not once a step; use clip_norm, or "
                    "optimizer.register_step_pre_hook, where .grad is the whole batch's"
                )


def refuse_own_backward(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise if a forward pass has left a gradient, which none but samepath's own backward pass
    may."""
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            raise UserError(
                f"loss() or forward() ran a backward pass of its own into {name!r}; take "
                "gradients there with torch.autograd.grad, which leaves .grad alone"
            )


def refuse_sparse(name: str) -> UserError:
    """Make the error for a gradient that a function made sparse, unseen before it ran."""
    return UserError(f"the gradient of {name!r} is sparse; call F.embedding with sparse=False")


# ---- a last grain of one example

_TORCH_SAYS = "Expected more than 1 value per channel"


def refuse_lone_example(recipe: Recipe, model: nn.Module, plan: Plan) -> None:
    """Raise if a batch of the plan ends with a grain of one example that batch norm cannot take.
    Only such a plan, and a model with batch norm, is looked at: nothing else takes any time."""
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return
    for step in (0, plan.steps_per_epoch - 1):
        size = len(plan.batch(step).examples)
        if size % plan.grain_size != 1 or not _fails(recipe, model, plan, step):
            continue
        which, of = "every batch", ""
        remedy = "a batch_size that grain_size divides, or another max_workers"
        if size < plan.batch_size:
            which, of = "the last batch of an epoch", f" left of {plan.num_examples} examples,"
            remedy = "drop_last=True, or another batch_size, grain_size or max_workers"
        raise UserError(
            f"the last grain of {which} has 1 example ({size}{of} in grains of {plan.grain_size}), "
            f"and the model's batch norm needs more; use {remedy}"
        )


def _fails(recipe: Recipe, model: nn.Module, plan: Plan, step: int) -> bool:
    """Whether batch norm refuses the last grain of a batch. (Any other error is left to the step
    that meets it, which can say where and on which worker.)"""
    batch = plan.batch(step)
    number = batch.num_grains - 1
    examples = batch.grain(number)
    # a data set that will be read by loader processes must not open its files here
    loaders = Loaders(1 if recipe.loader_workers else 0)
    source = as_source(recipe.train, seed=plan.seed, loaders=loaders, collate=recipe.collate)
    source = sampled(source, recipe.sampler, seed=plan.seed)
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
