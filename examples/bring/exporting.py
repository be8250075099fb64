"""A classifier of digits, to be exported and asked.

samepath train examples/bring/exporting.py -n 2 --out run
samepath export run --epoch best --to state_dict.pt
samepath predict run --data valid --out predictions.npz -n 2
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from samepath import Recipe

digits = load_digits()
images = torch.tensor(digits.images[:, None] / 16).to(torch.get_default_dtype())
labels = torch.tensor(digits.target)


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def recipe():
    return Recipe(
        model=make_model,
        train=(images[:1400], labels[:1400]),
        valid=(images[1400:], labels[1400:]),
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.003),
        keep_best=True,
        batch_size=100,
        max_workers=5,
        epochs=3,
    )
