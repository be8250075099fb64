"""A run opened again, to look at what it learned.

In: a run's folder. Out: its recipe, on the examples it was trained with, and its model as it is now
or was after an epoch whose weights were kept. Guaranteed: a recipe, data or a keep-list that has
changed since is refused, a recipe before any of it is executed; who asks for no recipe executes
none; nothing in the folder is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from samepath.engine.state.checkpoint import load_newest
from samepath.engine.state.run_code import needs_code_to_draw, recipe_of_run
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.state.state import load_model
from samepath.engine.state.weights import Epoch, kept_weights, load_weights
from samepath.errors import UserError
from samepath.recipe import Recipe


@dataclass(frozen=True)
class ReopenedRun:
    """A run, its recipe and its model."""

    folder: RunFolder
    record: dict[str, Any]
    """What run.json says."""

    @cached_property
    def recipe(self) -> Recipe:
        """Its code runs when this is asked for first."""
        return recipe_of_run(self.record, self.folder.path).recipe

    @property
    def draws(self) -> bool:
        """There are pictures that only its recipe can draw."""
        return needs_code_to_draw(self.record) and self.recipe.show is not None

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.record["config"]
        return config

    def model(self, epoch: Epoch | None = None) -> tuple[nn.Module, str]:
        """The model ready to be evaluated, and the digest of where its weights are from.

        Its newest weights, or those kept after so many epochs, or at its best.
        """
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
        return model, found.digest

    def kept_epochs(self) -> list[int]:
        """Epochs after which the weights were kept."""
        return [epoch for epoch in kept_weights(self.folder.weights) if isinstance(epoch, int)]

    def losses_by_epoch(self) -> dict[int, float]:
        """Validation (else training) losses by the number of epochs trained."""
        lines = [line for line in self.folder.read_metrics() if "epoch_train_loss" in line]
        return {
            line["epoch"] + 1: line.get("valid_loss", line["epoch_train_loss"]) for line in lines
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
