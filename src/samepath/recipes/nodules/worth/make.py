"""New nodules for a classifier, from a fold's generator.

In: the finished run of a generator, how many nodules of each class. Out: cubes of bytes and their
labels. Guaranteed: the same from the same run and seed; the generator's run has seen the training
part of its fold alone, and so has what is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from samepath.engine.state.checkpoint import kept_weights
from samepath.engine.state.reopen import reopen
from samepath.errors import UserError
from samepath.recipe import Recipe
from samepath.recipes.nodules.ct_generation import CubeGenerator
from samepath.recipes.nodules.deepdensity import DeepDensity
from samepath.recipes.nodules.generation import Generator
from samepath.recipes.nodules.recipe import categories

Made = tuple[NDArray[np.uint8], NDArray[np.int64]]


def make_nodules(run: Path, counts: tuple[int, int], *, seed: int) -> Made:
    """So many nodules of class 0 and of class 1, by the run's best weights (by what its generator
    validated on), or its newest where it keeps none."""
    opened = reopen(run)
    best = "best" in kept_weights(opened.folder.weights)
    model, _ = opened.model("best" if best else None)
    facts = opened.recipe.train_facts
    names = categories(facts)
    if names is None or "label" not in facts:
        raise UserError(f"the recipe of {run} gives no categories of its training nodules")
    make = _maker(model, opened.recipe, seed)
    label = np.asarray(facts["label"]).astype(np.int64)
    cubes, labels = [], []
    for number, count in enumerate(counts):
        (name,) = set(names[label == number].tolist())
        cubes.append(np.rint(make(count, str(name)) * 255.0).astype(np.uint8))
        labels.append(np.full(count, number, np.int64))
    return np.concatenate(cubes), np.concatenate(labels)


def _maker(
    model: nn.Module, recipe: Recipe, seed: int
) -> Callable[[int, str], NDArray[np.float32]]:
    """What makes so many nodules of a category: in the surroundings of training cubes where the
    model knows masks, else alone."""
    if isinstance(model, DeepDensity) and model.num_shades:
        in_place = CubeGenerator(model, recipe)
        return lambda count, name: in_place.generate(count, category=name, seed=seed).volumes
    alone = Generator(model, recipe)
    side = alone.model.side
    return lambda count, name: alone.generate(count, name, side=side, seed=seed).volumes
