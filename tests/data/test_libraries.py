"""Random transforms of MONAI, torchio and albumentations, and MONAI's caches: an item depends on
(seed, epoch, example) and on nothing that was loaded before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from samepath.data import DatasetSource, GrainRequest, Loaders, as_source
from samepath.data.given import take_apart

pytestmark = pytest.mark.filterwarnings("ignore")  # of these libraries about each other
VOLUMES = np.random.default_rng(0).normal(size=(6, 1, 6, 6, 6)).astype(np.float32)


class Mapped(Dataset[Any]):
    """Volumes, each through a function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __len__(self) -> int:
        return len(VOLUMES)

    def __getitem__(self, index: int) -> Any:
        return self.function(VOLUMES[index].copy())


def monai_transform() -> Any:
    mt = pytest.importorskip("monai.transforms", reason="monai is not installed")
    keys = ["image"]
    return mt.Compose([
        mt.EnsureTyped(keys),
        mt.RandFlipd(keys, prob=0.5),
        mt.RandGaussianNoised(keys, prob=1.0),
        mt.OneOf([mt.RandShiftIntensityd(keys, 0.5, prob=1.0), mt.RandScaleIntensityd(keys, 0.5)]),
        mt.RandAffined(keys, prob=1.0, rotate_range=0.3),
    ])  # fmt: skip


def monai_items(kind: str, folder: Path, *, seeded: bool = False) -> Any:
    transform = monai_transform()
    data = __import__("monai.data").data
    items = [{"image": volume} for volume in VOLUMES]
    if seeded:
        transform.set_random_state(seed=3)
    if kind == "PersistentDataset":
        return data.PersistentDataset(items, transform, cache_dir=folder)
    if kind == "CacheDataset":
        return data.CacheDataset(items, transform, progress=False)
    return data.Dataset(items, transform)


def torchio_items(folder: Path) -> Any:
    tio = pytest.importorskip("torchio", reason="torchio is not installed")
    transform = tio.Compose([tio.RandomFlip(axes=(0, 1)), tio.RandomNoise(), tio.RandomGamma()])
    return Mapped(lambda volume: transform(torch.from_numpy(volume)))


def albumentations_items(folder: Path) -> Any:
    alb = pytest.importorskip("albumentations", reason="albumentations is not installed")
    transform = alb.Compose(
        [alb.HorizontalFlip(), alb.OneOf([alb.GaussNoise(p=1), alb.RandomGamma(p=1)], p=1)]
    )

    def apply(volume: Any) -> Any:
        picture = (np.clip(volume[0], -1, 1) + 1) / 2
        return transform(image=picture)["image"]

    return Mapped(apply)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "monai Dataset": lambda folder: monai_items("Dataset", folder),
    "monai Dataset, seeded": lambda folder: monai_items("Dataset", folder, seeded=True),
    "monai CacheDataset": lambda folder: monai_items("CacheDataset", folder),
    "monai PersistentDataset": lambda folder: monai_items("PersistentDataset", folder),
    "torchio": torchio_items,
    "albumentations": albumentations_items,
}


def load(source: Any, *examples: int, epoch: int = 0) -> list[Tensor]:
    requests = [GrainRequest(epoch, np.array([example])) for example in examples]
    batches = source.load(requests)
    found = [batch["image"] if isinstance(batch, dict) else batch for batch in batches]
    return [torch.as_tensor(batch).clone() for batch in found]


@pytest.mark.parametrize("name", MAKERS)
def test_an_item_does_not_depend_on_what_came_before(name: str, tmp_path: Path) -> None:
    make = MAKERS[name]
    fresh = DatasetSource(make(tmp_path), seed=0)
    *_, expected = load(fresh, 0, 4, 1, 3)
    other = DatasetSource(make(tmp_path), seed=0)
    assert torch.equal(load(other, 3)[0], expected)
    (elsewhere,) = load(DatasetSource(make(tmp_path), seed=0, loaders=Loaders(1)), 3)
    assert torch.equal(elsewhere, expected), "in a loader process"
    assert not torch.equal(load(other, 3, epoch=1)[0], expected)
    first, again = load(other, 3, 3)
    assert torch.equal(first, again)


def test_monais_own_loader_is_taken_apart(tmp_path: Path) -> None:
    data = monai_items("CacheDataset", tmp_path)
    monai = __import__("monai.data").data
    loader: DataLoader[Any] = monai.DataLoader(data, batch_size=2, shuffle=True, num_workers=1)
    parts = take_apart(loader, "train")
    assert parts.data is data
    assert parts.collate is monai.list_data_collate
    source = as_source(parts.data, seed=0, collate=parts.collate)
    assert load(source, 1)[0].shape == (1, 1, 6, 6, 6)
