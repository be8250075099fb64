"""SimCLR on handwritten digits; `before/contrastive.py` is the same in plain PyTorch."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import samepath

session = samepath.start(seed=0)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype()).unsqueeze(1)
labels = torch.tensor(digits.target)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def encode(model, batch):
    """Two views of every image, one pixel lower and one pixel to the left."""
    images, _ = batch
    first, second = model(images.roll(1, 2)), model(images.roll(-1, 3))
    return F.normalize(first, dim=1), F.normalize(second, dim=1)


def batch_loss(encoded):
    """The two views of an image find each other among all of the batch (NT-Xent)."""
    rows = torch.cat(encoded)
    likeness = (rows @ rows.T / 0.5).fill_diagonal_(-torch.inf)
    return F.cross_entropy(likeness, torch.arange(len(rows)).roll(len(rows) // 2))


def neighbours(codes, labels):
    """How often the most alike image has the same label."""
    likeness = (codes @ codes.T).fill_diagonal_(-torch.inf)
    return {"neighbours": float((labels[likeness.argmax(1)] == labels).double().mean())}


def codes(model, batch):
    images, labels = batch
    loss = batch_loss(encode(model, batch))
    return {"loss": loss, "outputs": F.normalize(model(images), dim=1), "targets": labels}


trainer = session.prepare(
    model,
    optimizer,
    encode=encode,
    batch_loss=batch_loss,
    batch_size=200,
    metrics=codes,
    evaluate_all=neighbours,
)

for epoch in range(3):
    for batch in trainer.batches((images[:1400], labels[:1400]), epoch):
        loss = trainer.step(batch).loss
    found = trainer.evaluate((images[1400:], labels[1400:]))
    session.print(epoch, f"{loss:.4f} {found['neighbours']:.4f}")
session.print("digest", trainer.digest())
