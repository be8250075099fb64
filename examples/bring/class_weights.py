"""A classifier whose rare class counts more; `before/class_weights.py` is the same in plain
PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

import samepath

session = samepath.start(seed=0)
made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 6, generator=made)
labels = (inputs.sum(1) > 2.5).long()
class_weights = len(labels) / torch.bincount(labels)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, weight=class_weights)


def weight(batch):
    """What the examples count for: what F.cross_entropy divides by."""
    _, labels = batch
    return float(class_weights[labels].sum())


trainer = session.prepare(model, optimizer, loss, batch_size=50, weight=weight)

for epoch in range(4):
    for batch in trainer.batches((inputs, labels), epoch):
        trainer.step(batch)
    session.print(epoch, trainer.evaluate((inputs, labels))["loss"])
session.print("digest", trainer.digest())
