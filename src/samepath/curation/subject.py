"""What is curated: the training examples of a recipe, their labels, the names of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samepath.data.content import examples_identity
from samepath.data.sources import labels_of
from samepath.engine.run.options import training_source
from samepath.errors import UserError
from samepath.recipe import FoundRecipe, Recipe

MOST_CLASSES = 10_000
NO_LABELS = "all"
"""The one class of examples without labels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """All training examples of a recipe."""

    found: FoundRecipe
    labels: NDArray[np.int64] | None
    class_names: Sequence[str]
    """By label."""
    examples_identity: str
    num_examples: int

    @property
    def recipe(self) -> Recipe:
        return self.found.recipe

    @property
    def origin(self) -> dict[str, str]:
        """What another curation in the same folder must share."""
        return {"identity": self.found.identity, "examples_identity": self.examples_identity}


def subject_of(found: FoundRecipe) -> Subject:
    """Look through a recipe's training data."""
    recipe = found.recipe
    labels = labels_of(recipe.train, recipe.train_facts, recipe.collate)
    names: list[str] = [NO_LABELS]
    if labels is not None:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= MOST_CLASSES:
            raise UserError(
                f"the labels of {found.name} go from {low} to {high}; classes are numbered from 0, "
                f"below {MOST_CLASSES}"
            )
        given = list(recipe.class_names)
        names = [
            given[label] if label < len(given) else str(label)
            for label in range(max(high + 1, len(given)))
        ]
    identity = examples_identity(recipe.train, recipe.collate)
    return Subject(
        found=found,
        labels=labels,
        class_names=names,
        examples_identity=identity,
        num_examples=len(training_source(recipe)),
    )
