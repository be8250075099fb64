"""A run opened again, to look at what it learned.

In: a run's folder. Out: its recipe, on the examples it was trained with, and its model as it is now
or was after an epoch whose weights were kept. Guaranteed: a recipe, data or a keep-list that has
changed since is refused; nothing in the folder is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from samepath.engine.checkpoint import load_newest
from samepath.engine.rundir import RunFolder
from samepath.engine.state import load_model
from samepath.engine.weights import Epoch, kept_weights, load_weights
from samepath.errors import UserError
from samepath.recipe import Recipe, find_recipe


@dataclass(frozen=True)
class ReopenedRun:
    """A run, its recipe and its model."""

    folder: RunFolder
    record: dict[str, Any]
    """What run.json says."""
    recipe: Recipe

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


def reopen(path: Path) -> ReopenedRun:
    """Open a run, finished or not."""
    folder = RunFolder(path)
    record = folder.read()
    config = record["config"]
    found = find_recipe(
        config["recipe"],
        config.get("data"),
        config.get("keep"),
        threads=config.get("threads", 1),
    )
    for what, name, here in (
        ("recipe", "identity", found.identity),
        ("data", "data_identity", found.data_identity),
        ("keep", "keep_identity", found.keep_identity),
    ):
        if config.get(name) != here:
            raise UserError(
                f"the {'keep-list' if what == 'keep' else what} {config[what]} has changed since "
                f"the run {path}; put it back as it was to look at it"
            )
    return ReopenedRun(folder, record, found.recipe)
