"""The LIDC shapes: what is in the file, how it is split, and the two recipes on it."""

from __future__ import annotations

import zipfile
from importlib import resources

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samepath.data.formats.lidc import LidcShapes, load_lidc_shapes, split_by_patient
from samepath.recipe import Recipe, find_recipe
from samepath.recipes.nodules.recipe import as_images, categories


@pytest.fixture(scope="module")
def shapes() -> LidcShapes:
    return load_lidc_shapes()


def test_the_file_holds_plain_arrays_only() -> None:
    source = resources.files("samepath.data.formats").joinpath("lidc_shapes.npz")
    with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)


def test_the_file_carries_no_build_time() -> None:
    source = resources.files("samepath.data.formats").joinpath("lidc_shapes.npz")
    with source.open("rb") as file, zipfile.ZipFile(file) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_attribution_is_beside_the_file() -> None:
    text = (resources.files("samepath.data.formats") / "LIDC_ATTRIBUTION.md").read_text("utf-8")
    assert "CC BY 3.0" in text
    assert "Armato" in text


def test_counts_are_those_of_lidc_idri(shapes: LidcShapes) -> None:
    assert len(shapes) == 2651
    assert len(np.unique(shapes.scan)) == 883
    assert shapes.volumes.shape == (2651, 16, 16, 16)
    for row in (shapes.malignancy, shapes.extent_mm, shapes.scan, shapes.patient, shapes.readers):
        assert row.shape == (2651,)


def test_values_are_in_range(shapes: LidcShapes) -> None:
    assert shapes.volumes.dtype == np.uint8
    assert shapes.malignancy.dtype == shapes.extent_mm.dtype == np.float32
    assert shapes.malignancy.min() >= 1
    assert shapes.malignancy.max() <= 5
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


@given(
    patient=st.lists(st.integers(1, 1012), min_size=1, max_size=60),
    num_valid=st.integers(0, 60),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_split_keeps_patients_whole_and_ignores_row_order(
    patient: list[int], num_valid: int, data: st.DataObject
) -> None:
    numbers = np.array(patient)
    try:
        train, valid = split_by_patient(numbers, num_valid)
    except ValueError:
        return  # whole patients do not always add up to it
    assert len(valid) == num_valid
    assert not set(numbers[train]) & set(numbers[valid])
    shuffled = np.array(data.draw(st.permutations(patient)))
    _, again = split_by_patient(shuffled, num_valid)
    assert set(shuffled[again]) == set(numbers[valid])


def test_split_says_when_it_cannot_be_exact() -> None:
    with pytest.raises(ValueError, match=r"1 short"):
        split_by_patient(np.array([7, 7, 7, 7]), 1)


@pytest.fixture(scope="module", params=["nodules", "nodules-small"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return find_recipe(request.param)


def test_recipes_hold_images_in_the_unit_interval(recipe: Recipe) -> None:
    assert isinstance(recipe.train, torch.Tensor)
    assert isinstance(recipe.valid, torch.Tensor)
    assert recipe.valid.shape == (256, 16, 16, 16)
    for volumes in (recipe.train, recipe.valid):
        images = as_images(volumes)
        assert images.shape == (len(volumes), 1, 16, 16, 16)
        assert images.dtype == torch.float32
        assert images.min() == 0
        assert images.max() == 1


def test_no_patient_is_on_both_sides(recipe: Recipe) -> None:
    assert not set(recipe.train_facts["patient"]) & set(recipe.valid_facts["patient"])


def test_categories_are_by_mean_malignancy() -> None:
    facts = {"malignancy": np.array([1.0, 2.75, 3.0, 3.25, 5.0], dtype=np.float32)}
    expected = ["benign", "benign", "indeterminate", "malignant", "malignant"]
    found = categories(facts)
    assert found is not None
    assert found.tolist() == expected
    labels = categories({"label": np.array([0, 1])})
    assert labels is not None
    assert labels.tolist() == ["benign", "malignant"]
    own = categories({"category": np.array(["a", "b"]), "malignancy": np.array([1.0, 5.0])})
    assert own is not None
    assert own.tolist() == ["a", "b"]
    assert categories({"diameter_mm": np.array([4.0])}) is None


def test_recipes_train_on_what_they_say() -> None:
    sizes = [len(find_recipe(name).train) for name in ("nodules", "nodules-small")]  # type: ignore[arg-type]
    assert sizes == [2651 - 256, 1391 - 256]


def test_recipes_use_the_papers_optimizer(recipe: Recipe) -> None:
    optimizer = recipe.optimizer(recipe.model().parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    defaults = optimizer.defaults
    assert (defaults["lr"], defaults["betas"], defaults["eps"]) == (0.00105, (0.9, 0.999), 1e-8)
    assert recipe.batch_size == 32


def test_the_small_recipe_learns() -> None:
    recipe = find_recipe("nodules-small")
    assert isinstance(recipe.train, torch.Tensor)
    assert isinstance(recipe.valid, torch.Tensor)
    torch.manual_seed(0)
    model = recipe.model()
    optimizer = recipe.optimizer(model.parameters())
    with torch.no_grad():
        before = recipe.loss(model, recipe.valid[:64]).item()
    for step in range(30):
        optimizer.zero_grad()
        rows = slice(step * recipe.batch_size, (step + 1) * recipe.batch_size)
        torch.autograd.backward(recipe.loss(model, recipe.train[rows]))
        optimizer.step()
    with torch.no_grad():
        after = recipe.loss(model, recipe.valid[:64]).item()
    assert after < 0.6 * before
