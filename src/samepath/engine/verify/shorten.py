"""The examples that a short run is trained on, so that it meets what a long one does.

In: a recipe and a number of steps. Out: the same recipe on fewer examples, evenly chosen: its epoch
ends within those steps, its last batch and its last validation grain are exactly as short as they
are on all examples. Data that are small enough stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from samepath.data import as_source
from samepath.data.sources import only_rows
from samepath.engine.run.options import training_source
from samepath.plan import Plan
from samepath.recipe import Recipe

STEPS_OF_NEXT = 3
"""Of the next epoch, if there are steps enough: an epoch's beginning follows its end."""
VALID_GRAINS = 4
"""Full ones, at least; more where more is trained on."""


@dataclass(frozen=True, kw_only=True)
class Shortened:
    """How many examples a short run is trained on; a Request's `instead`."""

    num_train: int
    num_valid: int | None
    """None where the recipe has no validation data."""

    def __call__(self, recipe: Recipe) -> Recipe:
        rows = _evenly(self.num_train, len(training_source(recipe)))
        if rows is not None:
            recipe = replace(
                recipe,
                train=only_rows(recipe.train, rows),
                train_facts={name: values[rows] for name, values in recipe.train_facts.items()},
            )
        if self.num_valid is not None and recipe.valid is not None:
            rows = _evenly(self.num_valid, num_valid(recipe) or 0)
            if rows is not None:
                recipe = replace(
                    recipe,
                    valid=only_rows(recipe.valid, rows),
                    valid_facts={name: values[rows] for name, values in recipe.valid_facts.items()},
                )
        return recipe


def _evenly(count: int, total: int) -> NDArray[np.int64] | None:
    """Rows of a number of examples, evenly chosen; None where that is all of them."""
    return None if count == total else np.arange(count, dtype=np.int64) * total // count


def num_valid(recipe: Recipe) -> int | None:
    """Validation examples; None where there are no such data."""
    if recipe.valid is None:
        return None
    return len(as_source(recipe.valid, seed=0, collate=recipe.collate))


def shorten(plan: Plan, valid: int | None, steps: int, most_workers: int) -> Shortened:
    """What to train on for so many steps of a plan, with so many validation examples."""
    rest = plan.num_examples % plan.batch_size
    least = 2 if rest else 1
    wanted = max(least, steps - min(STEPS_OF_NEXT, steps // 5))
    train = plan.num_examples
    if plan.steps_per_epoch > wanted:
        train = (wanted - bool(rest)) * plan.batch_size + rest
    if valid is not None:
        grains = max(VALID_GRAINS, most_workers + 1, train // plan.grain_size)
        valid = min(valid, grains * plan.grain_size + valid % plan.grain_size)
    return Shortened(num_train=train, num_valid=valid)
