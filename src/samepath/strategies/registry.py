"""Strategies by name, with their parameters.

In: text such as "warmup:epochs=10", the name of a strategy that was registered, or the path of a
Python file with a `strategy(k, moment)` function. Out: a FoundStrategy. Guaranteed: a parameter
that does not exist, or a value that does not fit, is an error that says what does.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from samepath.errors import UserError
from samepath.strategies.choice import Choice, Measure, Moment, Strategy
from samepath.strategies.growth import CurvatureAdversarial, CurvatureGrowth, Decay, Growth, Noise
from samepath.strategies.late import Asynchronous, Stale
from samepath.strategies.scaling import Lamb, Lars, Linear, Sqrt, SqrtWarmup, Strong, Warmup, Weak

BUILT_IN: Mapping[str, Callable[..., Strategy]] = {
    "strong": Strong,
    "weak": Weak,
    "linear": Linear,
    "warmup": Warmup,
    "sqrt": Sqrt,
    "sqrt-warmup": SqrtWarmup,
    "lars": Lars,
    "lamb": Lamb,
    "decay": Decay,
    "growth": Growth,
    "curvature": CurvatureGrowth,
    "curvature-adversarial": CurvatureAdversarial,
    "noise": Noise,
    "stale": Stale,
    "asynchronous": Asynchronous,
}
_registered: dict[str, Strategy] = {}


@dataclass(frozen=True)
class FoundStrategy:
    """A strategy, and where it came from."""

    name: str
    """The text that was typed."""
    identity: str
    """What a resumed run must match: the text itself, or the file's SHA-256."""
    function: Strategy

    def __call__(self, k: int, moment: Moment) -> Choice:
        return self.function(k, moment)

    def measures(self, k: int) -> tuple[Measure, ...]:
        """Quantities to measure at the end of every epoch; none for k = 1: there is no choice."""
        return getattr(self.function, "measures", ()) if k > 1 else ()


def register_strategy(name: str, strategy: Strategy) -> None:
    """Make a strategy known by a name, in a recipe's file for instance."""
    if name in BUILT_IN or not name.replace("-", "_").isidentifier():
        raise UserError(f"strategy {name!r}: give a name of letters and dashes that is not taken")
    _registered[name] = strategy


def find_strategy(text: str, identity: str | None = None) -> FoundStrategy:
    """The strategy that a text names. With an identity, a file of any other is refused before any
    of it is executed."""
    if text.endswith(".py"):
        return _of_file(text, identity)
    name, *said = text.split(":")
    if name in _registered:
        if said:
            raise UserError(f"strategy {text!r}: {name!r} was registered and takes no parameters")
        return FoundStrategy(text, text, _registered[name])
    if name not in BUILT_IN:
        names = [*BUILT_IN, *_registered]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "there are: " + ", ".join(names) + "."
        raise UserError(
            f"unknown strategy {name!r}; {hint} (a path to a Python file with a strategy() works "
            "too)"
        )
    parameters = dict(_parameter(name, part) for part in said)
    try:
        return FoundStrategy(text, text, BUILT_IN[name](**parameters))
    except UserError as error:
        raise UserError(f"strategy {text!r}: {error}") from None


def _parameter(name: str, part: str) -> tuple[str, Any]:
    kind: Any = BUILT_IN[name]
    types = get_type_hints(kind)
    known = {field.name: types[field.name] for field in fields(kind)}
    parameter, equals, value = part.partition("=")
    if not equals or parameter not in known:
        can = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(
            f"strategy {name!r} has no parameter {part!r}; {can} (as {name}:NAME=VALUE)"
        )
    wanted = "a number"
    try:
        if known[parameter] in (int, int | None):
            wanted = "a whole number"
            return parameter, int(value)
        if known[parameter] == tuple[int, ...]:
            wanted = "whole numbers joined by +"
            return parameter, tuple(int(number) for number in value.split("+"))
        return parameter, float(value)
    except ValueError:
        raise UserError(f"strategy {name!r}: {part!r} is not {wanted}; try {parameter}=5") from None


def _of_file(text: str, expected: str | None) -> FoundStrategy:
    path = Path(text)
    if not path.is_file():
        raise UserError(f"strategy file {text!r} does not exist; check the path")
    source = path.read_bytes()
    identity = hashlib.sha256(source).hexdigest()
    if expected not in (None, identity):
        raise UserError(f"{text} has changed since the run began; put it back as it was")
    module_name = "samepath_strategy_" + path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"strategy file {text!r} raised {type(error).__name__}: {error}") from error
    function = getattr(module, "strategy", None)
    if not callable(function):
        raise UserError(f"strategy file {text!r} has no strategy(k, moment) function; add one")
    return FoundStrategy(text, identity, function)
