"""`cifar10-small` on a part of CIFAR-10 for six epochs: what an hour of one core allows when some
sixty runs are compared.

In: data_batch_1.bin and test_batch.bin, in ../shared/data, the folder of SAMEPATH_DATA, or given
(--data .../data_batch_1.bin). Out: a recipe with 10,000 images to train on, of 50,000, and 2,000 to
validate on, of 10,000.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import Tensor

from samepath import Recipe
from samepath.data.download import data_folders
from samepath.recipes.cifar10 import cifar10_small

FIRST = Path("cifar-10-batches-bin") / "data_batch_1.bin"
EPOCHS = 6
NUM_VALID = 2_000


def recipe(data: Path | None = None) -> Recipe:
    places = [place / FIRST for place in data_folders()]
    found = next((place for place in places if place.is_file()), places[0])
    whole = cifar10_small(data or found)
    images, labels = cast("tuple[Tensor, Tensor]", whole.valid)
    return replace(whole, valid=(images[:NUM_VALID], labels[:NUM_VALID]), epochs=EPOCHS)
