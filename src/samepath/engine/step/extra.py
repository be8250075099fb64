"""State of a training beside weights, buffers and what torch's optimizers save.

In: functions that make extra state of the model (averaged weights, a teacher), and an optimizer as
it is when a trainer is made. Out: objects with `state_dict` and `load_state_dict`, and the
attributes that the optimizer has changed since (numbers, text, tensors, lists and dicts of them),
which torch's state_dict() leaves out. Both are in the digest and in every checkpoint. Code that
changes them (`after_step`, `after_epoch`, a person's own loop) does so on every worker alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from samepath.engine.comm.tensors import fingerprint
from samepath.errors import UserError

_TORCHS = (
    "defaults",
    "state",
    "param_groups",
    "step",  # wrapped by a schedule, which also notes that it was called:
    "_opt_called",
    "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured",
    "_need_device_dtype_check_for_fused",
    "_step_supports_amp_scaling",
)
"""Attributes of torch's own, beside its hooks."""


def make_extra(
    makers: Mapping[str, Callable[[nn.Module], Any]], model: nn.Module
) -> dict[str, Any]:
    """Make the extra state of a model, by name."""
    made = {}
    for name, make in makers.items():
        if not callable(make) or isinstance(make, nn.Module):
            raise UserError(
                f"extra[{name!r}] is {type(make).__name__}; give a function that makes it of the "
                f"model (extra={{{name!r}: lambda model: AveragedModel(model)}})"
            )
        made[name] = make(model)
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(made[name], method, None)):
                raise UserError(
                    f"extra[{name!r}] makes {type(made[name]).__name__}, which has no {method}(); "
                    "give it state_dict() and load_state_dict(), so that it can be saved"
                )
    return made


class OwnAttributes:
    """An optimizer's attributes as they were."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._began = copy.deepcopy(_attributes(optimizer))
        self._prints = {name: fingerprint(value) for name, value in self._began.items()}

    def changed(self) -> dict[str, Any]:
        """Return the entries that are not what they were."""
        now = _attributes(self._optimizer)
        return {n: v for n, v in now.items() if self._prints.get(n) != fingerprint(v)}

    def restore(self, changed: Mapping[str, Any]) -> None:
        """Set those that were changed in a saved state, and the others to what they were."""
        for name in _attributes(self._optimizer).keys() - self._began.keys() - changed.keys():
            delattr(self._optimizer, name)
        for name, value in (self._began | {**changed}).items():
            setattr(self._optimizer, name, copy.deepcopy(value))


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(optimizer).items()
        if not (name in _TORCHS or name.startswith("_optimizer_")) and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    """Whether a value can be saved, and is no part of the model."""
    if isinstance(value, Mapping):
        return all(isinstance(k, (str, int)) and _is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, Tensor):
        return not (isinstance(value, nn.Parameter) or value.requires_grad)
    return value is None or isinstance(value, (bool, int, float, str))
