"""What recipes that tell classes apart share: a batch of inputs and labels, loss, accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def evaluate(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    inputs, labels = batch
    scores = model(inputs)
    return {
        "loss": F.cross_entropy(scores, labels),
        "accuracy": (scores.argmax(1) == labels).float().mean(),
    }
