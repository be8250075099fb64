"""An exponential moving average of the weights, in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 8, generator=made)
targets = inputs.square().sum(1, keepdim=True) + torch.randn(300, 1, generator=made)
train = TensorDataset(inputs[:250], targets[:250])
valid = inputs[250:], targets[250:]


def loss(model, batch):
    inputs, targets = batch
    return F.mse_loss(model(inputs), targets)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
loader = DataLoader(train, batch_size=50, shuffle=True)

for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        ema.update_parameters(model)
    with torch.no_grad():
        print(epoch, loss(model, valid).item(), loss(ema, valid).item())
