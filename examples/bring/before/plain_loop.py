"""A classifier in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 8, generator=made)
train = TensorDataset(inputs[:250], inputs[:250].abs().argmax(1))
valid = TensorDataset(inputs[250:], inputs[250:].abs().argmax(1))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


loader = DataLoader(train, batch_size=64, shuffle=True)

for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    schedule.step()
    with torch.no_grad():
        print(epoch, loss(model, valid[:]).item())
