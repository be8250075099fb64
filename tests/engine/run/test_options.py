"""The grain size of a run: what was typed, what the recipe says of workers, or the run before."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn

from samepath.engine.run.options import Overrides, resolve
from samepath.errors import UserError
from samepath.recipe import Recipe


def recipe(**settings: Any) -> Recipe:
    return Recipe(
        model=lambda: nn.Linear(4, 2),
        train=torch.ones(300, 4),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD,
        epochs=1,
        batch_size=96,
        **settings,
    )


@pytest.mark.parametrize(
    ("given", "asked", "size"),
    [
        ({"max_workers": 4}, {}, 24),
        ({"max_workers": 4}, {"max_workers": 2}, 48),
        ({"max_workers": 4}, {"grain_size": 5}, 5),
        ({"max_workers": 4}, {"batch_size": 8}, 2),
        ({"max_workers": 4}, {"batch_size": 3}, 1),
        ({"max_workers": 4}, {"batch_size": 200, "max_workers": 100}, 2),
        ({"max_workers": 4}, {"batch_size": 200, "grain_size": 7}, 7),
        ({}, {}, 12),
        ({}, {"batch_size": 40}, 5),
        ({"grain_size": 7}, {}, 7),
        ({"grain_size": 7}, {"batch_size": 40}, 7),
        ({"grain_size": 7}, {"max_workers": 3}, 32),
    ],
)
def test_where_the_grain_size_comes_from(
    given: dict[str, Any], asked: dict[str, Any], size: int
) -> None:
    assert resolve(recipe(**given), Overrides(**asked)).grain_size == size


def test_on_resume_the_same_grain_is_the_same_path() -> None:
    """However it is said; and a batch size that is said again changes nothing."""
    made = recipe(max_workers=4)
    earlier = asdict(resolve(made, Overrides(grain_size=16)))
    for same in (
        Overrides(),
        Overrides(grain_size=16),
        Overrides(max_workers=6),
        Overrides(batch_size=96),
    ):
        assert resolve(made, same, earlier).grain_size == 16
    with pytest.raises(UserError, match=r"cannot resume: grain_size \(was 16, now 24\)"):
        resolve(made, Overrides(max_workers=4), earlier)
