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
    assert model.get_submodule("classifier").in_features == features


@pytest.mark.parametrize("depth", [18, 50])
def test_scores(depth: int) -> None:
    scores = ResNet(depth, width=8, num_classes=7)(torch.randn(2, 3, 32, 32))
    assert scores.shape == (2, 7)
    assert scores.isfinite().all()


@pytest.mark.parametrize(("depth", "factor"), [(18, 1), (152, 4)])
def test_width(depth: int, factor: int) -> None:
    """Half the width has a quarter of the parameters, nearly, and half the features."""
    with torch.device("meta"):
        whole, half = ResNet(depth), ResNet(depth, width=32)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (whole, half)]
    assert 3.9 < sizes[0] / sizes[1] < 4.0
    assert half[-1].in_features == 8 * 32 * factor


def test_layers_have_names() -> None:
    with torch.device("meta"):
        names = [name for name, _ in ResNet(18).named_children()]
    blocks = [f"block{number}" for number in range(1, 9)]
    assert names == ["stem", *blocks, "pool", "flatten", "classifier"]


def test_unknown_depth_and_width() -> None:
    with pytest.raises(UserError, match="20"):
        ResNet(20)
    with pytest.raises(UserError, match="width is 0"):
        ResNet(18, width=0)
