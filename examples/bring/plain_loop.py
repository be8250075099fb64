"""A classifier on any number of workers; `before/plain_loop.py` is the same in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import samepath

session = samepath.start(seed=0)
made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 8, generator=made)
train = TensorDataset(inputs[:250], inputs[:250].abs().argmax(1))
valid = TensorDataset(inputs[250:], inputs[250:].abs().argmax(1))
model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


trainer = session.prepare(
    model, optimizer, loss, batch_size=64, clip_norm=1.0, schedule=schedule, schedule_every="epoch"
)

for epoch in range(4):
    for batch in trainer.batches(train, epoch):
        trainer.step(batch)
    trainer.end_epoch()
    session.print(epoch, trainer.evaluate(valid)["loss"])
session.print("digest", trainer.digest())
