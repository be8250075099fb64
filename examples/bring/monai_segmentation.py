"""A 3-D segmentation with MONAI as people write it: CacheDataset, random transforms, UNet, Dice.

    pip install 'samepath[monai]'
    samepath train examples/bring/monai_segmentation.py -n 2
    samepath verify examples/bring/monai_segmentation.py -n 1,2,3

The volumes are synthetic: a bright ellipsoid in noise, whose voxels are to be found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.data import CacheDataset, list_data_collate
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    EnsureTyped,
    RandFlipd,
    RandGaussianNoised,
    RandRotate90d,
    ScaleIntensityd,
)
from torch import Tensor, nn

from samepath import Recipe

KEYS = ["image", "label"]
SIDE = 16
dice_loss = DiceLoss(sigmoid=True)  # the mean over examples of each example's own Dice loss


def volumes(number: int, seed: int) -> list[dict[str, Any]]:
    """Noise with an ellipsoid, and where it is."""
    drawn = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij"))
    made = []
    for _ in range(number):
        centre, radii = drawn.uniform(5, 11, (3, 1, 1, 1)), drawn.uniform(2, 5, (3, 1, 1, 1))
        label = (((grid - centre) / radii) ** 2).sum(0, keepdims=True) < 1
        image = label + drawn.normal(0, 0.5, label.shape)
        made.append({"image": image.astype(np.float32), "label": label.astype(np.float32)})
    return made


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    found: Tensor = dice_loss(model(batch["image"]), batch["label"])
    return found


def evaluate(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    scores, wanted = model(batch["image"]), batch["label"]
    is_inside = (scores > 0).float()
    both = (is_inside * wanted).flatten(1).sum(1)
    dice = 2 * both / (is_inside + wanted).flatten(1).sum(1)
    return {"loss": dice_loss(scores, wanted), "dice": dice.mean()}


def recipe() -> Recipe:
    always = [EnsureTyped(KEYS), ScaleIntensityd(["image"])]
    random = [
        RandFlipd(KEYS, prob=0.5, spatial_axis=0),
        RandRotate90d(KEYS, prob=0.5, spatial_axes=(1, 2)),
        RandGaussianNoised(["image"], prob=0.5, std=0.1),
    ]
    return Recipe(
        model=lambda: UNet(
            spatial_dims=3, in_channels=1, out_channels=1, channels=(8, 16), strides=(2,)
        ),
        train=CacheDataset(volumes(36, seed=1), Compose(always + random), progress=False),
        valid=CacheDataset(volumes(10, seed=2), Compose(always), progress=False),
        collate=list_data_collate,
        loss=loss,
        evaluate=evaluate,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        batch_size=8,
        max_workers=8,
        epochs=3,
    )
