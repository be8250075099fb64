"""Models of adapters: made anew for every run, and found again by their parameters.

In: a module, or a function that makes one. Out: a function for `Recipe.model`, and for a recipe's
optimizer the model whose parameters it is given: other libraries make an optimizer from a model.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from samepath.errors import UserError


class Models:
    """Makes models, and knows those that are still in use."""

    def __init__(self, given: Any, prepare: Callable[[nn.Module], nn.Module]) -> None:
        """`given` is a module, of which every run gets a copy, or a function that makes one."""
        self._given = given
        self._prepare = prepare
        self._made: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def make(self) -> nn.Module:
        given = self._given
        made = copy.deepcopy(given) if isinstance(given, nn.Module) else given()
        made = self._prepare(made)
        self._made.add(made)
        return made

    def of(self, parameters: Iterable[nn.Parameter]) -> nn.Module:
        """Find the model with these parameters."""
        first = next(iter(parameters))
        for model in list(self._made):
            if any(parameter is first for parameter in model.parameters()):
                return model
        raise UserError(
            "the optimizer was given parameters of a model that is not this recipe's; give it "
            "those of the model that model() returned"
        )


def refuse_arguments(
    given: Iterable[str], taken: Iterable[str], hints: dict[str, str], where: str
) -> None:
    """Raise for arguments of another library that have no place in a recipe, by name."""
    taken = sorted(taken)
    for name in given:
        if name not in taken:
            instead = hints.get(name, "leave it out; taken are: " + ", ".join(taken))
            raise UserError(f"{where} has no place for {name}; {instead}")
