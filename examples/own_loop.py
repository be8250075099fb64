"""Handwritten digits on any number of workers, with one result; compare `plain_loop.py`."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import samepath

session = samepath.start(seed=0)
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


trainer = session.prepare(model, optimizer, loss, batch_size=128, max_workers=8)

for epoch in range(3):
    for batch in trainer.batches(train, epoch):
        result = trainer.step(batch)
    session.print(epoch, result.loss)
session.print("digest", trainer.digest())
