"""The LIDC shapes: what is in the file, how it is split, and the two recipes on it."""

from __future__ import annotations

import zipfile
from importlib import resources

import numpy as np
import pytest
import torch

from samepath.data.formats.lidc import LidcShapes, load_lidc_shapes, split_by_patient
from samepath.recipe import Recipe, find_recipe
from samepath.recipes.nodules.recipe import as_images, categories

FILES = resources.files("samepath.data.formats")


@pytest.fixture(scope="module")
def shapes() -> LidcShapes:
    return load_lidc_shapes()


def test_the_file_carries_no_build_time_and_has_its_attribution_beside_it() -> None:
    with (FILES / "lidc_shapes.npz").open("rb") as file, zipfile.ZipFile(file) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    text = (FILES / "LIDC_ATTRIBUTION.md").read_text("utf-8")
    assert "CC BY 3.0" in text
    assert "Armato" in text


def test_counts_and_ranges_are_those_of_lidc_idri(shapes: LidcShapes) -> None:
    assert {len(values) for values in vars(shapes).values()} == {2651}
    assert len(np.unique(shapes.scan)) == 883
    assert shapes.volumes.shape == (2651, 16, 16, 16)
    assert shapes.volumes.dtype == np.uint8
    assert shapes.malignancy.dtype == shapes.extent_mm.dtype == np.float32
    assert (shapes.malignancy.min(), shapes.malignancy.max()) == (1, 5)
    assert shapes.extent_mm.min() >= 3 - 1e-6  # LIDC outlines nodules of 3 mm and more
    assert shapes.readers.min() == 1
    assert (shapes.readers > 4).sum() == 14
    assert (shapes.volumes.reshape(2651, -1).max(1) > 0).all()


def test_nodules_sit_in_the_middle_of_their_cube(shapes: LidcShapes) -> None:
    """The cube is 1.25 times the nodule: its faces are empty, its bounding box centred."""
    occupied = shapes.volumes > 0
    for axis, others in ((1, (2, 3)), (2, (1, 3)), (3, (1, 2))):
        assert not occupied.take([0, 15], axis=axis).any()
        profile = occupied.max(axis=others)
        middle = (profile.argmax(1) + 15 - profile[:, ::-1].argmax(1)) / 2
        assert np.abs(np.median(middle) - 7.5) <= 0.5


def test_split_has_256_validation_nodules_and_no_shared_patient(shapes: LidcShapes) -> None:
    train, valid = split_by_patient(shapes.patient)
    assert len(valid) == 256
    assert np.array_equal(np.sort(np.concatenate([train, valid])), np.arange(2651))
    assert not set(shapes.patient[train]) & set(shapes.patient[valid])
    with pytest.raises(ValueError, match=r"1 short"):
        split_by_patient(np.array([7, 7, 7, 7]), 1)


# ---- recipes


@pytest.fixture(scope="module", params=["nodules", "nodules-small"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return find_recipe(request.param)


def test_recipes_are_the_papers(recipe: Recipe) -> None:
    assert isinstance(recipe.train, torch.Tensor)
    assert isinstance(recipe.valid, torch.Tensor)
    assert len(recipe.train) == (2651 if recipe.epochs == 400 else 1391) - 256
    assert recipe.valid.shape == (256, 16, 16, 16)
    for volumes in (recipe.train, recipe.valid):
        images = as_images(volumes)
        assert images.shape == (len(volumes), 1, 16, 16, 16)
        assert images.dtype == torch.float32
        assert (images.min().item(), images.max().item()) == (0, 1)
    assert not set(recipe.train_facts["patient"]) & set(recipe.valid_facts["patient"])
    optimizer = recipe.optimizer(recipe.model().parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    defaults = optimizer.defaults
    assert (defaults["lr"], defaults["betas"], defaults["eps"]) == (0.00105, (0.9, 0.999), 1e-8)
    assert recipe.batch_size == 32


CATEGORIES: list[tuple[dict[str, list[object]], list[str] | None]] = [
    (
        {"malignancy": [1.0, 2.75, 3.0, 3.25, 5.0]},
        ["benign", "benign", "indeterminate", "malignant", "malignant"],
    ),
    ({"label": [0, 1]}, ["benign", "malignant"]),
    ({"label": [0, 1, 2]}, ["0", "1", "2"]),
    ({"category": ["a", "b"], "malignancy": [1.0, 5.0]}, ["a", "b"]),
    ({"diameter_mm": [4.0]}, None),
]


@pytest.mark.parametrize(("facts", "expected"), CATEGORIES)
def test_categories(facts: dict[str, list[object]], expected: list[str] | None) -> None:
    found = categories({name: np.array(values) for name, values in facts.items()})
    assert (None if found is None else found.tolist()) == expected


def test_the_small_recipe_learns() -> None:
    recipe = find_recipe("nodules-small")
    assert isinstance(recipe.train, torch.Tensor)
    assert isinstance(recipe.valid, torch.Tensor)
    torch.manual_seed(0)
    model = recipe.model()
    optimizer = recipe.optimizer(model.parameters())
    before = recipe.loss(model, recipe.valid[:64]).item()
    for batch in recipe.train.split(recipe.batch_size)[:30]:
        optimizer.zero_grad()
        torch.autograd.backward(recipe.loss(model, batch))
        optimizer.step()
    assert recipe.loss(model, recipe.valid[:64]).item() < 0.6 * before
