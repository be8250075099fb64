"""A classifier whose rare class counts more, in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 6, generator=made)
labels = (inputs.sum(1) > 2.5).long()
class_weights = len(labels) / torch.bincount(labels)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, weight=class_weights)


loader = DataLoader(TensorDataset(inputs, labels), batch_size=50, shuffle=True)

for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    with torch.no_grad():
        print(epoch, loss(model, (inputs, labels)).item())
