"""CIFAR-10: whole, in part, damaged or of another version; and the recipes."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from samepath.builtin import BUILT_IN
from samepath.data import Draws
from samepath.data.formats import cifar10
from samepath.data.formats.cifar10 import (
    BATCHES,
    CLASS_NAMES,
    NUM_IMAGES,
    RECORD,
    TEST,
    find_cifar10,
    load_cifar10,
)
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.recipes.cifar10 import DEVIATIONS, MEANS, crop_and_flip, network

REAL = Path(__file__).parents[4] / "shared" / "data" / "cifar-10-batches-bin"
needs_real = pytest.mark.skipif(
    not REAL.exists(), reason=f"CIFAR-10 is not in {REAL} (it is no part of the project)"
)
FEW = 20
Bytes = NDArray[np.uint8]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 20 images."""
    monkeypatch.setattr(cifar10, "NUM_IMAGES", FEW)


def records(batch: str) -> Bytes:
    """20 images of noise with labels, other ones in every batch."""
    seed = int.from_bytes(hashlib.sha256(batch.encode()).digest()[:4])
    made = np.random.default_rng(seed).integers(0, 256, (FEW, RECORD), dtype=np.uint8)
    made[:, 0] %= 10
    return made


def write_binary(folder: Path, batches: Sequence[str] = (*BATCHES, TEST)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        records(batch).tofile(folder / f"{batch}.bin")
    (folder / "batches.meta.txt").write_text("\n".join(CLASS_NAMES) + "\n\n")
    return folder


def is_right(found: cifar10.Cifar10, num_batches: int = 5) -> None:
    train = np.concatenate([records(batch) for batch in BATCHES[:num_batches]])
    for images, labels, expected in (
        (found.train_images, found.train_labels, train),
        (found.test_images, found.test_labels, records(TEST)),
    ):
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(images, expected[:, 1:].reshape(-1, 3, 32, 32))
        np.testing.assert_array_equal(labels, expected[:, 0])


# ---- whole


@pytest.mark.usefixtures("few")
def test_a_folder_of_batches(tmp_path: Path) -> None:
    is_right(load_cifar10(write_binary(tmp_path / "any name")))


@pytest.mark.usefixtures("few")
def test_the_folder_above(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    is_right(load_cifar10(tmp_path))


@pytest.mark.parametrize("given", [".", "cifar-10-batches-py", "cifar-10-batches-py/data_batch_2"])
def test_the_python_version_is_refused_unread(given: str, tmp_path: Path) -> None:
    """It is pickled: one line says what to get instead."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for batch in (*BATCHES, TEST):
        (folder / batch).write_bytes(pickle.dumps({b"data": b"", b"labels": []}))
    text = refusal(tmp_path / given)
    assert f"{folder} holds the python version of CIFAR-10" in text
    assert "samepath download cifar10" in text


@pytest.mark.usefixtures("few")
def test_the_binary_version_is_read_beside_the_python_version(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").touch()
    write_binary(tmp_path / "cifar-10-batches-bin")
    is_right(load_cifar10(tmp_path))


# ---- a part


@pytest.mark.usefixtures("few")
def test_missing_batches_are_named_and_a_part_must_be_asked_for(tmp_path: Path) -> None:
    folder = write_binary(tmp_path, (*BATCHES[:2], TEST))
    with pytest.raises(UserError) as refused:
        load_cifar10(folder)
    said = str(refused.value)
    assert "lacks data_batch_3.bin, data_batch_4.bin and data_batch_5.bin" in said
    assert "samepath download cifar10" in said
    last = said.split("--data ")[1]
    assert last == f"{folder}/data_batch_2.bin"
    is_right(load_cifar10(Path(last)), num_batches=2)
    is_right(load_cifar10(folder / "data_batch_1.bin"), num_batches=1)


@pytest.mark.usefixtures("few")
def test_a_part_with_a_hole_is_refused(tmp_path: Path) -> None:
    folder = write_binary(tmp_path, ("data_batch_2", TEST))
    with pytest.raises(UserError, match=r"lacks data_batch_1\.bin; get") as refused:
        load_cifar10(folder / "data_batch_2.bin")
    assert "--data" not in str(refused.value)


@pytest.mark.usefixtures("few")
def test_without_the_test_batch_nothing_is_offered(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lacks test_batch\.bin; get") as refused:
        load_cifar10(write_binary(tmp_path, BATCHES))
    assert "--data" not in str(refused.value)


def test_what_is_no_cifar10(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no CIFAR-10"):
        load_cifar10(tmp_path)
    packed = tmp_path / "cifar-10-binary.tar.gz"
    packed.touch()
    with pytest.raises(UserError, match="unpack it"):
        load_cifar10(packed)


# ---- where it lies


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with no data around."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SAMEPATH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SAMEPATH_DATA", raising=False)
    return tmp_path


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("place", ["said", "shared/data", "cache"])
def test_it_is_found(place: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEPATH_DATA", str(nowhere / "said"))
    if place == "cache":
        monkeypatch.delenv("SAMEPATH_DATA")
    write_binary(nowhere / place / "cifar-10-batches-bin")
    is_right(load_cifar10(find_cifar10()))


@pytest.mark.usefixtures("few")
def test_an_incomplete_one_is_passed_over_for_a_complete_one(nowhere: Path) -> None:
    part = write_binary(nowhere / "shared" / "data" / "cifar-10-batches-bin", (*BATCHES[:1], TEST))
    with pytest.raises(UserError, match=r"lacks data_batch_2\.bin"):
        find_cifar10()
    whole = write_binary(nowhere / "cache" / "cifar-10-batches-bin")
    assert find_cifar10().samefile(whole)
    assert not whole.samefile(part)


@pytest.mark.usefixtures("nowhere")
def test_it_is_nowhere() -> None:
    with pytest.raises(UserError, match="samepath download cifar10") as refused:
        find_recipe("cifar10")
    assert "\n" not in str(refused.value)


# ---- damaged


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        load_cifar10(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("change", [-1, -RECORD, 1, RECORD])
def test_a_binary_batch_of_another_size(change: int, tmp_path: Path) -> None:
    file = write_binary(tmp_path) / "data_batch_4.bin"
    size = FEW * RECORD + change
    file.write_bytes(file.read_bytes()[:size].ljust(size, b"\0"))
    assert f"data_batch_4.bin ends after {size:,} bytes" in refusal(tmp_path)


@pytest.mark.usefixtures("few")
def test_a_label_that_is_none(tmp_path: Path) -> None:
    file = write_binary(tmp_path) / "test_batch.bin"
    content = bytearray(file.read_bytes())
    content[7 * RECORD] = 10
    file.write_bytes(content)
    assert f"test_batch.bin: byte {7 * RECORD:,}, the label of image 7, is 10" in refusal(tmp_path)


@pytest.mark.usefixtures("few")
def test_other_classes(tmp_path: Path) -> None:
    (write_binary(tmp_path) / "batches.meta.txt").write_text("apple\naquarium_fish\n")
    assert "names other classes" in refusal(tmp_path)


# ---- the real thing


@needs_real
def test_real_batches() -> None:
    found = load_cifar10(REAL / "data_batch_2.bin")
    assert found.train_images.shape == (2 * NUM_IMAGES, 3, 32, 32)
    assert found.test_images.shape == (NUM_IMAGES, 3, 32, 32)
    assert np.bincount(found.test_labels).tolist() == [1000] * 10
    names = [CLASS_NAMES[label] for label in found.train_labels[:4]]
    assert names == ["frog", "truck", "truck", "deer"]  # as everybody's first look at it
    means = found.train_images.mean((0, 2, 3)) / 255
    np.testing.assert_allclose(means, MEANS, atol=0.005)
    deviations = found.train_images.std((0, 2, 3)) / 255
    np.testing.assert_allclose(deviations, DEVIATIONS, atol=0.005)


@needs_real
def test_real_recipe() -> None:
    recipe = find_recipe("cifar10-small", str(REAL / "data_batch_1.bin"))
    assert recipe.class_names == CLASS_NAMES
    assert isinstance(recipe.train, tuple)
    batch = tuple(tensor[:8] for tensor in recipe.train)
    assert recipe.evaluate is not None
    found = recipe.evaluate(recipe.model().eval(), batch)
    assert found["loss"].isfinite()
    assert 0 <= found["accuracy"] <= 1


# ---- recipes


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name.startswith("cifar10")])
def test_every_recipe_is_made(name: str, tmp_path: Path) -> None:
    recipe = find_recipe(name, str(write_binary(tmp_path)))
    with torch.device("meta"):
        model = recipe.model()
    depth = int(name.partition("resnet")[2] or 18)
    width = 8 if name.endswith("small") else 64
    with torch.device("meta"):
        expected = network(depth, width=width)
    assert model.state_dict().keys() == expected.state_dict().keys()
    sizes = [sum(p.numel() for p in m.parameters()) for m in (model, expected)]
    assert sizes[0] == sizes[1]
    (group,) = recipe.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.9, 5e-4)
    assert isinstance(recipe.train, tuple)
    assert recipe.train[0].dtype == torch.uint8
    assert len(recipe.train[0]) == 5 * FEW


def test_the_paper_s_sizes_are_those_of_the_model_with_normalisation() -> None:
    with torch.device("meta"):
        model = network(18)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == 11.17
    assert not [name for name in model.state_dict() if name.startswith("normalise")]


def test_the_model_normalises() -> None:
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = network(18, width=4).get_submodule("normalise")(images)
    means, deviations = (torch.tensor(v).view(3, 1, 1) for v in (MEANS, DEVIATIONS))
    torch.testing.assert_close(found, (images / 255 - means) / deviations)


# ---- augmentation


def slow_crop_and_flip(images: torch.Tensor, draws: Draws) -> torch.Tensor:
    """One image after the other."""
    offsets, mirrored = draws.integers(0, 9, 2), draws.coin()
    moved = []
    for image, (top, left), flip in zip(images, offsets, mirrored, strict=True):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = image
        cut = padded[:, top : top + 32, left : left + 32]
        moved.append(cut.flip(2) if flip else cut)
    return torch.stack(moved)


def draws(examples: Sequence[int]) -> Draws:
    return Draws(seed=3, epoch=1, examples=np.array(examples))


def test_crop_and_flip() -> None:
    numbers = range(200)
    images = torch.randint(0, 256, (200, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(200)
    moved, kept_labels = crop_and_flip((images, labels), draws(numbers))
    assert torch.equal(moved, slow_crop_and_flip(images, draws(numbers)))
    assert moved.dtype == torch.uint8
    assert torch.equal(kept_labels, labels)
    assert len({image.numpy().tobytes() for image in moved}) == 200


def test_an_image_moves_the_same_way_in_any_company() -> None:
    images = torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8)
    together, _ = crop_and_flip((images, images), draws(range(10)))
    some, _ = crop_and_flip((images[[7, 2]], images[[7, 2]]), draws([7, 2]))
    assert torch.equal(some, together[[7, 2]])
