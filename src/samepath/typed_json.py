"""JSON read back as dataclasses.

In: a type, as a field is annotated with it, and a value of JSON. Out: the value as that type.
Guaranteed: a value of another type raises ValueError; fields with a default may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from samepath.data.limits import brief

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def read_as(kind: Any, value: Any) -> Any:
    """The value as the given type; ValueError where it is of another."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):  # "or None" is the only one
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else read_as(inner, value)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        there = [f.name for f in fields(kind) if f.name in value or f.default is MISSING]
        return kind(**{name: read_as(hints[name], value[name]) for name in there})
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(read_as(arguments[0], item) for item in value)
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return {name: read_as(arguments[1], item) for name, item in value.items()}
    if kind is float and (type(value) in (int, float) or value in _WORDS):
        return _WORDS.get(value, value)
    if type(value) is kind or (get_origin(kind) is Literal and value in arguments):
        return value
    raise ValueError(f"{brief(repr(value))} where {getattr(kind, '__name__', kind)} is due")
