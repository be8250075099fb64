"""The same classifier on any number of workers: torchrun --nproc-per-node N ddp.py"""

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
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


trainer = session.prepare(model, optimizer, loss, batch_size=64)

for epoch in range(3):
    for batch in trainer.batches(train, epoch):
        result = trainer.step(batch)
    session.print(epoch, result.loss)
session.print("digest", trainer.digest())
