"""Batches of 64 in pieces of 8, on up to eight workers; compare `before/`."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import samepath

session = samepath.start(seed=0)
made = torch.Generator().manual_seed(1)
inputs = torch.randn(256, 8, generator=made)
train = TensorDataset(inputs, inputs.abs().argmax(1))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


trainer = session.prepare(model, optimizer, loss, batch_size=64, grain_size=8)

for epoch in range(3):
    for batch in trainer.batches(train, epoch):
        trainer.step(batch)
session.print("digest", trainer.digest())
