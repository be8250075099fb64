"""K-fold cross-validation in plain PyTorch."""

import torch
import torch.nn.functional as F
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

made = torch.Generator().manual_seed(1)
inputs = torch.randn(120, 8, generator=made)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True) + inputs[:, :1] ** 2)
models = nn.ModuleList()


def loss(model, batch):
    inputs, targets = batch
    return F.mse_loss(model(inputs), targets)


found = []
for fold, (train, valid) in enumerate(KFold(3, shuffle=True, random_state=0).split(inputs)):
    torch.manual_seed(fold)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    models.append(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Subset(data, train.tolist()), batch_size=32, shuffle=True)
    for _ in range(5):
        for batch in loader:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    with torch.no_grad():
        found.append(loss(model, data[valid.tolist()]).item())
    print("fold", fold, found[-1])
print("mean", sum(found) / len(found))
