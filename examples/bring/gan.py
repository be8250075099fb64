"""A GAN on any number of workers; `before/gan.py` is the same in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import samepath

session = samepath.start(seed=0)
made = torch.Generator().manual_seed(1)
angles = 6.28 * torch.rand(256, generator=made)
points = torch.stack([angles.cos(), angles.sin()], 1)
train = TensorDataset(points, torch.randn(256, 4, generator=made))
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))


def d_loss(discriminator, batch):
    real, latents = batch
    fake = generator(latents).detach()
    return F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()


def g_loss(generator, batch):
    _, latents = batch
    return F.softplus(-discriminator(generator(latents))).mean()


d_trainer = session.prepare(discriminator, d_optimizer, d_loss, batch_size=64, name="discriminator")
g_trainer = session.prepare(generator, g_optimizer, g_loss, batch_size=64, name="generator")

for epoch in range(5):
    for batch in d_trainer.batches(train, epoch):
        d_result = d_trainer.step(batch)
        g_result = g_trainer.step(batch)
    session.print(epoch, d_result.loss, g_result.loss)
session.print("digest discriminator", d_trainer.digest())
session.print("digest generator", g_trainer.digest())
