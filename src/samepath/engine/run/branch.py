"""A branch: a new run that begins with the exact state another run ended an epoch in.

In: the other run's folder, the new run's options. Out: where it began, for run.json, and a first
checkpoint in its own folder, from which it is resumed like any other. Guaranteed: nothing of the
other run changes; a branch with its settings goes on along its path, bit for bit. Of those settings
a branch may have others (batch size, learning rate, seed, strategy), but not another recipe, other
data or another keep-list.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from samepath.console import say
from samepath.engine.checks.fingerprints import refuse_others
from samepath.engine.run.options import Options
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.engine.state import checkpoint
from samepath.engine.state.progress import Progress
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.recipe import Recipe

_SAME = {"identity": "recipe", "data_identity": "data", "keep_identity": "keep-list"}
_OWN = ("lines", "best_loss", "since_best", "best_epochs")
"""Parts of a run's progress that are of files in its folder: a branch begins them anew."""


def find_start(path: Path, recipe: Recipe, options: Options) -> dict[str, Any]:
    """Check that a branch can begin where the run in this folder ended; the value of
    `Options.start_from`."""
    folder = RunFolder(path)
    before = folder.read()["config"]
    for name, word in _SAME.items():
        if before.get(name) != getattr(options, name):
            raise UserError(
                f"the run in {path} has another {word}; a branch begins from a run of its own "
                f"{word}"
            )
    refuse_others(recipe, before)
    found = checkpoint.load_newest(folder.checkpoints, say)
    if found is None:
        raise UserError(f"the run in {path} has no checkpoint to begin from; train it first")
    step = int(found.state.structure["step"])
    if step != found.progress["epoch_began"]:
        inside = step - int(found.progress["epoch_began"])
        raise UserError(
            f"the run in {path} stopped {inside} steps into an epoch; a branch begins at the end "
            "of one: resume the run to that end"
        )
    if "underway" in found.state.structure:
        raise UserError(
            f"the run in {path} has gradients that wait for their update; a branch begins from a "
            "run without a lag"
        )
    if StrategySchedule(options).measures:
        raise UserError(
            f"strategy {options.strategy!r} needs what it measured in earlier epochs, which a "
            "branch does not have; give another strategy"
        )
    return {"folder": str(path.resolve()), "step": step, "digest": found.digest}


def begin(folder: RunFolder, start: dict[str, Any]) -> None:
    """Write the state that a branch begins with as its own first checkpoint."""
    found = checkpoint.load(Path(start["folder"]) / "checkpoints" / f"step-{start['step']:08d}")
    if found.digest != start["digest"]:
        raise UserError(
            f"{found.path} is not what the branch in {folder.path} was to begin from; begin "
            "another one"
        )
    own = {field.name: field.default for field in fields(Progress) if field.name in _OWN}
    folder.save(found.state, found.progress | own)
