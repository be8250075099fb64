"""A MONAI bundle's training config, as its people write one, and its recipe."""

from __future__ import annotations

from typing import Any

import torch

import samepath.monai
from samepath import Recipe

CONFIG: dict[str, Any] = {
    "imports": ["$import torch"],
    "bundle_root": ".",
    "device": "$torch.device('cuda:0')",
    "epochs": 2,
    "network_def": {
        "_target_": "UNet",
        "spatial_dims": 2,
        "in_channels": 1,
        "out_channels": 1,
        "channels": [4, 8],
        "strides": [2],
    },
    "network": "$@network_def.to(@device)",
    "loss": {"_target_": "DiceLoss", "sigmoid": True},
    "optimizer": {
        "_target_": "torch.optim.Adam",
        "params": "$@network.parameters()",
        "lr": 0.01,
    },
    "lr_scheduler": {
        "_target_": "torch.optim.lr_scheduler.StepLR",
        "optimizer": "@optimizer",
        "step_size": 1,
        "gamma": 0.5,
    },
    "train": {
        "dataset": {
            "_target_": "Dataset",
            "data": "$[]",
            "transform": {"_target_": "ScaleIntensityd", "keys": "image"},
        },
        "dataloader": {
            "_target_": "DataLoader",
            "dataset": "@train#dataset",
            "batch_size": 6,
            "shuffle": True,
        },
        "inferer": {"_target_": "SimpleInferer"},
        "handlers": [
            {"_target_": "LrScheduleHandler", "lr_scheduler": "@lr_scheduler", "print_lr": True},
            {"_target_": "StatsHandler", "tag_name": "train_loss"},
        ],
        "trainer": {
            "_target_": "SupervisedTrainer",
            "max_epochs": "@epochs",
            "device": "@device",
            "train_data_loader": "@train#dataloader",
            "network": "@network",
            "loss_function": "@loss",
            "optimizer": "@optimizer",
            "inferer": "@train#inferer",
            "train_handlers": "@train#handlers",
            "amp": False,
        },
    },
    "validate": {"dataset": {"_target_": "Dataset", "data": "@train#dataset#data"}},
}


def examples(number: int = 20) -> list[dict[str, Any]]:
    images = torch.randn(number, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    return [{"image": image, "label": (image > 0.5).float()} for image in images]


def recipe() -> Recipe:
    return samepath.monai.recipe(CONFIG, {"train#dataset#data": examples()}, grain_size=2)
