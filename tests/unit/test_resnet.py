"""ResNets have the published sizes and compute scores."""

from __future__ import annotations

import pytest
import torch

from samepath.errors import UserError
from samepath.recipes.resnet import ResNet


@pytest.mark.parametrize(
    ("depth", "millions", "features"),
    [
        (18, 11.17, 512),
        (34, 21.28, 512),
        (50, 23.52, 2048),
        (101, 42.51, 2048),
        (152, 58.16, 2048),
    ],
)
def test_parameters_and_features(depth: int, millions: float, features: int) -> None:
    with torch.device("meta"):
        model = ResNet(depth)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert round(count / 1e6, 2) == millions
    assert model[-1].in_features == features


@pytest.mark.parametrize("depth", [18, 50])
def test_scores(depth: int) -> None:
    scores = ResNet(depth, width=8, num_classes=7)(torch.randn(2, 3, 32, 32))
    assert scores.shape == (2, 7)
    assert scores.isfinite().all()


def test_unknown_depth() -> None:
    with pytest.raises(UserError, match="20"):
        ResNet(20)
