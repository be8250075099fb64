"""The recipe's optimizer, changed from outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samepath.engine.optimizers import with_decay
from samepath.errors import UserError


def groups(*decays: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [{"params": [nn.Parameter(torch.zeros(1))], "weight_decay": decay} for decay in decays],
        lr=0.1,
    )


def decays(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["weight_decay"] for group in optimizer.param_groups]


def test_groups_that_do_not_decay_stay_so() -> None:
    optimizer = groups(0.01, 0.0, 0.5)
    with_decay(optimizer, 0.2)
    assert decays(optimizer) == [0.2, 0.0, 0.2]


def test_where_none_decays_all_do() -> None:
    optimizer = groups(0.0, 0.0)
    with_decay(optimizer, 0.2)
    assert decays(optimizer) == [0.2, 0.2]


def test_an_optimizer_without_decay_says_so() -> None:
    optimizer = torch.optim.LBFGS([nn.Parameter(torch.zeros(1))])
    with pytest.raises(UserError, match=r"LBFGS has no weight decay.*leave --weight-decay out"):
        with_decay(optimizer, 0.1)
