"""tests/parity/tiny_recipe.py with a brake: slow as long as a file is there, then fast.

A run takes as long as it is being hurt and no longer. Every worker that computes a grain says so:
a file `seen/<worker>-of-<workers>.<process>` in the folder that BRAKE_FOLDER names.
"""

from __future__ import annotations

import os
import runpy
import time
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from samepath import Recipe

TINY = runpy.run_path(str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py"))
FOLDER = Path(os.environ["BRAKE_FOLDER"]) if "BRAKE_FOLDER" in os.environ else None
_has_said_so = False


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    global _has_said_so
    if FOLDER is not None:
        if not _has_said_so:
            _has_said_so = True
            who = f"{os.environ['RANK']}-of-{os.environ['WORLD_SIZE']}.{os.getpid()}"
            (FOLDER / "seen" / who).touch()
        if (FOLDER / "brake").exists():
            time.sleep(0.08 * int(os.environ["WORLD_SIZE"]))  # a step takes 0.4 s at any number
    found: Tensor = TINY["loss"](model, batch)
    return found


def recipe() -> Recipe:
    made: Recipe = TINY["recipe"]()
    return replace(made, loss=loss)
