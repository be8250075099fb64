"""Everything a trainer remembers, as named tensors and JSON; and the digest that stands for it.

In: a trainer. Out: a State, or a trainer put back into one.
Guaranteed: equal digests mean equal bytes of weights, buffers and optimizer state; no pickle.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samepath.engine.comm.tensors import bytes_of, same_bits
from samepath.engine.noise_scale import GrainNorms
from samepath.engine.step.pending import PendingBatch
from samepath.engine.step.record import StepFacts
from samepath.engine.step.step import Stepper
from samepath.errors import CheckpointDamaged, UserError

MISSHAPEN = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError)
"""What reading a state raises that is not as we write it, or not of this model."""
_OF_OPTIMIZERS = ("state", "param_groups")
_OF_PENDING = ("step", "epoch", "num_examples", "weight")


@dataclass(frozen=True)
class State:
    """Tensors by name, and a JSON value that says where each belongs."""

    tensors: dict[str, Tensor]
    structure: dict[str, Any]

    def clone(self) -> State:
        """Copy the state into memory of its own."""
        return State({n: tensor.clone() for n, tensor in self.tensors.items()}, self.structure)


def state_of(trainer: Stepper) -> State:
    """The state of a trainer; its tensors are the trainer's own, not copies."""
    tensors: dict[str, Tensor] = {}
    model = trainer.model
    persistent = model.state_dict()
    buffers = {n: b for n, b in model.named_buffers() if n not in persistent}
    packed, order = trainer.optimizer.state_dict(), _names_in_order(trainer)
    if "" in order or not all(isinstance(index, int) for index in packed["state"]):
        what = "a tensor that is no parameter of the model any more (was it tied or replaced?)"
        raise UserError(
            f"the optimizer holds {what if '' in order else 'state that belongs to no parameter'}; "
            "that cannot be saved"
        )
    # sorted: torch keeps them in the order of first use, and forgets that order on loading
    remembered = {order[index]: value for index, value in sorted(packed["state"].items())}
    groups = [
        {name: value for name, value in group.items() if name != "params"}
        for group in packed["param_groups"]
    ]
    parts: dict[str, Any] = {
        "model": persistent,
        "buffers": buffers,
        "optimizer": remembered,
        "groups": groups,
        "schedule": None if trainer.schedule is None else trainer.schedule.state_dict(),
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
    }
    if more := {name: value for name, value in packed.items() if name not in _OF_OPTIMIZERS}:
        parts["more of the optimizer"] = more
    if attributes := trainer.attributes.changed():
        parts["attributes"] = attributes
    if len(groups) > trainer.num_groups:  # added when something was unfrozen
        names = iter(order)
        named = [[next(names) for _ in group["params"]] for group in packed["param_groups"]]
        parts["added"] = named[trainer.num_groups :]
    if trainer.scaling is not None:
        parts["scaling"] = trainer.scaling.state_dict()
    if trainer.extra:
        parts["extra"] = {name: each.state_dict() for name, each in trainer.extra.items()}
    if trainer.pending:  # gradients that wait for their turn
        parts["underway"] = [_encode_pending(pending) for pending in trainer.pending]
    structure = {name: _encode(value, name, tensors) for name, value in parts.items()}
    return State(tensors, structure | {"step": trainer.step_number})


def _names_in_order(trainer: Stepper) -> list[str]:
    """Names of the optimizer's parameters in its order; empty for one that is not the model's."""
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    groups = trainer.optimizer.param_groups
    return [names.get(id(parameter), "") for group in groups for parameter in group["params"]]


def _encode_pending(pending: PendingBatch) -> dict[str, Any]:
    assert pending.gradients is None, "settle() comes before the state is looked at"
    assert pending.facts is not None
    found: dict[str, Any] = {name: getattr(pending, name) for name in _OF_PENDING}
    found["loss"] = pending.facts.loss
    found["grain_losses"] = list(pending.facts.grain_losses)
    if pending.facts.grain_norms is not None:
        found["grain_norms"] = asdict(pending.facts.grain_norms)
    if pending.facts.metrics:
        found["metrics"] = pending.facts.metrics
    if pending.behind:
        found["behind"] = pending.behind
    return found | {"gradient": pending.totals}  # the digest covers this order


