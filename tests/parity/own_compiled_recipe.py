"""The recipe of compiled_recipe.py with a model that its owner has compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import compiled_recipe
import torch

from samepath import Recipe


def model() -> Any:
    return torch.compile(compiled_recipe.model())


def recipe() -> Recipe:
    return replace(compiled_recipe.recipe(), model=model)
