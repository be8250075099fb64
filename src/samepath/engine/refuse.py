"""What the engine cannot train, refused by name before anything starts.

In: a model and an optimizer. Out: nothing, or a UserError that says what to use instead.
"""

from __future__ import annotations

import torch
from torch import nn

from samepath.errors import UserError

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
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise UserError(f"{where} makes sparse gradients; set sparse=False")
        if any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
            raise UserError(
                f"{where} has no weights before its first forward pass; run one example through "
                "the model in the recipe's model()"
            )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("LBFGS evaluates the loss several times a step; use SGD, Adam or AdamW")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UserError("SparseAdam takes sparse gradients; use Adam")
    if not {"state", "param_groups"} <= optimizer.state_dict().keys():
        raise UserError(
            f"{type(optimizer).__name__} keeps its state in a form of its own, which cannot be "
            "saved; use the optimizer inside it, or one that is a torch.optim.Optimizer throughout"
        )
    ours = {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in ours for parameter in group["params"]):
            raise UserError(
                "the optimizer updates a tensor that is not a parameter of the model; "
                "make it an nn.Parameter of a module"
            )


def refuse_sparse(name: str) -> UserError:
    """For a gradient that a function made sparse, unseen before it ran."""
    return UserError(f"the gradient of {name!r} is sparse; call F.embedding with sparse=False")
