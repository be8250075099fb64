"""The function that gives something else when an example is loaded again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from samepath.data import DatasetSource
from samepath.engine.verify.items import find_escape


class Doubled:
    def __call__(self, value: Any) -> Any:
        return 2 * value


class Noise:
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __call__(self, value: Any) -> Any:
        return value + self.draw()


class Items(Dataset[Any]):
    def __init__(self, *transforms: Callable[[Any], Any]) -> None:
        self.transforms = transforms

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        value = torch.ones(2) * index
        for transform in self.transforms:
            value = transform(value)
        return value


def escape(*transforms: Callable[[Any], Any]) -> str | None:
    return find_escape(DatasetSource(Items(*transforms), seed=0))


def test_a_transform_that_escapes_is_named() -> None:
    hidden = itertools.count().__next__  # a state that cannot be set
    found = escape(Doubled(), Noise(random.Random().random), Noise(hidden), Doubled())
    assert found is not None
    assert found.startswith("Noise.__call__ (")
    assert "test_items.py, line " in found


def test_nothing_is_named_where_nothing_escapes() -> None:
    assert escape(Doubled(), Noise(random.Random().random), Noise(random.random)) is None


def test_a_cache_that_fills_is_no_escape() -> None:
    cache: list[float] = []

    def fill() -> float:
        cache.append(1.0)
        return cache[0]

    assert escape(Noise(fill)) is None


def test_an_item_that_cannot_be_loaded_is_left_to_the_step() -> None:
    assert escape(Noise(lambda: 1 / 0)) is None
