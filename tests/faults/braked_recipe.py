"""tests/parity/tiny_recipe.py with a brake: slow as long as a file is there, then fast.

A run takes as long as it is being hurt and no longer. As long as there is a file `full` its disk
takes no checkpoint, and no run.json. Where BROKEN is set every worker raises. Every worker that
computes a grain says so: a file `seen/<worker>-of-<workers>.<process>` in the folder that
BRAKE_FOLDER names.
"""

from __future__ import annotations

import errno
import os
import runpy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from samepath import Recipe
from samepath.faults import set_fault_handler

TINY = runpy.run_path(str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py"))
FOLDER = Path(os.environ["BRAKE_FOLDER"]) if "BRAKE_FOLDER" in os.environ else None
_has_said_so = False


def refuse_if_full(name: str, **_facts: Any) -> None:
    if name == "write" and FOLDER is not None and (FOLDER / "full").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


if "SAMEPATH_STORE" in os.environ:  # a worker
    set_fault_handler(refuse_if_full)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    global _has_said_so
    if "BROKEN" in os.environ:
        raise RuntimeError("the scanner is on fire")
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
