"""Fingerprints of what a run is made of and no option names: its data, and the user's own modules.

In: a recipe that was found, and what an earlier start wrote. Out: fingerprints for run.json, or a
UserError that names what has changed. Guaranteed: what an older samepath did not write is not
compared.

The user's own modules are those that a recipe has imported, by their path relative to the recipe's
folder, or by the module's name where it lies elsewhere. Not among them: the recipe's file (which is
compared by itself), samepath, the standard library, installed packages and what they generate, and
compiled code, which differs from one build to the next.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import samepath
from samepath.builtin import BUILT_IN
from samepath.data.content import content_of, held_content, same_content
from samepath.errors import UserError
from samepath.files import content_hash
from samepath.recipe import Recipe

FINGERPRINTS = ("train_content", "valid_content", "modules")
"""Fields of a run's options."""
_DATA = {"train": "training", "valid": "validation"}


def fingerprints(recipe: Recipe, before: Mapping[str, Any]) -> dict[str, Any]:
    """Take the fingerprints of a recipe whose functions have run once; those that were known
    `before` stay."""
    contents = {
        f"{name}_content": before.get(f"{name}_content") or _content(recipe, name) for name in _DATA
    }
    return contents | {"modules": own_modules(recipe.origin.name) | (before.get("modules") or {})}


def refuse_others(recipe: Recipe, before: Mapping[str, Any], *, began: str = "run") -> None:
    """Raise unless data and modules are those of which `before` holds the fingerprints."""
    instead = f"; start a new {began}, or restore"
    for file in changed_modules(recipe.origin.name, before.get("modules") or {}):
        raise UserError(f"cannot resume: {file} changed since the {began} began{instead} the file")
    for name, word in _DATA.items():
        known = before.get(f"{name}_content")
        if known and not same_content(known, _content(recipe, name) or {}):
            raise UserError(
                f"cannot resume: the {word} data changed since the {began} began{instead} the data"
            )


def refuse_others_now(recipe: Recipe, before: Mapping[str, Any]) -> None:
    """Raise in a worker that begins while the run goes on, for changes that can be seen at a
    glance."""
    changed = changed_modules(recipe.origin.name, before.get("modules") or {})
    for name, word in _DATA.items():
        data, known = getattr(recipe, name), before.get(f"{name}_content")
        if known and data is not None:
            now = held_content(data, recipe.collate)
            if not same_content(known, now):
                raise UserError(
                    f"the {word} data of this worker is not the run's: recipe() draws it anew in "
                    "every process (use torch.Generator().manual_seed(0)), or it has changed since "
                    "the run began (put it back as it was)"
                )
    if changed:
        raise UserError(f"{changed[0]} has changed since the run began; put it back as it was")


def _content(recipe: Recipe, name: str) -> dict[str, str] | None:
    data = getattr(recipe, name)
    if data is None:
        return None
    return content_of(data, collate=recipe.collate, loader_workers=recipe.loader_workers)


# ---- the user's own modules

_INSTALLED = {"site-packages", "dist-packages"}
_LOADED_BY_US = ("__main__", "__mp_main__", "samepath_recipe_", "samepath_strategy_")


def own_modules(recipe: str) -> dict[str, str]:
    """Hash the user's modules that are imported now. Call it when the recipe's functions have run
    once, so that those they import are there."""
    folder, found = _folder(recipe), {}
    for name, module in list(sys.modules.items()):
        file, package = _file_of(module), _file_of(sys.modules.get(name.partition(".")[0]))
        if file is None or name.startswith(_LOADED_BY_US) or not _is_own(file):
            continue
        if package is not None and not _is_own(package):
            continue
        file = file.resolve()
        if folder is not None and file == Path(recipe).resolve():
            continue
        if digest := _digest(file):
            inside = folder is not None and file.is_relative_to(folder)
            found[file.relative_to(folder).as_posix() if inside and folder else name] = digest
    return dict(sorted(found.items()))


def changed_modules(recipe: str, before: Mapping[str, str]) -> list[str]:
    """List the modules whose files hold something else now. (Importing one that is gone fails by
    itself.)"""
    folder, changed = _folder(recipe), []
    for name, expected in before.items():
        file = _find(name, folder)
        now = None if file is None else _digest(file)
        if now is not None and now != expected:
            changed.append(name if "/" in name or name.endswith(".py") else str(file))
    return changed


def _folder(recipe: str) -> Path | None:
    return None if recipe in BUILT_IN else Path(recipe).resolve().parent


def _file_of(module: ModuleType | None) -> Path | None:
    """The Python file that a module was read from."""
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    if not isinstance(file, str) or not os.path.isabs(file) or not file.endswith(".py"):
        return None
    return Path(file)


def _find(name: str, folder: Path | None) -> Path | None:
    """The file of a module as `own_modules` names it, imported or not."""
    if folder is not None and (folder / name).is_file():
        return folder / name
    if name in sys.modules:
        return _file_of(sys.modules[name])
    package, *inside = name.split(".")
    try:
        spec = importlib.util.find_spec(package)  # of a module in it, it would import the package
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not inside:
        return None if spec is None or spec.origin is None else Path(spec.origin)
    for place in spec.submodule_search_locations or ():
        base = Path(place).joinpath(*inside)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def _not_own() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    assert samepath.__file__ is not None
    places |= {os.path.dirname(samepath.__file__)}
    return tuple({Path(place) for place in places} | {Path(place).resolve() for place in places})


def _is_own(file: Path) -> bool:
    if _INSTALLED & set(file.parts):
        return False
    return not any(file.is_relative_to(place) for place in _not_own())


def _digest(file: Path) -> str | None:
    try:
        return content_hash(file)
    except OSError:
        return None  # in an archive, or generated: there is nothing to compare
