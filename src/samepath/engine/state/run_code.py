"""The Python files that a run's folder names: found, compared, and only then run.

In: what run.json says. Out: the recipe, and the text that names the strategy. Guaranteed: nothing
of a file whose SHA-256 is not the one that the run began with is executed, nor a recipe that would
import one; what is executed is what was compared. Files are looked for where they were when the run
began, then where the typed path leads from here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samepath.builtin import BUILT_IN
from samepath.engine.checks.own_modules import changed_modules
from samepath.errors import UserError
from samepath.files import read_whole
from samepath.recipe import FoundRecipe, find_recipe

MOST_SOURCE_BYTES = 1 << 24


def code_of(found: FoundRecipe, strategy: str) -> dict[str, Any]:
    """What run.json says of them, beside what was typed."""
    return {
        "recipe": None if found.name in BUILT_IN else os.path.abspath(found.name),
        "strategy": os.path.abspath(strategy) if strategy.endswith(".py") else None,
        "draws": found.recipe.show is not None,
    }


def needs_code_to_draw(record: Mapping[str, Any]) -> bool:
    """Its recipe has pictures of its own (or, in a run of an older samepath, may have)."""
    return _code(record).get("draws") is not False


def recipe_of_run(record: Mapping[str, Any], folder: Path) -> FoundRecipe:
    """The recipe of the run in a folder, on the data it was trained with."""
    config = record["config"]
    name, source = config["recipe"], None
    if name not in BUILT_IN:
        path, source = _file(record, "recipe", "identity", folder)
        name = str(path)
    elif config.get("identity") != name:
        raise _changed("recipe", name, folder)
    for file in changed_modules(name, _modules(config)):
        raise _changed("file", file, folder)
    threads = config.get("threads", 1)
    found = find_recipe(name, config.get("data"), config.get("keep"), source, threads=threads)
    for what, identity, here in (
        ("data", "data_identity", found.data_identity),
        ("keep", "keep_identity", found.keep_identity),
    ):
        if config.get(identity) != here:
            raise _changed("keep-list" if what == "keep" else what, config[what], folder)
    return found


def strategy_of_run(record: Mapping[str, Any], folder: Path) -> str:
    """What names its strategy, from wherever it is read."""
    strategy = str(record["config"].get("strategy", "strong"))
    if not strategy.endswith(".py"):
        return strategy
    return str(_file(record, "strategy", "strategy_identity", folder)[0])


def _file(record: Mapping[str, Any], what: str, identity: str, folder: Path) -> tuple[Path, bytes]:
    """Where one is that holds what it held, and that."""
    typed, then = record["config"][what], _code(record).get(what)
    places = [place for place in (then, typed) if isinstance(place, str)]
    there = False
    for place in dict.fromkeys(map(os.path.abspath, places)):
        try:
            source = read_whole(Path(place), MOST_SOURCE_BYTES)
        except (OSError, ValueError) as error:
            there = there or not isinstance(error, FileNotFoundError)
            continue
        there = True
        if hashlib.sha256(source).hexdigest() == record["config"].get(identity):
            return Path(place), source
    if there:
        raise _changed(what, typed, folder)
    raise UserError(
        f"the {what} {typed} of the run {folder} is not there ({places[0]}); put it back, "
        "or go to where it was typed"
    )


def _changed(what: str, name: str, folder: Path) -> UserError:
    return UserError(
        f"the {what} {name} has changed since the run {folder} began; put it back as it was"
    )


def _modules(config: Mapping[str, Any]) -> dict[str, str]:
    """The user's own modules that the recipe imported, and what was in them."""
    modules = config.get("modules")
    return modules if isinstance(modules, dict) else {}


def _code(record: Mapping[str, Any]) -> Mapping[str, Any]:
    code = record.get("code")
    return code if isinstance(code, dict) else {}
