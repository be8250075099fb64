"""CIFAR-10 by residual networks: the experiments of Gahlot, Yin and Shankar 2020 as recipes.

In: CIFAR-10 (`data.cifar10`), from `--data` or where it lies on this machine. Out: `cifar10`
(ResNet-18), the deeper networks, and `cifar10_small`, the same experiment at the size of two cores.
A batch is (images as bytes (N, 3, 32, 32), labels); the model normalises. Validation is the test
batch, as in the paper.

The paper trains 50 epochs with SGD and compares weight decays of 0.005 to 0.0135; it gives neither
momentum nor rate nor schedule. Momentum 0.9, weight decay 0.0005 and crops with flips are what is
usual for these networks (He et al. 2016, section 4.2, with 0.0001).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath.data import Draws
from samepath.data.formats.cifar10 import CLASS_NAMES, find_cifar10, load_cifar10
from samepath.recipe import Recipe
from samepath.recipes.classification import Batch, evaluate, loss
from samepath.recipes.resnet import ResNet

MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)
"""Of the 50,000 training images' red, green and blue, between 0 and 1."""
PADDING = 4


def cifar10(data: Path | None = None) -> Recipe:
    """ResNet-18, 11.17 million parameters."""
    return _recipe(data, depth=18)


def cifar10_resnet34(data: Path | None = None) -> Recipe:
    """ResNet-34, 21.28 million parameters."""
    return _recipe(data, depth=34)


def cifar10_resnet50(data: Path | None = None) -> Recipe:
    """ResNet-50, 23.52 million parameters."""
    return _recipe(data, depth=50)


def cifar10_resnet101(data: Path | None = None) -> Recipe:
    """ResNet-101, 42.51 million parameters."""
    return _recipe(data, depth=101)


def cifar10_resnet152(data: Path | None = None) -> Recipe:
    """ResNet-152, 58.16 million parameters."""
    return _recipe(data, depth=152)


def cifar10_small(data: Path | None = None) -> Recipe:
    """ResNet-18 of an eighth of the width: 176,000 parameters, 64 features."""
    return _recipe(data, depth=18, width=8, epochs=20, milestones=(10, 16))


class Normalise(nn.Module):
    """Bytes as numbers of mean 0 and deviation 1. Its constants are in no checkpoint."""

    means: Tensor
    deviations: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, values in (("means", MEANS), ("deviations", DEVIATIONS)):
            constant = 255.0 * torch.tensor(values).view(3, 1, 1)
            self.register_buffer(name, constant, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images.to(self.means.dtype) - self.means) / self.deviations


def network(depth: int = 18, *, width: int = 64) -> nn.Sequential:
    """A residual network for images of bytes."""
    return nn.Sequential(
        OrderedDict(normalise=Normalise(), resnet=ResNet(depth, num_classes=10, width=width))
    )


def crop_and_flip(batch: Batch, draws: Draws) -> Batch:
    """Each image moved by up to four pixels, black coming in, and every other one mirrored."""
    images, labels = batch
    device = images.device
    window = torch.arange(images.shape[-1], device=device)
    offsets = torch.from_numpy(draws.integers(0, 2 * PADDING + 1, 2)).to(device)
    mirrored = torch.from_numpy(draws.coin()).to(device)
    rows = offsets[:, :1] + window
    columns = offsets[:, 1:] + torch.where(mirrored, window.flip(0), window)
    padded = F.pad(images, (PADDING,) * 4)
    example = torch.arange(len(images), device=device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=device)[:, None, None]
    moved = padded[example, channel, rows[:, None, :, None], columns[:, None, None, :]]
    return moved, labels


def _recipe(
    data: Path | None,
    *,
    depth: int,
    width: int = 64,
    epochs: int = 50,
    milestones: Sequence[int] = (25, 40),
) -> Recipe:
    read = load_cifar10(data or find_cifar10())
    return Recipe(
        model=lambda: network(depth, width=width),
        train=(torch.from_numpy(read.train_images), torch.from_numpy(read.train_labels)),
        valid=(torch.from_numpy(read.test_images), torch.from_numpy(read.test_labels)),
        class_names=CLASS_NAMES,
        loss=loss,
        evaluate=evaluate,
        augment=crop_and_flip,
        optimizer=_sgd,
        schedule=lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(
            optimizer, list(milestones), gamma=0.1
        ),
        batch_size=256,
        grain_size=32,
        epochs=epochs,
    )


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)
