"""Gradient accumulation in plain PyTorch: batches of 64 as four micro-batches of 16."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

made = torch.Generator().manual_seed(1)
inputs = torch.randn(256, 8, generator=made)
train = TensorDataset(inputs, inputs.abs().argmax(1))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


loader = DataLoader(train, batch_size=16, shuffle=True)

for _ in range(3):
    for number, batch in enumerate(loader):
        (loss(model, batch) / 4).backward()
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
