"""A classifier of digits, whose weights are saved by a loop."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


torch.manual_seed(0)
model = make_model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
train = TensorDataset(images[:1400], labels[:1400])
loader = DataLoader(train, batch_size=100, shuffle=True)

for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    with torch.no_grad():
        print(epoch, loss(model, (images[1400:], labels[1400:])))
torch.save(model.state_dict(), "state_dict.pt")