def _decode_pending(value: dict[str, Any], parameters: Sequence[nn.Parameter]) -> PendingBatch:
    facts = StepFacts(
        loss=value["loss"],
        grain_losses=tuple(value["grain_losses"]),
        grain_norms=GrainNorms(**value["grain_norms"]) if "grain_norms" in value else None,
        stop=False,
        used=[gradient is not None for gradient in value["gradient"]],
        buffers=[],
        metrics=value.get("metrics", {}),
    )
    return PendingBatch(
        **{name: value[name] for name in _OF_PENDING},
        facts=facts,
        totals=[
            None if gradient is None else like(parameter, gradient)
            for parameter, gradient in zip(parameters, value["gradient"], strict=True)
        ],
        buffers_merged=True,
        behind=value.get("behind", 0),
    )


def load_model(model: nn.Module, state: State) -> None:
    """Put a model, and nothing else, into a state."""
    try:
        model.load_state_dict(_decode(state.structure["model"], state.tensors))
        buffers = dict(model.named_buffers())
        for name, value in _decode(state.structure["buffers"], state.tensors).items():
            if not same_bits(buffers[name], value.to(buffers[name].device)):
                buffers[name].copy_(value)
    except MISSHAPEN as error:
        raise CheckpointDamaged(
            f"the checkpoint does not fit this recipe's model ({one_line(error)})"
        ) from error


def load_state(trainer: Stepper, state: State) -> None:
    """Put a trainer into a state."""
    structure = state.structure
    try:
        model = trainer.model
        load_model(model, state)
        if "frozen" in structure:  # which an older samepath did not know
            frozen = set(_decode(structure["frozen"], state.tensors))
            for name, parameter in model.named_parameters():
                if parameter.requires_grad == (name in frozen):
                    parameter.requires_grad_(name not in frozen)
        remembered = _decode(structure["optimizer"], state.tensors)
        groups = _decode(structure["groups"], state.tensors)
        _add_groups(trainer, groups, _decode(structure.get("added"), state.tensors) or [])
        packed, order = trainer.optimizer.state_dict(), _names_in_order(trainer)
        for group, now in zip(groups, packed["param_groups"], strict=True):
            group["params"] = now["params"]
        trainer.optimizer.load_state_dict(
            {
                "state": {i: remembered[n] for i, n in enumerate(order) if n in remembered},
                "param_groups": groups,
                **(_decode(structure.get("more of the optimizer"), state.tensors) or {}),
            }
        )
        trainer.attributes.restore(_decode(structure.get("attributes"), state.tensors) or {})
        parameters_in_order = (p for g in trainer.optimizer.param_groups for p in g["params"])
        _settle(
            trainer.optimizer,
            {p: remembered.get(n, {}) for p, n in zip(parameters_in_order, order, strict=True)},
        )
        if trainer.schedule is not None and structure["schedule"] is not None:
            trainer.schedule.load_state_dict(_decode(structure["schedule"], state.tensors))
        if trainer.scaling is not None:
            trainer.scaling.load_state_dict(_decode(structure["scaling"], state.tensors))
        _load_extra(trainer, _decode(structure.get("extra"), state.tensors) or {})
        trainer.step_number = int(structure["step"])
        waiting = _decode(structure.get("underway"), state.tensors) or []
        parameters = list(trainer.model.parameters())
        trainer.pending = deque(_decode_pending(value, parameters) for value in waiting)
    except MISSHAPEN as error:
        raise CheckpointDamaged(
            f"the checkpoint does not fit this recipe's model and optimizer ({one_line(error)})"
        ) from error


