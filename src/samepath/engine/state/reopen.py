"""A run opened again: its code, its recipe, its model.

In: a run's folder. Out: its recipe, on the examples it was trained with, the text that names its
strategy, and its model as it is now or was after an epoch whose weights were kept. Guaranteed:
nothing of a Python file whose SHA-256 is not the one that the run began with is executed, nor a
recipe that would import one; what is executed is what was compared; data or a keep-list that has
changed is refused; where no recipe is asked for none is executed; nothing in the folder is changed.

Files are looked for where they were when the run began, then where the typed path leads from here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from samepath.builtin import BUILT_IN
from samepath.engine.checks.fingerprints import find_again, has_changed
from samepath.engine.state.checkpoint import Epoch, kept_weights, load_newest, load_weights
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.state.state import State, extra_of, load_model
from samepath.errors import UserError
from samepath.files import read_whole
from samepath.recipe import Recipe

MOST_SOURCE_BYTES = 1 << 24
FOLD_FILES = "splits"
"""The folder of fold files in that of a cross-validation, each with the name of its run."""


@dataclass(frozen=True)
class ReopenedRun:
    """A run, its recipe and its model."""

    folder: RunFolder
    record: dict[str, Any]
    """What run.json says."""

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe; its code runs when it is first asked for."""
        return recipe_of_run(self.record, self.folder.path)

    @property
    def draws(self) -> bool:
        """Whether there are pictures that only its recipe can draw."""
        return needs_code_to_draw(self.record) and self.recipe.show is not None

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.record["config"]
        return config

    def model(self, epoch: Epoch | None = None, extra: str | None = None) -> tuple[nn.Module, str]:
        """The model ready to be evaluated, and the digest of where its weights are from.

        Its newest weights, or those kept after so many epochs, or at its best; or those of a model
        among its extra state (averaged weights), the newest.
        """
        self._refuse_extra(extra, epoch)
        model = self.recipe.model().eval()
        if epoch is not None:
            kept = kept_weights(self.folder.weights)
            if epoch not in kept:
                known = ", ".join(map(str, kept)) or "no epoch"
                raise UserError(
                    f"--epoch {epoch}: {self.folder.path} kept the weights of {known}; "
                    "choose one, or leave it out for the newest"
                )
            return model, load_weights(kept[epoch], model)
        warnings: list[str] = []
        found = load_newest(self.folder.checkpoints, warnings.append)
        if found is None:
            why = warnings[0] if warnings else "none has been written yet"
            raise UserError(f"{self.folder.path} holds no checkpoint to look at ({why})")
        load_model(model, found.state)
        if extra is not None:
            model = self._extra_model(extra, model, found.state)
        return model, found.digest

    def _refuse_extra(self, extra: str | None, epoch: Epoch | None) -> None:
        known = self.recipe.extra
        if extra is not None and extra not in known:
            there = ", ".join(known) or "none"
            raise UserError(f"--extra {extra}: the recipe's extra state is {there}; choose from it")
        if extra is not None and epoch is not None:
            raise UserError(
                f"--extra {extra}: weights that were kept on the way (--epoch {epoch}) have no "
                "extra state beside them; leave --epoch out"
            )

    def _extra_model(self, extra: str, model: nn.Module, state: State) -> nn.Module:
        """The model in an object of extra state, an AveragedModel say, as it was saved."""
        made: Any = self.recipe.extra[extra](model)
        made.load_state_dict(extra_of(state, extra))
        found = made.module if isinstance(made, AveragedModel) else made
        if not isinstance(found, nn.Module) or found.state_dict().keys() != (
            model.state_dict().keys()
        ):
            raise UserError(
                f"--extra {extra}: it is a {type(made).__name__}, not weights of the recipe's "
                "model; choose extra state that is (AveragedModel(model))"
            )
        return found.eval()

    def kept_epochs(self) -> list[int]:
        """Epochs after which the weights were kept."""
        return [epoch for epoch in kept_weights(self.folder.weights) if isinstance(epoch, int)]

    def losses_by_epoch(self) -> dict[int, float]:
        """Validation (else training) losses by the number of epochs trained."""
        return {
            line["epoch"] + 1: line.get("valid_loss", line["epoch_train_loss"])
            for line in self.folder.read_metrics()
            if "epoch_train_loss" in line
        }


def look_at(path: Path) -> ReopenedRun:
    """Open a run, finished or not, for what it has written; its recipe may be asked for later."""
    folder = RunFolder(path)
    return ReopenedRun(folder, folder.read())


def reopen(path: Path) -> ReopenedRun:
    """Open a run, finished or not, with its recipe."""
    run = look_at(path)
    run.recipe  # noqa: B018 - one that has changed is refused now
    return run


# ---- the Python files that a run names


def code_of(recipe: Recipe, strategy: str) -> dict[str, Any]:
    """Describe a run's Python files for run.json, beside what was typed."""
    return {
        "recipe": None if recipe.origin.name in BUILT_IN else os.path.abspath(recipe.origin.name),
        "strategy": os.path.abspath(strategy) if strategy.endswith(".py") else None,
        "draws": recipe.show is not None,
    }


def needs_code_to_draw(record: Mapping[str, Any]) -> bool:
    """Whether its recipe has pictures of its own (or, in a run of an older samepath, may have)."""
    return _code(record).get("draws") is not False


def recipe_of_run(record: Mapping[str, Any], folder: Path) -> Recipe:
    """The recipe of the run in a folder, on the data it was trained with."""
    config, source = record["config"], None
    if config["recipe"] not in BUILT_IN:
        path, source = _file(record, "recipe", "identity", folder)
        config = config | {"recipe": str(path)}
    keep = config.get("keep")
    if keep is not None and not os.path.exists(keep):  # a cross-validation that was moved
        moved = folder.resolve().parents[1] / FOLD_FILES / f"{folder.resolve().name}.csv"
        config = config | ({"keep": str(moved)} if moved.is_file() else {})
    return find_again(config, source, f"the run {folder}")


def strategy_of_run(record: Mapping[str, Any], folder: Path) -> str:
    """Name its strategy by a text that works from any folder."""
    strategy = str(record["config"].get("strategy", "strong"))
    if not strategy.endswith(".py"):
        return strategy
    return str(_file(record, "strategy", "strategy_identity", folder)[0])


def _file(record: Mapping[str, Any], what: str, identity: str, folder: Path) -> tuple[Path, bytes]:
    """Find a Python file that holds what it held when the run began; its path and content."""
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
        raise has_changed(f"the {what} {typed}", f"the run {folder}")
    raise UserError(
        f"the {what} {typed} of the run {folder} is not there ({places[0]}); put it back, "
        "or go to where it was typed"
    )


def _code(record: Mapping[str, Any]) -> Mapping[str, Any]:
    code = record.get("code")
    return code if isinstance(code, dict) else {}
