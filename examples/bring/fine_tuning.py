"""Fine-tuning: a new head first, then everything; `before/fine_tuning.py` is the plain loop."""

import torch
import torch.nn.functional as F
from torch import nn

from samepath import Recipe

made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 8, generator=made)
labels = inputs.abs().argmax(1)
pretrained = {"0.weight": torch.randn(32, 8, generator=made) / 3, "0.bias": torch.zeros(32)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.head = nn.Linear(32, 8)
        self.body.load_state_dict(pretrained)
        self.body.requires_grad_(False)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def loss(model, batch):
    inputs, labels = batch
    scores = model(inputs)
    accuracy = (scores.argmax(1) == labels).double().mean()
    return F.cross_entropy(scores, labels), {"accuracy": accuracy}


def after_epoch(run):
    if run.epoch == 1:
        run.model.body.requires_grad_(True)
        run.optimizer.add_param_group({"params": list(run.model.body.parameters()), "lr": 0.001})


def recipe():
    return Recipe(
        model=Net,
        train=(inputs[:250], labels[:250]),
        valid=(inputs[250:], labels[250:]),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        after_epoch=after_epoch,
        patience=3,
        monitor="accuracy:max",
        batch_size=50,
        max_workers=5,
        epochs=5,
    )
