"""The published schema of `study.json` is that of the dataclasses, and refuses what is not."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from write_study_schema import OUT, render

SCHEMA = files("samepath.study") / "study.schema.json"


def test_it_is_up_to_date() -> None:
    assert str(SCHEMA) == str(OUT[0])
    for file in OUT:
        assert file.read_text() == render(), "run python scripts/write_study_schema.py"


def test_it_is_a_schema_and_refuses_other_things() -> None:
    schema: dict[str, Any] = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    others: list[Any] = [{}, {"kind": "race"}, {"kind": "grid", "format": 1}, []]
    for content in others:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content, schema)
