"""The recipe's optimizer, changed from outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from samepath.engine.run.optimizers import replaced, with_decay
from samepath.errors import UserError
from samepath.strategies import OtherOptimizer


@pytest.mark.parametrize(
    ("before", "after"),
    [((0.01, 0.0, 0.5), [0.2, 0.0, 0.2]), ((0.0, 0.0), [0.2, 0.2])],
    ids=["groups that do not decay stay so", "where none decays all do"],
)
def test_decay_by_group(before: tuple[float, ...], after: list[float]) -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "weight_decay": d} for d in before]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with_decay(optimizer, 0.2)
    assert [group["weight_decay"] for group in optimizer.param_groups] == after


def test_an_optimizer_without_decay_says_so() -> None:
    optimizer = torch.optim.LBFGS([nn.Parameter(torch.zeros(1))])
    with pytest.raises(UserError, match=r"LBFGS has no weight decay.*leave --weight-decay out"):
        with_decay(optimizer, 0.1)


# ---- LARS and LAMB in its place

LARS, LAMB = OtherOptimizer(name="lars"), OtherOptimizer(name="lamb")


@pytest.mark.parametrize(
    "given",
    [
        {"momentum": 0.0, "weight_decay": 0.02},
        {"momentum": 0.5, "nesterov": False},
        {"momentum": 0.5, "nesterov": True},
        {"momentum": 0.5, "dampening": 0.25},
    ],
)
def test_lars_has_the_recipes_settings(given: dict[str, Any]) -> None:
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(2, 2))], lr=0.1, **given)
    (group,) = replaced(sgd, LARS).param_groups
    assert given.items() <= group.items()


def test_lars_of_an_optimizer_without_momentum_has_its_own() -> None:
    adam = torch.optim.Adam([nn.Parameter(torch.ones(2, 2))])
    assert replaced(adam, LARS).param_groups[0]["momentum"] == 0.9


def test_groups_keep_what_is_theirs() -> None:
    groups = [
        {"params": [nn.Parameter(torch.ones(2))], "lr": 0.1 * n, "momentum": 0.3 * n}
        for n in range(3)
    ]
    made = replaced(torch.optim.SGD(groups, lr=1.0), LARS)
    assert [group["momentum"] for group in made.param_groups] == [0.0, 0.3, 0.6]
    assert [group["lr"] for group in made.param_groups] == [0.0, 0.1, 0.2]
    two: list[dict[str, Any]] = [
        {"params": [nn.Parameter(torch.ones(2))], "betas": (0.0, 0.5)},
        {"params": [nn.Parameter(torch.ones(2))], "weight_decay": 0.5},
    ]
    adam = torch.optim.AdamW(two)
    first, second = replaced(adam, LAMB).param_groups
    assert (first["betas"], first["weight_decay"]) == ((0.0, 0.5), 0.01)
    assert (second["betas"], second["weight_decay"]) == ((0.9, 0.999), 0.5)


@pytest.mark.parametrize("kind", [LARS, LAMB], ids=lambda kind: kind.name)
@pytest.mark.parametrize("maximize", [False, True])
def test_the_direction_is_the_recipes(kind: OtherOptimizer, maximize: bool) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    made = replaced(torch.optim.Adam([weight], lr=0.1, maximize=maximize), kind)
    weight.sum().backward()
    made.step()
    assert bool((weight > 1).all()) == maximize
    assert bool((weight < 1).all()) != maximize


def test_groups_of_two_directions_are_refused() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(2))], "maximize": m} for m in (True, False)]
    with pytest.raises(UserError, match=r"LAMB.*maximize on in some only; use another strategy"):
        replaced(torch.optim.Adam(groups), LAMB)
