"""A study's folder: what was asked for is checked, then the folder is made or opened again.

In: a StudyRequest. Out: what all runs of the study share. Guaranteed: bad input raises before
anything is written; a folder of another study is left alone; two processes never run one study.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from samepath.data import as_source
from samepath.engine.checks.fingerprints import refuse_others, versions
from samepath.engine.run.loop import Run
from samepath.engine.run.options import (
    Options,
    Overrides,
    made_of_options,
    refuse_recipe,
    resolve,
    with_fingerprints,
)
from samepath.errors import UserError
from samepath.files import (
    brief,
    is_empty,
    lock_folder,
    make_folder,
    read_object,
    toml,
    write_atomically,
)
from samepath.recipe import Recipe, find_recipe
from samepath.study.results import FORMAT

PATIENCE = 10
MOST_SEEDS = 10_000
"""The most seeds of the runs that are reported; seeds above are for choosing among trials."""
SETTINGS = "settings.json"
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """What a person asked for."""

    recipe: str
    data: str | None = None
    keep: str | None = None
    """A keep-list: the examples to train on."""
    strategies: tuple[str, ...] = ("strong", "weak", "linear", "warmup", "sqrt")
    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    target: float | Literal["auto", "tuned"] | None = None
    """None: the recipe's, or auto where it has none. auto: what the sequential run comes to.
    tuned: what its best trial comes to, the median over further seeds."""
    fraction: float | None = None
    """auto and tuned: the part of a run's epochs in which it comes to that."""
    hold: int = 1
    """Evaluations in a row that must be within the target before it counts as reached."""
    tune: int | None = None
    """Trials of every strategy at every number of workers, the prescribed values among them."""
    studies: int = 1
    """Times that the whole is repeated, with other seeds and other draws of trials."""
    seeds: int = 1
    max_epochs: int | None = None
    """The recipe's when not given."""
    learning_rate: float | Literal["largest"] | None = None
    network: str = "1GbE"
    batch_size: int | None = None
    grain_size: int | None = None
    max_workers: int | None = None
    patience: int = PATIENCE
    """A run ends when its validation loss has not moved for so many epochs."""
    out: Path | None = None
    """studies/<recipe> when not given."""
    command: tuple[str, ...] = ()
    other_hardware: bool = False
    """Go on with runs that another machine, or another torch, has begun."""
    on: str = "local"
    """Where runs are trained: this machine, or a cluster (see `study/places/destination.py`)."""
    listen: Callable[[Run], AbstractContextManager[None]] | None = None
    """Told of every run, as a Request's."""

    def __post_init__(self) -> None:
        if self.tune is not None and self.tune < 2:
            raise UserError(
                f"--tune {self.tune}: give at least 2 trials, of which what the strategy "
                "prescribes is one, or leave it out"
            )
        for name in ("studies", "hold"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: it must be at least 1")
        if self.hold > self.patience:
            raise UserError(
                f"--hold {self.hold} is more than --patience {self.patience}, and a run whose loss "
                "has not moved for so long ends before; give a longer patience"
            )
        if self.target == "tuned" and self.tune is None:
            raise UserError("--target tuned is what the best trial comes to; add --tune N")
        if self.studies * self.seeds > MOST_SEEDS:
            raise UserError(
                f"--studies {self.studies} of --seeds {self.seeds}: there can be {MOST_SEEDS} runs "
                "of each; give fewer"
            )

    @property
    def folder(self) -> Path:
        return self.out or Path("studies") / Path(self.recipe).stem

    @property
    def flags(self) -> dict[str, Any]:
        """The options of `samepath study` that make such a study, by their names."""
        apart = ("recipe", "fraction", "out", "command", "other_hardware", "listen")
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        if self.fraction is not None:
            said["target"] = f"{self.target}:{self.fraction}"
        flags = {n.replace("_", "-"): v for n, v in said.items() if v is not None}
        flags["grain"] = flags.pop("grain-size", None)
        return {"recipes": [self.recipe]} | {n: v for n, v in flags.items() if v is not None}


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A study's folder, and what all its runs share."""

    folder: Path
    recipe: Recipe
    options: Options
    optimizer: str
    recipe_rate: float
    recipe_decay: float
    """The largest weight decay of its groups; 0 where it has none."""
    num_valid: int

    def heading(self, request: StudyRequest) -> dict[str, Any]:
        """The fields of `AnyStudy`."""
        return {
            "format": FORMAT,
            "command": request.command,
            "versions": versions(),
            "recipe": self.recipe.origin.name,
            "num_examples": self.options.num_examples,
            "num_valid": self.num_valid,
            "grain_size": self.options.grain_size,
            "optimizer": self.optimizer,
        }


def look_into(request: StudyRequest) -> Opened:
    """Check what was asked; nothing is written."""
    recipe = find_recipe(request.recipe, request.data, request.keep)
    if recipe.valid is None:
        raise UserError(
            f"recipe {recipe.origin.name!r} has no validation data; a study races to its loss"
        )
    asked = Overrides(
        epochs=request.max_epochs,
        batch_size=request.batch_size,
        grain_size=request.grain_size,
        max_workers=request.max_workers,
        patience=request.patience,
        target="none",
        hold=request.hold,
    )
    options = resolve(recipe, asked)
    refuse_recipe(recipe, options, 1)
    options = with_fingerprints(options, recipe)
    model = recipe.model()
    optimizer = recipe.optimizer(p for p in model.parameters() if p.requires_grad)
    return Opened(
        folder=request.folder,
        recipe=recipe,
        options=options,
        optimizer=type(optimizer).__name__,
        recipe_rate=float(optimizer.param_groups[0]["lr"]),
        recipe_decay=max(float(group.get("weight_decay", 0)) for group in optimizer.param_groups),
        num_valid=len(as_source(recipe.valid, seed=0, collate=recipe.collate)),
    )


@contextmanager
def entered(
    opened: Opened, request: StudyRequest, kind: str, also: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Make the study's folder, or see that it is of the same study; keep others out of it."""
    options = opened.options
    settings = {  # what must be the same when a study goes on
        "kind": kind,
        "recipe": options.identity,
        "data": options.data_identity,
        "keep": options.keep_identity,
        "batch_size": options.batch_size if kind == "race" else None,
        "grain_size": options.grain_size,
        "learning_rate": request.learning_rate,
        "patience": options.patience,
        **(also or {}),
    }
    folder, file = opened.folder, opened.folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; give a folder")
    if file.is_file():
        try:
            before = read_object(file)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{file} cannot be read ({brief(error)}); give another folder with --out"
            ) from None
        changed = [
            _said(name, before.get(name), value)
            for name, value in settings.items()
            if before.get(name) != value
        ]
        if changed:
            raise UserError(
                f"--out {folder} holds another study: {', '.join(changed)}; give another folder"
            )
        made_of = before.get("made_of")
        if isinstance(made_of, dict):  # not one of an older samepath
            refuse_others(opened.recipe, made_of, began="study")
    elif folder.is_dir() and not is_empty(folder):
        raise UserError(f"--out {folder} is not empty and holds no study; give another folder")
    make_folder(folder)
    lock = lock_folder(folder, f"the study in {folder} is being run")
    try:
        settings["made_of"] = made_of_options(options)
        write_atomically(file, json.dumps(settings, indent=2) + "\n")
        if kind == "race":
            write_atomically(folder / "config.toml", toml(request.flags))
        yield
    finally:
        os.close(lock)


def _said(name: str, before: Any, now: Any) -> str:
    """How a setting has changed; of what is recognised by a hash, that it has."""
    if _HASH.search(repr(before)) or _HASH.search(repr(now)):
        return f"its {name.replace('_', ' ')} changed"
    return f"{name} (was {brief(repr(before))}, now {now!r})"
