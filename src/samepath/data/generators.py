"""Random generators that data sets, transforms and collate functions keep for themselves.

In: any object. Out: the generators that can be reached from it, each with the path that leads to
it; then, for every example, all of them set from one key. Guaranteed: what a transform draws
depends on (seed, epoch, example) and on where the transform stands in the data set, not on the
items that were loaded before in this process.

Reached are attributes, slots, elements of lists, tuples and dicts, partials, bound methods,
closures, attributes of classes, and what methods name of their module's globals: a generator, an
object, or a function of that module. Containers of more than 1,000 elements are taken for data and
sets have no order: neither is looked into. What lies in C code or in another library's globals
cannot be seen; `samepath verify` finds that by its effect.
"""

from __future__ import annotations

import operator
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samepath.keys import key

KINDS = (
    np.random.RandomState,
    np.random.Generator,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
)
_MOST_ELEMENTS = 1000
_MOST_OBJECTS = 100_000
_BITS_128 = (1 << 128) - 1
_SPREAD = 0x2360ED051FC65DA44385DF649FCCF645
"""PCG64's own multiplier (O'Neill 2014)."""
_LEAVES = (
    str, bytes, int, float, complex, type(None), range, PurePath, Tensor, np.ndarray, np.generic,
    torch.dtype, torch.device, ModuleType, CodeType,
)  # fmt: skip


@dataclass(frozen=True)
class KeptGenerator:
    """Where a generator is kept. It is read for every item: a transform may replace it."""

    path: str
    """How to get there from the data set: `transform.transforms[2].R`."""
    read: Callable[[], Any]


class Generators:
    """All generators that can be reached from some objects."""

    def __init__(self, **roots: Any) -> None:
        self._roots = roots
        self.places = find_generators(**roots)
        self._is_first = True

    def seed(self, word: int) -> None:
        """Set every generator from one key, each differently."""
        for place in self.places:
            with suppress(LookupError, AttributeError, ValueError):  # it is gone
                seed_generator(place.read(), key("generator", word, place.path))

    def grew(self) -> bool:
        """Look once more after the first item: many a transform makes its generator when it is
        first used. Whether there is a new one."""
        if not self._is_first:
            return False
        self._is_first = False
        before = {place.path for place in self.places}
        self.places = find_generators(**self._roots)
        return not {place.path for place in self.places} <= before


def seed_generator(generator: Any, word: int) -> None:
    """Set one generator from a 64-bit key; anything else is left alone."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(word)
    elif isinstance(generator, random.Random):
        generator.seed(word)
    elif isinstance(generator, np.random.RandomState):
        if isinstance(generator._bit_generator, np.random.MT19937):
            generator.seed(word & 0xFFFFFFFF)
        else:
            fresh = np.random.RandomState(_alike(generator._bit_generator, word))
            generator.set_state(fresh.get_state(legacy=False))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _state(generator.bit_generator, word)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = _state(generator, word)


def _alike(bits: np.random.BitGenerator, word: int) -> np.random.BitGenerator:
    kind: Any = type(bits)
    made: np.random.BitGenerator = kind(word)
    return made


def _state(bits: np.random.BitGenerator, word: int) -> Mapping[str, Any]:
    if type(bits) is not np.random.PCG64:
        return _alike(bits, word).state
    # default_rng's: its state is two numbers of 128 bits, and spreading a seed over them takes ten
    # times as long as setting them
    numbers = {"state": word * _SPREAD & _BITS_128, "inc": word << 1 | 1}
    return {"bit_generator": "PCG64", "state": numbers, "has_uint32": 0, "uinteger": 0}


def find_generators(**roots: Any) -> list[KeptGenerator]:
    """The generators that can be reached, nearest first."""
    return _Walk(roots).found


class _Walk:
    """One look through everything that can be reached."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.found: list[KeptGenerator] = []
        # set for every example as it is: see randomness.seed_everything
        everyones = [np.random.mtrand._rand, random._inst, torch.default_generator]
        self._met = {id(each): each for each in everyones}
        """Objects by id, kept so that no other object takes the id."""
        self._left: deque[tuple[str, Any]] = deque()
        for name, root in roots.items():
            self._meet(name, partial(_same, root))
        while self._left and len(self._met) < _MOST_OBJECTS:
            path, value = self._left.popleft()
            for inner, read in _inside(path, value):
                self._meet(inner, read)

    def _meet(self, path: str, read: Callable[[], Any]) -> None:
        try:
            value = read()
        except Exception:  # a property or proxy of somebody's, a cell without content
            return
        if isinstance(value, _LEAVES) or id(value) in self._met:
            return
        self._met[id(value)] = value
        if isinstance(value, KINDS):
            self.found.append(KeptGenerator(path, read))
        else:
            self._left.append((path, value))


def _same(value: Any) -> Any:
    return value


def _inside(path: str, value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What a value holds, and how to read it there."""
    if isinstance(value, (list, tuple)):
        if len(value) <= _MOST_ELEMENTS:
            for number in range(len(value)):
                yield f"{path}[{number}]", partial(operator.getitem, value, number)
    elif isinstance(value, dict):
        if len(value) <= _MOST_ELEMENTS:
            for name in value:
                yield f"{path}[{name!r}]", partial(operator.getitem, value, name)
    elif isinstance(value, FunctionType):
        yield from _of_function(path, value)
    elif isinstance(value, (MethodType, BuiltinFunctionType)):
        yield f"{path}.__self__", partial(_same, value.__self__)
        if isinstance(value, MethodType):
            yield f"{path}.__func__", partial(_same, value.__func__)
    elif isinstance(value, partial):
        for name in ("func", "args", "keywords"):
            yield f"{path}.{name}", partial(getattr, value, name)
    elif isinstance(value, (staticmethod, classmethod)):
        yield path, partial(_same, value.__func__)
    elif isinstance(value, property):
        yield path, partial(_same, value.fget)
    elif isinstance(value, type):
        for name, held in list(vars(value).items()):
            if not isinstance(held, type) and not name.startswith("__abstract"):
                yield f"{path}.{name}", partial(_of_class, value, name)
    if isinstance(value, type):
        return
    own = getattr(value, "__dict__", None)
    for name in list(own) if isinstance(own, dict) else ():
        yield f"{path}.{name}", partial(operator.getitem, own, name)
    for kind in type(value).__mro__:
        if kind.__module__ == "builtins":
            continue
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield f"{path}.{name}", partial(getattr, value, name)
        yield f"{path}.{kind.__qualname__}", partial(_same, kind)


def _of_class(kind: type, name: str) -> Any:
    """A class's attribute, without what `getattr` makes of it."""
    return vars(kind)[name]


def _of_function(path: str, function: FunctionType) -> Iterator[tuple[str, Callable[[], Any]]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        yield f"{path}.{name}", partial(getattr, cell, "cell_contents")
    yield f"{path}.__defaults__", partial(getattr, function, "__defaults__")
    yield f"{path}.__kwdefaults__", partial(getattr, function, "__kwdefaults__")
    home = function.__globals__
    for name in _names(function.__code__):
        held = home.get(name)
        if isinstance(held, FunctionType) and held.__globals__ is not home:
            continue  # another module's: what it keeps is its own
        if not isinstance(held, (type, *_LEAVES)):
            yield f"{home.get('__name__')}.{name}", partial(operator.getitem, home, name)


def _names(code: CodeType) -> Iterator[str]:
    """Global names that a function's code mentions, in itself or in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
