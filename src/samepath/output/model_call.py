"""How a recipe's loss calls its model.

In: a recipe, its model, a batch. Out: the arguments that the model was given (what an exported
model takes), and, where they are parts of the batch as they are, the same call on another batch.
Where a loss calls parts of the model and never the model itself, what the recipe's `predict` calls
counts, else the model's forward with the first part of a batch.
Guaranteed: a loss that changes its inputs first, or calls the model several times, is refused by
name: what such a model is to be asked is for the recipe's `predict` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samepath.data import seed_everything
from samepath.engine.checks.replicas import LeftAlone
from samepath.errors import UserError
from samepath.files import brief
from samepath.keys import key
from samepath.recipe import Recipe

_ADD = "add predict=lambda model, batch: ... to the recipe"
Place = tuple[Any, ...]
"""Keys that lead from a batch to a part of it: (0,) is batch[0]."""


def bare(model: nn.Module) -> nn.Module:
    """The module inside what torch.compile made of it: the same parameters, eager code."""
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner
    return model


def forward_context(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """The autocast that the recipe's forward passes run under."""
    if recipe.autocast is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=recipe.autocast)


@dataclass(frozen=True)
class ModelInputs:
    """Arguments that a model was called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def watch_calls(recipe: Recipe, model: nn.Module, batch: Any) -> list[ModelInputs]:
    """Run the recipe's loss on a batch; every call of the model within it. The model is as it was
    afterwards."""
    calls = _calls_in(recipe.loss, recipe, model, batch)
    if not calls and recipe.predict is not None:
        calls = _calls_in(recipe.predict, recipe, model, batch)
    if not calls:
        calls = _forward_calls(recipe, model, batch)
    return calls


def _forward_calls(recipe: Recipe, model: nn.Module, batch: Any) -> list[ModelInputs]:
    """The call of the model with the first part of a batch, where it takes that."""
    never = (
        f"the loss of the recipe {recipe.origin.name!r} never calls model(...), so it does not "
        "show what the model takes"
    )
    first = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(first, Tensor):
        raise UserError(f"{never}; call the model as model(inputs), or {_ADD}")
    try:
        return _calls_in(lambda model, _: model(first), recipe, model, batch)
    except Exception as error:  # a person's forward, which may want anything
        raise UserError(
            f"{never}, and its forward() does not take the first part of a batch "
            f"({brief(error) or type(error).__name__}); call the model as model(inputs), or {_ADD}"
        ) from error


def _calls_in(
    function: Callable[[nn.Module, Any], Any], recipe: Recipe, model: nn.Module, batch: Any
) -> list[ModelInputs]:
    calls: list[ModelInputs] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(ModelInputs(args, kwargs))

    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    before = LeftAlone(model)
    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        seed_everything(key("watch"))
        with torch.no_grad(), forward_context(recipe, device):
            function(model, batch)
    finally:
        handle.remove()
        before.put_back()
    return calls


@dataclass(frozen=True)
class ModelCall:
    """The same call of a model on any batch."""

    args: tuple[Any, ...]
    """A `_Part` of the batch, or a value that is the same every time."""
    kwargs: dict[str, Any]

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        kwargs = {
            name: _fetch(value, batch)
            for name, value in self.kwargs.items()
            if not (isinstance(value, _Part) and not value.is_in(batch))  # labels, say
        }
        return model(*(_fetch(value, batch) for value in self.args), **kwargs)


@dataclass(frozen=True)
class _Part:
    place: Place

    def is_in(self, batch: Any) -> bool:
        for name in self.place:
            if isinstance(batch, Mapping):
                if name not in batch:
                    return False
            elif name >= len(batch):
                return False
            batch = batch[name]
        return True


def learn_call(recipe: Recipe, model: nn.Module, batch: Any) -> ModelCall:
    """The call of the model in the recipe's loss, to be repeated on other batches."""
    calls = watch_calls(recipe, model, batch)
    if len(calls) > 1:
        raise UserError(
            f"the loss of the recipe {recipe.origin.name!r} calls the model {len(calls)} times; "
            f"{_ADD}, to say which answer is the prediction"
        )
    places = {id(part): place for place, part in _parts(batch)}

    def learned(value: Any) -> Any:
        if id(value) in places:
            return _Part(places[id(value)])
        if _is_plain(value):
            return value
        raise UserError(
            f"the loss of the recipe {recipe.origin.name!r} gives the model something that it "
            f"makes of a batch, not a part of the batch as it is; {_ADD}"
        )

    (call,) = calls
    return ModelCall(
        tuple(map(learned, call.args)), {name: learned(v) for name, v in call.kwargs.items()}
    )


def _parts(batch: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The batch and everything in it, with the keys that lead there."""
    yield place, batch
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            yield from _parts(value, (*place, name))
    elif isinstance(batch, (tuple, list)):
        for number, value in enumerate(batch):
            yield from _parts(value, (*place, number))


def _is_plain(value: Any) -> bool:
    """Whether a value has no tensor in it that may differ from batch to batch."""
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device))


def _fetch(value: Any, batch: Any) -> Any:
    if not isinstance(value, _Part):
        return value
    for name in value.place:
        batch = batch[name]
    return batch


def rows_of(answer: Any, num_examples: int, whose: str) -> dict[str, Tensor]:
    """The tensors with one row per example in what a model returned, by name. Single numbers (a
    loss beside the logits), None and objects are left out."""
    named: dict[str, Any]
    if isinstance(answer, Mapping):
        named = {str(name): value for name, value in answer.items()}
    elif hasattr(answer, "_fields"):
        named = answer._asdict()
    elif isinstance(answer, (tuple, list)):
        named = {f"output_{number}": value for number, value in enumerate(answer)}
    else:
        named = {"output": answer}
    found = {n: v.detach() for n, v in named.items() if isinstance(v, Tensor) and v.ndim}
    for name, value in found.items():
        if len(value) != num_examples:
            raise UserError(
                f"{whose} returned {name!r} of shape {tuple(value.shape)} for {num_examples} "
                f"examples; return one row per example ({_ADD})"
            )
    if not found:
        raise UserError(
            f"{whose} returned {type(answer).__name__} without a tensor of one row per example; "
            f"{_ADD}"
        )
    return found
