"""What a run is made of that no option names: its data, and the user's own modules.

In: a recipe that was found, and what an earlier start wrote. Out: fingerprints for run.json, or a
UserError that names what has changed. Guaranteed: what an older samepath did not write is not
compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samepath.data.content import content_of, held_content, same_content
from samepath.engine.checks.own_modules import changed_modules, own_modules
from samepath.errors import UserError
from samepath.recipe import FoundRecipe, Recipe

FINGERPRINTS = ("train_content", "valid_content", "modules")
"""Fields of a run's options."""
_DATA = {"train": "training", "valid": "validation"}


def fingerprints(found: FoundRecipe, before: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a recipe whose functions have run once, and those that were known `before`."""
    contents = {
        f"{name}_content": before.get(f"{name}_content") or _content(found.recipe, name)
        for name in _DATA
    }
    return contents | {"modules": own_modules(found.name) | (before.get("modules") or {})}


def refuse_others(found: FoundRecipe, before: Mapping[str, Any], *, began: str = "run") -> None:
    """Raise unless data and modules are those of which `before` holds the fingerprints."""
    instead = f"; start a new {began}, or restore"
    for file in changed_modules(found.name, before.get("modules") or {}):
        raise UserError(f"cannot resume: {file} changed since the {began} began{instead} the file")
    for name, word in _DATA.items():
        known = before.get(f"{name}_content")
        if known and not same_content(known, _content(found.recipe, name) or {}):
            raise UserError(
                f"cannot resume: the {word} data changed since the {began} began{instead} the data"
            )


def refuse_others_now(found: FoundRecipe, before: Mapping[str, Any]) -> None:
    """The same in a worker that begins while the run goes on: what can be seen at a glance."""
    changed = changed_modules(found.name, before.get("modules") or {})
    for name, word in _DATA.items():
        data, known = getattr(found.recipe, name), before.get(f"{name}_content")
        if known and data is not None:
            now = held_content(data, found.recipe.collate)
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
