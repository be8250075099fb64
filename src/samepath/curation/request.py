"""What is curated and how: the training examples of a recipe, and what a person asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samepath.console import SilentWatcher, Watcher
from samepath.curation.cluster import MIN_SAMPLES
from samepath.data.content import examples_identity
from samepath.data.sources import labels_of
from samepath.engine.run.options import training_source
from samepath.errors import UserError
from samepath.recipe import Recipe

METHODS = ("dbscan", "hdbscan", "grid")
FRACTION = 0.8
EVERY_CLASS = ""
"""The name in `eps` whose value holds for all classes that are not named."""
MOST_CLASSES = 10_000
NO_LABELS = "all"
"""The one class of examples without labels."""


@dataclass(frozen=True, kw_only=True)
class CurateRequest:
    """A recipe's training data, and how to look at it."""

    recipe: str
    out: Path
    """The curation folder."""
    data: str | None = None
    keep: str | None = None
    """A keep-list to begin with: what it drops stays dropped."""
    source: Path | None = None
    """A run, a curation, a checkpoint, a file of weights, or a cross-validation (its first fold's
    network, and all folds' judgement of labels); a network is trained when not given."""
    folds: int | None = None
    """Train so many folds of the recipe, of which each judges the labels it has not seen."""
    budget: float | None = None
    """Examples to take for label errors, or their share of all; as many as are estimated to be if
    neither this nor `precision` is given."""
    precision: float | None = None
    """The share of what is taken for label errors that is to be wrong."""
    extractor: str | None = None
    """A Python file with an extractor(), instead of the recipe's model."""
    layer: str | None = None
    """NAME: its output; NAME:input: what goes into it; the last linear layer's input when not
    given."""
    num_workers: int | Literal["auto"] = "auto"
    epochs: int | None = None
    """Epochs of the network that is trained."""
    seed: int = 0
    method: str = "dbscan"
    fraction: float | None = None
    """The part of each class that `grid` keeps; FRACTION when not given."""
    eps: Mapping[str, float] = field(default_factory=dict)
    """The eps of classes by name; the knee's where not given."""
    min_samples: int = MIN_SAMPLES
    rounds: int = 1
    """Train on what is kept and curate again, so often."""
    num_components: int = 50
    perplexity: float = 30.0
    command: Sequence[str] = ()
    watcher: Callable[[], Watcher] = SilentWatcher
    """Makes what a person sees; it crosses process borders."""
    display: Callable[[], Watcher] | None = None
    """Makes what a person sees of training."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"--method {self.method}: choose one of {', '.join(METHODS)}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UserError(f"--fraction {self.fraction:g}: give a part of each class, such as 0.8")
        if self.fraction is not None and self.method != "grid":
            raise UserError(f"--fraction {self.fraction:g} is for a sample; add --method grid")
        if self.folds is not None and self.folds < 2:
            raise UserError(f"--folds {self.folds}: give at least 2")
        for name, is_given in (("--rounds", self.rounds > 1), ("--keep", self.keep is not None)):
            if self.folds is not None and is_given:
                raise UserError(f"--folds is of all examples, once; leave {name} out")
        if self.budget is not None and self.precision is not None:
            raise UserError("--budget and --precision exclude each other; give one of them")
        if self.budget is not None and not 0 <= self.budget < math.inf:
            raise UserError(f"--budget {self.budget:g}: give a share, such as 0.05, or a number")
        if self.precision is not None and not 0 < self.precision < 1:
            raise UserError(f"--precision {self.precision:g}: give a share, such as 0.9")
        if self.min_samples < 2:
            raise UserError(f"--min-samples {self.min_samples}: it must be at least 2")
        if self.rounds < 1:
            raise UserError(f"--rounds {self.rounds}: it must be at least 1")
        for value in self.eps.values():
            if not 0 < value < math.inf:
                raise UserError(f"--eps {value:g}: it must be above 0")
        if self.eps and self.method == "grid":
            raise UserError("--eps is for clusters; leave it out with --method grid")
        if self.folds is not None and (self.source is not None or self.extractor is not None):
            other = "--from" if self.source is not None else "--extractor"
            raise UserError(f"--folds trains networks; leave {other} out")
        networks = {"--from": self.source, "--extractor": self.extractor, "--epochs": self.epochs}
        given = [name for name, value in networks.items() if value is not None]
        if len(given) > 1:
            raise UserError(f"{given[0]} and {given[1]} exclude each other; give one of them")
        if self.rounds > 1 and given and given != ["--epochs"]:
            raise UserError(
                f"--rounds {self.rounds} trains a network in every round; leave {given[0]} out"
            )

    def eps_by_label(self, class_names: Sequence[str]) -> dict[int, float]:
        """eps of every class that was given one."""
        for name, value in self.eps.items():
            if name != EVERY_CLASS and name not in class_names:
                raise UserError(
                    f"--eps {name}={value:g}: there is no class {name!r}; choose from "
                    f"{', '.join(class_names)}"
                )
        given = [self.eps.get(name, self.eps.get(EVERY_CLASS)) for name in class_names]
        return {label: eps for label, eps in enumerate(given) if eps is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """All training examples of a recipe."""

    recipe: Recipe
    labels: NDArray[np.int64] | None
    class_names: Sequence[str]
    """Names of the classes by label."""
    examples_identity: str
    num_examples: int

    @property
    def origin(self) -> dict[str, str]:
        """What another curation in the same folder must share."""
        return {
            "identity": self.recipe.origin.identity,
            "examples_identity": self.examples_identity,
        }


def subject_of(recipe: Recipe) -> Subject:
    """Look through a recipe's training data."""
    labels = labels_of(recipe.train, recipe.train_facts, recipe.collate)
    names: list[str] = [NO_LABELS]
    if labels is not None:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= MOST_CLASSES:
            raise UserError(
                f"the labels of {recipe.origin.name} go from {low} to {high}; classes are "
                f"numbered from 0, below {MOST_CLASSES}"
            )
        names = list(recipe.class_names)
        names += map(str, range(len(names), high + 1))
    return Subject(
        recipe=recipe,
        labels=labels,
        class_names=names,
        examples_identity=examples_identity(recipe.train, recipe.collate),
        num_examples=len(training_source(recipe)),
    )
