"""CIFAR-10: whole, in part, damaged or of another version. (The recipes are in tests/recipes.)"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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
from samepath.recipes.cifar10 import DEVIATIONS, MEANS

REAL = Path(__file__).parents[4] / "shared" / "data" / "cifar-10-batches-bin"
FEW = 20


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 20 images."""
    monkeypatch.setattr(cifar10, "NUM_IMAGES", FEW)


def records(batch: str) -> NDArray[np.uint8]:
    """20 images of noise with labels, other ones in every batch."""
    seed = int.from_bytes(hashlib.sha256(batch.encode()).digest()[:4])
    made = np.random.default_rng(seed).integers(0, 256, (FEW, RECORD), dtype=np.uint8)
    made[:, 0] %= 10
    return made


def write_batches(folder: Path, batches: Sequence[str] = (*BATCHES, TEST)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        records(batch).tofile(folder / batch)
    (folder / "batches.meta.txt").write_text("\n".join(CLASS_NAMES) + "\n\n")
    return folder


def is_right(
    found: tuple[cifar10.Examples, cifar10.Examples], batches: Sequence[str] = BATCHES
) -> None:
    train = np.concatenate([records(batch) for batch in batches])
    for (images, labels), expected in zip(found, (train, records(TEST)), strict=True):
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(images, expected[:, 1:].reshape(-1, 3, 32, 32))
        np.testing.assert_array_equal(labels, expected[:, 0])


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        load_cifar10(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.usefixtures("few")
def test_a_folder_or_the_one_above_it_also_beside_the_python_version(tmp_path: Path) -> None:
    is_right(load_cifar10(write_batches(tmp_path / "any name")))
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").touch()
    write_batches(tmp_path / "cifar-10-batches-bin")
    is_right(load_cifar10(tmp_path))


@pytest.mark.parametrize("given", [".", "cifar-10-batches-py", "cifar-10-batches-py/data_batch_2"])
def test_the_python_version_is_refused_unread(given: str, tmp_path: Path) -> None:
    """It is pickled: one line says what to get instead."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for batch in range(1, 6):
        (folder / f"data_batch_{batch}").write_bytes(pickle.dumps({b"data": b"", b"labels": []}))
    text = refusal(tmp_path / given)
    assert f"{folder} holds the python version of CIFAR-10" in text
    assert "samepath download cifar10" in text


@pytest.mark.usefixtures("few")
def test_missing_batches_are_named_and_a_part_must_be_asked_for(tmp_path: Path) -> None:
    folder = write_batches(tmp_path, (*BATCHES[:2], TEST))
    said = refusal(folder)
    assert "lacks data_batch_3.bin, data_batch_4.bin and data_batch_5.bin" in said
    assert "samepath download cifar10" in said
    last = said.split("--data ")[1]
    assert last == f"{folder}/data_batch_2.bin"
    is_right(load_cifar10(Path(last)), BATCHES[:2])
    is_right(load_cifar10(folder / "data_batch_1.bin"), BATCHES[:1])


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("batches", "given", "lacking"),
    [
        (("data_batch_2.bin", TEST), "data_batch_2.bin", "data_batch_1.bin"),  # a hole
        (BATCHES, ".", "test_batch.bin"),
    ],
)
def test_no_part_is_offered_where_it_cannot_be_used(
    batches: Sequence[str], given: str, lacking: str, tmp_path: Path
) -> None:
    said = refusal(write_batches(tmp_path, batches) / given)
    assert f"lacks {lacking}; get" in said
    assert "--data" not in said


def test_what_is_no_cifar10(tmp_path: Path) -> None:
    assert "holds no CIFAR-10" in refusal(tmp_path)
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    assert "unpack it" in refusal(tmp_path / "cifar-10-binary.tar.gz")


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
    if place != "cache":
        monkeypatch.setenv("SAMEPATH_DATA", str(nowhere / "said"))
    write_batches(nowhere / place / "cifar-10-batches-bin")
    is_right(load_cifar10(find_cifar10()))


@pytest.mark.usefixtures("few")
def test_an_incomplete_one_is_passed_over_for_a_complete_one(nowhere: Path) -> None:
    with pytest.raises(UserError, match="samepath download cifar10") as refused:
        find_recipe("cifar10")
    assert "\n" not in str(refused.value)
    write_batches(nowhere / "shared" / "data" / "cifar-10-batches-bin", (*BATCHES[:1], TEST))
    with pytest.raises(UserError, match=r"lacks data_batch_2\.bin"):
        find_cifar10()
    whole = write_batches(nowhere / "cache" / "cifar-10-batches-bin")
    assert find_cifar10().samefile(whole)


# ---- damaged


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("change", [-1, -RECORD, 1, RECORD])
def test_a_batch_of_another_size(change: int, tmp_path: Path) -> None:
    file = write_batches(tmp_path) / "data_batch_4.bin"
    size = FEW * RECORD + change
    file.write_bytes(file.read_bytes()[:size].ljust(size, b"\0"))
    assert f"data_batch_4.bin ends after {size:,} bytes" in refusal(tmp_path)


@pytest.mark.usefixtures("few")
def test_other_labels_and_other_classes(tmp_path: Path) -> None:
    file = write_batches(tmp_path) / TEST
    content = bytearray(file.read_bytes())
    content[7 * RECORD] = 10
    file.write_bytes(content)
    assert f"test_batch.bin: byte {7 * RECORD:,}, the label of image 7, is 10" in refusal(tmp_path)
    (tmp_path / "batches.meta.txt").write_text("apple\naquarium_fish\n")
    assert "names other classes" in refusal(tmp_path)


@pytest.mark.skipif(not REAL.exists(), reason=f"CIFAR-10 is not in {REAL}")
def test_the_real_thing() -> None:
    (images, labels), (test_images, test_labels) = load_cifar10(REAL / "data_batch_2.bin")
    assert images.shape == (2 * NUM_IMAGES, 3, 32, 32)
    assert test_images.shape == (NUM_IMAGES, 3, 32, 32)
    assert np.bincount(test_labels).tolist() == [1000] * 10
    names = [CLASS_NAMES[label] for label in labels[:4]]
    assert names == ["frog", "truck", "truck", "deer"]  # as everybody's first look at it
    np.testing.assert_allclose(images.mean((0, 2, 3)) / 255, MEANS, atol=0.005)
    np.testing.assert_allclose(images.std((0, 2, 3)) / 255, DEVIATIONS, atol=0.005)
