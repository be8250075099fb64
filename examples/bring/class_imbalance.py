"""A classifier of rare events on any number of workers; the same DataLoader as before it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import samepath

session = samepath.start(seed=0)
made = torch.Generator().manual_seed(1)
inputs = torch.randn(400, 6, generator=made)
labels = (inputs.sum(1) > 4).long()  # one in twenty
train = TensorDataset(inputs[:300], labels[:300])
valid = TensorDataset(inputs[300:], labels[300:])
weights = 1.0 / torch.bincount(labels[:300])[labels[:300]]
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


sampler = WeightedRandomSampler(weights.tolist(), num_samples=200)
loader = DataLoader(train, batch_size=40, sampler=sampler)
trainer = session.prepare(model, optimizer, loss, batch_size=40)

for epoch in range(4):
    for batch in trainer.batches(loader, epoch):
        trainer.step(batch)
    session.print(epoch, trainer.evaluate(valid)["loss"])
session.print("digest", trainer.digest())
