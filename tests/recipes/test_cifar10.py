"""The CIFAR-10 recipes: networks of the published sizes, normalisation, augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from samepath.builtin import BUILT_IN
from samepath.data import Draws
from samepath.data.formats import cifar10
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.recipes.cifar10 import DEVIATIONS, MEANS, ResNet, crop_and_flip, network

FEW = 4


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name.startswith("cifar10")])
def test_every_recipe_is_made(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "NUM_IMAGES", FEW)
    for batch in (*cifar10.BATCHES, cifar10.TEST):
        np.zeros((FEW, cifar10.RECORD), np.uint8).tofile(tmp_path / batch)
    recipe = find_recipe(name, str(tmp_path))
    depth = int(name.partition("resnet")[2] or 18)
    with torch.device("meta"):
        model, expected = recipe.model(), network(depth, width=8 if "small" in name else 64)
    assert model.state_dict().keys() == expected.state_dict().keys()
    assert num_parameters(model) == num_parameters(expected)
    (group,) = recipe.optimizer([nn.Parameter(torch.zeros(1))]).param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.9, 5e-4)
    assert recipe.class_names == cifar10.CLASS_NAMES
    assert isinstance(recipe.train, tuple)
    assert recipe.train[0].dtype == torch.uint8
    assert len(recipe.train[0]) == 5 * FEW
    if name == "cifar10-small":
        assert recipe.evaluate is not None
        found = recipe.evaluate(recipe.model().eval(), recipe.train)
        assert found["loss"].isfinite()
        assert 0 <= found["accuracy"] <= 1


# ---- networks


@pytest.mark.parametrize(
    ("depth", "millions", "features"),
    [(18, 11.17, 512), (34, 21.28, 512), (50, 23.52, 2048), (101, 42.51, 2048), (152, 58.16, 2048)],
)
def test_sizes_are_the_published_ones(depth: int, millions: float, features: int) -> None:
    """Half the width has a quarter of the parameters, nearly, and half the features."""
    with torch.device("meta"):
        whole, half = network(depth), ResNet(depth, width=32)
    assert round(num_parameters(whole) / 1e6, 2) == millions
    assert whole.get_submodule("resnet.classifier").in_features == features
    assert not [name for name in whole.state_dict() if name.startswith("normalise")]
    assert 3.9 < num_parameters(whole) / num_parameters(half) < 4.0
    assert half[-1].in_features == features // 2


@pytest.mark.parametrize("depth", [18, 50])
def test_scores(depth: int) -> None:
    scores = ResNet(depth, width=8, num_classes=7)(torch.randn(2, 3, 32, 32))
    assert scores.shape == (2, 7)
    assert scores.isfinite().all()


def test_layers_have_names_and_wrong_sizes_are_refused() -> None:
    with torch.device("meta"):
        names = [name for name, _ in ResNet(18).named_children()]
    blocks = [f"block{number}" for number in range(1, 9)]
    assert names == ["stem", *blocks, "pool", "flatten", "classifier"]
    with pytest.raises(UserError, match="20"):
        ResNet(20)
    with pytest.raises(UserError, match="width is 0"):
        ResNet(18, width=0)


def test_the_model_normalises() -> None:
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = network(18, width=4).get_submodule("normalise")(images)
    means, deviations = (torch.tensor(v).view(3, 1, 1) for v in (MEANS, DEVIATIONS))
    torch.testing.assert_close(found, (images / 255 - means) / deviations)


# ---- augmentation


def slow_crop_and_flip(images: torch.Tensor, draws: Draws) -> torch.Tensor:
    """One image after the other."""
    offsets, mirrored = draws.integers(0, 9, 2), draws.coin()
    moved = []
    for image, (top, left), flip in zip(images, offsets, mirrored, strict=True):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = image
        cut = padded[:, top : top + 32, left : left + 32]
        moved.append(cut.flip(2) if flip else cut)
    return torch.stack(moved)


def test_crop_and_flip() -> None:
    """An image moves the same way in any company."""

    def draws(examples: Sequence[int]) -> Draws:
        return Draws(seed=3, epoch=1, examples=np.array(examples))

    images = torch.randint(0, 256, (200, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(200)
    moved, kept_labels = crop_and_flip((images, labels), draws(range(200)))
    assert torch.equal(moved, slow_crop_and_flip(images, draws(range(200))))
    assert moved.dtype == torch.uint8
    assert torch.equal(kept_labels, labels)
    assert len({image.numpy().tobytes() for image in moved}) == 200
    some, _ = crop_and_flip((images[[7, 2]], labels[[7, 2]]), draws([7, 2]))
    assert torch.equal(some, moved[[7, 2]])
