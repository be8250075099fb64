"""Write the JSON schema of `study.json` from the dataclasses it is made of. A test checks that it
is up to date, and that what studies write is valid."""

from __future__ import annotations

import inspect
import json
import types
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from samepath.files import NOT_FINITE
from samepath.study.results import GridStudy, Study

ROOT = Path(__file__).parents[1]
OUT = (ROOT / "src/samepath/study/study.schema.json", ROOT / "docs/study.schema.json")
"""With the package, and beside the page that links to it."""
PLAIN = {int: "integer", str: "string", bool: "boolean", type(None): "null"}


def schema() -> dict[str, Any]:
    """The whole schema: a race or a grid."""
    definitions: dict[str, Any] = {
        "number": {
            "description": "A number; what JSON has no words for is text.",
            "anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}],
        }
    }
    kinds = [("race", Study), ("grid", GridStudy)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "study.json, what `samepath study` found",
        "oneOf": [_object(kind, definitions, {"kind": {"const": name}}) for name, kind in kinds],
        "$defs": definitions,
    }


def _object(kind: type, definitions: dict[str, Any], also: dict[str, Any]) -> dict[str, Any]:
    """A dataclass; fields that have a default are not in files of an older samepath."""
    hints = get_type_hints(kind)
    named = {each.name: _value(hints[each.name], definitions) for each in fields(kind)}
    return {
        "description": " ".join((inspect.getdoc(kind) or "").split()),
        "type": "object",
        "properties": also | named,
        "required": [*also, *(f.name for f in fields(kind) if _is_required(f))],
        "additionalProperties": False,
    }


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # it is being written
            definitions[kind.__name__] = _object(kind, definitions, {})
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if kind is float:
        return {"$ref": "#/$defs/number"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_value(each, definitions) for each in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _value(arguments[1], definitions)}
    return {"type": PLAIN[kind]}


def render() -> str:
    """The file's text."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    for file in OUT:
        file.write_text(render())
