"""The same classifier on any number of workers: torchrun --nproc-per-node N after.py"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import samepath

session = samepath.start(seed=0)
made = torch.Generator().manual_seed(1)
inputs = torch.randn(600, 8, generator=made)
train = TensorDataset(inputs, inputs.abs().argmax(1))
model = nn.Sequential(
    nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 8)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


trainer = session.prepare(model, optimizer, loss, batch_size=128, max_workers=4)

for epoch in range(10):
    losses = [trainer.step(batch).loss for batch in trainer.batches(train, epoch)]
    session.print(epoch, round(sum(losses) / len(losses), 4))
session.print("digest", trainer.digest())
