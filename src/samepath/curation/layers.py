"""Looking into a model while it runs: layers by name, and what passes through them.

In: a model, a layer as it is typed (NAME: its output; NAME:input: what goes into it). Out: a tap
that holds what passed in the last forward pass.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from samepath.errors import UserError

INPUT = ":input"
WHOLE = "model"
"""The name of the model itself."""
_SHOWN = 40


def named(model: nn.Module) -> dict[str, nn.Module]:
    """All modules by name."""
    return {name or WHOLE: module for name, module in model.named_modules()}


class Tap:
    """What passed through one side of a layer, the last time it ran."""

    def __init__(self, layer: str, model: nn.Module) -> None:
        self.layer = layer
        modules = named(model)
        name = layer.removesuffix(INPUT)
        if name not in modules:
            raise UserError(f"--layer {layer}: {_unknown(name, list(modules))}")
        self.value: Tensor | None = None
        if layer.endswith(INPUT):
            self._handle = modules[name].register_forward_pre_hook(self._incoming)
        else:
            self._handle = modules[name].register_forward_hook(self._outgoing)

    def _incoming(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.value = _first_tensor(inputs)

    def _outgoing(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.value = _first_tensor(output)

    def rows(self, num_examples: int) -> Tensor:
        """What passed, one flat row per example."""
        if self.value is None:
            raise UserError(f"--layer {self.layer}: no tensor passed there; choose another layer")
        if not self.value.ndim or len(self.value) != num_examples:
            raise UserError(
                f"--layer {self.layer}: it has the shape {tuple(self.value.shape)} for "
                f"{num_examples} examples; choose a layer whose first dimension is the examples"
            )
        return self.value.detach().reshape(num_examples, -1).float()

    def close(self) -> None:
        self._handle.remove()


@contextmanager
def tapped(model: nn.Module, *layers: str) -> Iterator[list[Tap]]:
    """Taps on some layers of a model."""
    taps: list[Tap] = []
    try:
        taps += [Tap(layer, model) for layer in layers]
        yield taps
    finally:
        for tap in taps:
            tap.close()


def last_linear(model: nn.Module, forward: Callable[[], Any]) -> str | None:
    """The name of the linear layer that runs last in a forward pass."""
    ran: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *passed: ran.append(name)

    handles = [
        module.register_forward_hook(note(name))
        for name, module in named(model).items()
        if isinstance(module, nn.Linear)
    ]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return ran[-1] if ran else None


def no_linear(model: nn.Module) -> UserError:
    names = list(named(model))
    return UserError(f"the model runs no nn.Linear to take features at; --layer: {_listed(names)}")


def _unknown(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"the model has no such layer;{hint} {_listed(names)}"


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"choose one of {', '.join(names[:_SHOWN])}{more} (add {INPUT} for what goes into it)"


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, tuple, list)):
        for item in items:
            if (found := _first_tensor(item)) is not None:
                return found
    return None
