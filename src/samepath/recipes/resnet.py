"""Residual networks for 32 x 32 images (He et al. 2016, with the stem used for CIFAR).

In: images (B, 3, 32, 32). Out: scores (B, classes). The stem is one 3 x 3 convolution without
pooling; depth 18, 34 (basic blocks), 50, 101 or 152 (bottlenecks). At 10 classes and width 64 they
have 11.17, 21.28, 23.52, 42.51 and 58.16 million parameters, and the last layer is given 512 or
2048 features. Layers are named stem, block1, block2, ..., pool, flatten, classifier.
"""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from samepath.errors import UserError

_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


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
    """A residual network; `width` below 64 makes a smaller one of the same shape."""

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
