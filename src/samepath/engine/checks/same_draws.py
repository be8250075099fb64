"""Random numbers that belong to examples, for a loss that is computed on parts of a batch.

In: the sizes of two grains, and a loss that draws random numbers. Out: the loss of both together,
and of each alone with the numbers that its examples had in both: what then differs is not chance.
Guaranteed: where that cannot be told (examples are permuted, a generator is nobody's) an
`Untold` is raised, and no number is made up. Seen are torch's random operations, of whatever
generator; Python's and numpy's global generators must come out alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from samepath.data.randomness import seed_everything

_ORDERS = ("randperm",)
"""Random operations whose numbers are places of other examples."""


class Untold(Exception):
    """It cannot be told which example a random number belongs to."""


class SameDraws(TorchDispatchMode):
    """Notes the random numbers of a batch of both grains, then gives parts of it the same."""

    def __init__(self, total: int, *, interleaved: bool) -> None:
        """`total`: the examples of both. Where an example has several rows of numbers, they lie
        next to one another (`interleaved`: heads of attention), or the batch lies there several
        times (views)."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._total = total
        self._interleaved = interleaved
        self._drawn: list[tuple[Any, list[Any], Tensor]] = []
        self._places: dict[int, tuple[int, int] | None] = {}
        """By number of the draw: the dimension of the examples, and how many rows each has."""
        self._left: Any = None
        self.rows: list[int] | None = None
        """Which examples the next part has; None: all, and their numbers are noted."""
        self.several = False
        """Whether an example has several rows of numbers."""
        self.outside = False
        """Whether Python's or numpy's generators were drawn from."""

    def begin(self, rows: Sequence[int] | None) -> None:
        seed_everything(0)
        self._seeded = _of_python_and_numpy()
        self._number, self.rows = 0, None if rows is None else list(rows)

    def end(self) -> None:
        """Raise unless this part drew as often as the whole."""
        left = _of_python_and_numpy()
        if self.rows is None:
            self._left, self.outside = left, left != self._seeded
        elif left != self._left or self._number != len(self._drawn):
            raise Untold

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return found
        name = func.overloadpacket.__name__
        mask = name == "native_dropout"
        drawn = found[1] if mask else found
        if not isinstance(drawn, Tensor) or (name == "multinomial" and args[0].ndim < 2):
            raise Untold
        told = [name, *(each for each in args if isinstance(each, Number))]
        if self.rows is None:
            if name in _ORDERS:
                raise Untold
            self._drawn.append((func, told, drawn.clone()))
            return found
        drawn.copy_(self._given(func, told, drawn))
        if mask:
            found[0].copy_(args[0] * drawn / (1 - args[1]))
        return found

    def _given(self, func: Any, told: list[Any], drawn: Tensor) -> Tensor:
        """The numbers of these examples in the next draw."""
        number, self._number = self._number, self._number + 1
        if number >= len(self._drawn) or self._drawn[number][:2] != (func, told):
            raise Untold
        assert self.rows is not None
        whole = self._drawn[number][2]
        if number not in self._places:
            self._places[number] = self._place(whole.shape, drawn.shape, len(self.rows))
        place = self._places[number]
        if place is None:
            given = whole
        else:
            dimension, each = place
            rows = torch.tensor(self.rows)
            if self._interleaved:
                index = (rows[:, None] * each + torch.arange(each)).flatten()
            else:
                index = (rows + self._total * torch.arange(each)[:, None]).flatten()
            given = whole.index_select(dimension, index.to(whole.device))
        if given.shape != drawn.shape:
            raise Untold
        return given

    def _place(self, whole: torch.Size, part: torch.Size, num_rows: int) -> tuple[int, int] | None:
        if whole == part:
            return None
        other = [n for n, sizes in enumerate(zip(whole, part, strict=False)) if len(set(sizes)) > 1]
        if len(whole) != len(part) or len(other) != 1:
            raise Untold
        (dimension,) = other
        each, rest = divmod(whole[dimension], self._total)
        if rest or part[dimension] != each * num_rows:
            raise Untold
        self.several |= each > 1
        return dimension, each


def _of_python_and_numpy() -> Any:
    kind, keys, *places = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), places