def _add_groups(trainer: Stepper, groups: list[dict[str, Any]], added: list[list[str]]) -> None:
    """Give the optimizer the groups of parameters that it had when it was saved."""
    optimizer, parameters = trainer.optimizer, dict(trainer.model.named_parameters())
    for group in optimizer.param_groups[trainer.num_groups :]:
        for parameter in group["params"]:
            optimizer.state.pop(parameter, None)
    del optimizer.param_groups[trainer.num_groups :]
    for group, names in zip(groups[trainer.num_groups :], added, strict=True):
        optimizer.add_param_group({**group, "params": [parameters[name] for name in names]})


def _load_extra(trainer: Stepper, saved: dict[str, Any]) -> None:
    if saved.keys() != trainer.extra.keys():
        here, there = (", ".join(names) or "none" for names in (trainer.extra, saved))
        raise ValueError(f"its extra state is {there}, and here there is {here}")
    for name, each in trainer.extra.items():
        each.load_state_dict(_own(saved[name]))


def extra_of(state: State, name: str) -> Any:
    """The state_dict of an object of extra state, as it was saved."""
    return _own((_decode(state.structure.get("extra"), state.tensors) or {})[name])


def _own(value: Any) -> Any:
    """A decoded value whose tensors are in memory of their own, not the file's."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _own(each) for name, each in value.items()}
    return type(value)(map(_own, value)) if isinstance(value, (list, tuple)) else value


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """A loaded gradient in memory of its own (not the file's), where and as its parameter lies:
    kernels choose by layout."""
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _settle(optimizer: torch.optim.Optimizer, saved: Mapping[Tensor, Mapping[str, Any]]) -> None:
    """Give loaded tensors memory of their own too, laid out as the optimizer makes them, and the
    dtype they had: torch has given them their parameter's."""
    for parameter, remembered in optimizer.state.items():
        for name, value in remembered.items():
            if isinstance(value, Tensor):
                before = saved.get(parameter, {}).get(name)
                source = before if isinstance(before, Tensor) else value
                source = value if source.dtype == value.dtype else source
                like = parameter if value.shape == parameter.shape else value
                remembered[name] = torch.empty_like(
                    like, dtype=source.dtype, device=value.device, requires_grad=False
                ).copy_(source)


def check(state: State) -> None:
    """Raise one of MISSHAPEN unless this is the state of some trainer."""
    step = state.structure["step"]
    if type(step) is not int or step < 0:
        raise ValueError(f"its step is {step!r}")
    for value in state.structure.values():
        _decode(value, state.tensors)


def one_line(error: BaseException) -> str:
    """An error's name and words, however long they are, in one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")


def digest(state: State) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all tensors, and over the other values. What
    an optimizer keeps in attributes of its own is left out: it may be times."""
    total = hashlib.sha256()
    for name in sorted(name for name in state.tensors if not name.startswith("attributes/")):
        tensor = state.tensors[name].detach()
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(bytes_of(tensor))
    rest = {k: v for k, v in state.structure.items() if k not in ("step", "attributes")}
    if not _decode(rest.get("frozen"), {}):
        rest.pop("frozen", None)  # as if it were of an older samepath
    total.update(json.dumps(rest, sort_keys=True).encode())
    return total.hexdigest()


def refuse_unsavable(extra: Mapping[str, Any]) -> None:
    """Raise for extra state that cannot be saved, before it is to be."""
    _encode({name: each.state_dict() for name, each in extra.items()}, "extra", {})


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for a value; tensors go to `tensors` and leave their name behind."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
        return {"$tensor": name}
    if isinstance(value, Mapping):
        return {"$map": [[k, _encode(v, f"{name}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "$tuple" if isinstance(value, tuple) else "$list"
        return {kind: [_encode(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UserError(
        f"{name} holds a {type(value).__name__}, which cannot be saved without pickle; "
        "keep tensors, numbers, text, lists or dicts there"
    )


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "$tensor":
        return tensors[inner]
    if kind == "$map":
        return {k: _decode(v, tensors) for k, v in inner}
    items = [_decode(v, tensors) for v in inner]
    return tuple(items) if kind == "$tuple" else items
