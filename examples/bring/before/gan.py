"""A GAN in plain PyTorch: points on a circle, a latent vector for each."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

made = torch.Generator().manual_seed(1)
angles = 6.28 * torch.rand(256, generator=made)
points = torch.stack([angles.cos(), angles.sin()], 1)
train = TensorDataset(points, torch.randn(256, 4, generator=made))
torch.manual_seed(0)
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


loader = DataLoader(train, batch_size=64, shuffle=True)

for _ in range(5):
    for batch in loader:
        d_optimizer.zero_grad()
        d_loss(discriminator, batch).backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss(generator, batch).backward()
        g_optimizer.step()
