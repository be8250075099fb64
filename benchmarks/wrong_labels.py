"""Digits or CIFAR-10 with wrong labels, as WRONG_LABELS says: data:kind:share:seed.

`digits` are those of that recipe. `cifar10` and `cifar10-other` are 10,000 images each (the first
of two batches), as features that were learned without labels: patches against 256 centres of
k-means (Coates, Ng and Lee 2011, "triangle" activation, 2 x 2 pools). Networks have one hidden
layer, so that a hundred trainings are minutes on two cores. `uniform` moves a label to
any other class, `classes` mostly to one that its class is given (another at every seed), `one`
moves labels of one class to one other, `few` those of three classes, each to one other; of these
the share is that of the class's labels.
`train_facts["right"]` holds the right labels: training does not see them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath import Recipe
from samepath.data.formats.cifar10 import NUM_IMAGES, RECORD
from samepath.recipes.classification import evaluate, loss
from samepath.recipes.digits import digits

HERE = Path(__file__).resolve().parent
SHARED = next((p for p in HERE.parents if (p / "shared" / "data").is_dir()), HERE) / "shared"
CIFAR10 = SHARED / "data" / "cifar-10-batches-bin"
FILES = {"cifar10": "data_batch_2.bin", "cifar10-other": "data_batch_1.bin"}
MOSTLY = 0.8
"""Of the wrong labels of a class under `classes`, those that are one other class."""
NUM_PAIRS = {"one": 1, "few": 3}
SIDE, CENTRES = 6, 256


def planted(right: NDArray[np.int64], kind: str, share: float, seed: int) -> NDArray[np.int64]:
    """Labels of which this share (`one`, `few`: of those of some classes) is wrong."""
    draw = np.random.default_rng([seed, 20])
    if kind in NUM_PAIRS:
        return _pairs(right, draw, NUM_PAIRS[kind], share)
    number = len(right)
    wrong = draw.permutation(number)[: round(share * number)]
    labels = right.copy()
    labels[wrong] = (right[wrong] + draw.integers(1, 10, len(wrong))) % 10
    if kind == "classes":
        cycle = draw.permutation(10)
        partner = np.empty(10, np.int64)
        partner[cycle] = np.roll(cycle, 1)
        mostly = draw.random(len(wrong)) < MOSTLY
        labels[wrong[mostly]] = partner[right[wrong[mostly]]]
    return labels


def _pairs(
    right: NDArray[np.int64], draw: np.random.Generator, pairs: int, share: float
) -> NDArray[np.int64]:
    classes = draw.permutation(10)
    labels = right.copy()
    for source, target in classes[: 2 * pairs].reshape(pairs, 2):
        mine = draw.permutation(np.flatnonzero(right == source))
        labels[mine[: round(share * len(mine))]] = target
    return labels


def recipe() -> Recipe:
    data, kind, share, seed = os.environ["WRONG_LABELS"].split(":")
    if data == "digits":
        (images, right), epochs = digits().train, 20  # type: ignore[misc]
        inputs = images.flatten(1)
    else:
        (inputs, right), epochs = map(torch.from_numpy, _features(data)), 8
    made = perceptron(inputs, right, epochs)
    labels = planted(right.numpy(), kind, float(share), int(seed))
    facts = {"right": right.numpy()}
    return replace(made, train=(inputs, torch.from_numpy(labels)), train_facts=facts)


def perceptron(inputs: Tensor, labels: Tensor, epochs: int) -> Recipe:
    width = inputs.shape[1]
    return Recipe(
        model=lambda: nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)
        ),
        train=(inputs, labels),
        loss=loss,
        evaluate=evaluate,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(
            optimizer, epochs // 2, gamma=0.3
        ),
        batch_size=128,
        grain_size=128,
        epochs=epochs,
    )


def _features(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """From the folder WRONG_LABELS_CACHE where they are there, else computed and kept there."""
    file = Path(os.environ["WRONG_LABELS_CACHE"]) / f"{name}.npz"
    if not file.exists():
        records = np.fromfile(CIFAR10 / FILES[name], np.uint8).reshape(NUM_IMAGES, RECORD)
        images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
        np.savez(file, features=patch_features(images), labels=records[:, 0].astype(np.int64))
    content = np.load(file)
    return content["features"], content["labels"]


def patch_features(images: Tensor) -> NDArray[np.float32]:
    """What images have of the usual patches: (N, 4 x CENTRES), of mean 0 and deviation 1."""
    from sklearn.cluster import MiniBatchKMeans

    draw = np.random.default_rng(0)
    some = images[draw.choice(len(images), 2000, replace=False)].float()
    patches = _patches(some)[draw.choice(2000 * 27 * 27, 40_000, replace=False)]
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
    white = vectors / (values + 0.1).sqrt() @ vectors.T
    means = MiniBatchKMeans(CENTRES, random_state=0, n_init=1, batch_size=4096)
    centres = torch.from_numpy(means.fit(((patches - mean) @ white).numpy()).cluster_centers_)
    found = []
    for part in images.split(50):
        points = (_patches(part.float()) - mean) @ white
        distances = torch.cdist(points, centres.float())
        near = (distances.mean(1, keepdim=True) - distances).clamp_min(0)
        grid = near.view(len(part), 27, 27, CENTRES).permute(0, 3, 1, 2)
        found.append(F.adaptive_avg_pool2d(grid, 2).flatten(1))
    features = torch.cat(found)
    scaled: NDArray[np.float32] = ((features - features.mean(0)) / features.std(0)).numpy()
    return scaled


def _patches(images: Tensor) -> Tensor:
    """All patches as rows, each of mean 0 and deviation 1 (but for noise)."""
    rows = F.unfold(images, SIDE).transpose(1, 2).reshape(-1, 3 * SIDE * SIDE)
    return (rows - rows.mean(1, keepdim=True)) / (rows.var(1, keepdim=True) + 10).sqrt()
