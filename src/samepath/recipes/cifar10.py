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
from samepath.errors import UserError
from samepath.recipe import Recipe
from samepath.recipes.classification import Batch, evaluate, loss

MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)
"""Deviations of the 50,000 training images' red, green and blue, between 0 and 1."""
PADDING = 4
_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


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


def _recipe(
    data: Path | None,
    *,
    depth: int,
    width: int = 64,
    epochs: int = 50,
    milestones: Sequence[int] = (25, 40),
) -> Recipe:
    train, test = (
        (torch.from_numpy(images), torch.from_numpy(labels))
        for images, labels in load_cifar10(data or find_cifar10())
    )
    return Recipe(
        model=lambda: network(depth, width=width),
        train=train,
        valid=test,
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


# ---- networks (He et al. 2016, with the stem used for CIFAR)


def network(depth: int = 18, *, width: int = 64) -> nn.Sequential:
    """A residual network for images of bytes."""
    return nn.Sequential(
        OrderedDict(normalise=Normalise(), resnet=ResNet(depth, num_classes=10, width=width))
    )


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


class Block(nn.Module):
    """Convolutions whose result is added to their input (a projection where shapes differ)."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        # (in, out, kernel, stride) of each convolution
        sizes = (
            [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
            if bottleneck
            else [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        )
        layers: list[nn.Module] = []
        for i, o, kernel, step in sizes:
            convolution = nn.Conv2d(i, o, kernel, step, padding=kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.body(images) + self.shortcut(images), inplace=True)


class ResNet(nn.Sequential):
    """A residual network for images (B, 3, 32, 32); `width` below 64 makes a smaller one.

    The stem is one 3 x 3 convolution without pooling; depth 18, 34 (basic blocks), 50, 101 or 152
    (bottlenecks). The last layer is given 512 or 2048 features. Layers are named stem, block1,
    block2, ..., pool, flatten, classifier.
    """

    def __init__(self, depth: int = 18, *, num_classes: int = 10, width: int = 64) -> None:
        if depth not in _BLOCKS:
            raise UserError(f"depth is {depth}; ResNets have a depth of {sorted(_BLOCKS)}")
        if width < 1:
            raise UserError(f"width is {width}; it must be at least 1 (64 is the published one)")
        bottleneck = depth >= 50
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Sequential(
                nn.Conv2d(3, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            )
        )
        inputs = width
        for stage, count in enumerate(_BLOCKS[depth]):
            for number in range(count):
                stride = 2 if stage and not number else 1
                block = Block(inputs, width << stage, stride, bottleneck=bottleneck)
                layers[f"block{len(layers)}"] = block
                inputs = (width << stage) * (4 if bottleneck else 1)
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["classifier"] = nn.Linear(inputs, num_classes)
        super().__init__(layers)
