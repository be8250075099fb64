"""CIFAR-10 with a ResNet-18 of half the width: large enough to time, small enough to wait for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from samepath import Recipe
from samepath.recipes.cifar10 import cifar10_small, network


def recipe(data: Path | None = None) -> Recipe:
    return replace(cifar10_small(data), model=lambda: network(18, width=32))
