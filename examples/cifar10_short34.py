"""The same with a ResNet-34: the second network that docs/curation.md looks through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cifar10_short
from samepath import Recipe
from samepath.recipes.cifar10 import network


def recipe(data: Path | None = None) -> Recipe:
    return replace(cifar10_short.recipe(data), model=lambda: network(34, width=8))
