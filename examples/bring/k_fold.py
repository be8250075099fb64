"""K-fold cross-validation, every fold on all workers; `before/k_fold.py` is the same in PyTorch."""

import torch
import torch.nn.functional as F
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import Subset, TensorDataset

import samepath

session = samepath.start(seed=0)
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
    trainer = session.prepare(model, optimizer, loss, batch_size=32, name=f"fold {fold}")
    trainer.resume(f"checkpoints/fold-{fold}")
    for epoch in range(5):
        for batch in trainer.batches(Subset(data, train.tolist()), epoch):
            trainer.step(batch)
    trainer.save(f"checkpoints/fold-{fold}")
    found.append(trainer.evaluate(Subset(data, valid.tolist()))["loss"])
    session.print("fold", fold, found[-1])
    session.print("digest of fold", fold, trainer.digest())
session.print("mean", sum(found) / len(found))
