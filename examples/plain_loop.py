"""Handwritten digits in plain PyTorch; `own_loop.py` is the same on any number of workers."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
train = TensorDataset(images, torch.tensor(digits.target))
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.1), nn.Flatten(),
    nn.Linear(16 * 6 * 6, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


loader = DataLoader(train, batch_size=128, shuffle=True)

for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        batch_loss = loss(model, batch)
        batch_loss.backward()
        optimizer.step()
    print(epoch, batch_loss.item())
