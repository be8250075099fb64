"""What every `study.json` that a test writes must be."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from samepath.files import finite
from samepath.study.results import from_json, to_json


def checked_study(file: Path) -> dict[str, Any]:
    """The content of a `study.json`: valid by its schema, and the same after it was read."""
    content: dict[str, Any] = json.loads(file.read_text())
    schema = json.loads((files("samepath.study") / "study.schema.json").read_text())
    jsonschema.validate(content, schema)
    assert json.loads(json.dumps(finite(to_json(from_json(content))))) == content
    return content
