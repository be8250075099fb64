"""`--keep` and CIFAR-10 with real workers: the same bits at 1, 2 and 3, and as if cut by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from samepath.data.formats.cifar10 import NUM_IMAGES, RECORD
from samepath.data.keep_list import KeepList, read_keep_list, write_keep_list
from samepath.data.sources import labels_of
from samepath.engine.state.progress import RunResult
from samepath.engine.train import Request, train
from samepath.engine.verify.verify import VerifyRequest, verify
from samepath.recipe import find_recipe

TINY = Path(__file__).with_name("tiny_recipe.py")

DATASET = """
import dataclasses
import torch
from torch.utils.data import Dataset

plain = recipe

class Items(Dataset):
    def __init__(self, tensors):
        self.tensors = tensors
    def __len__(self):
        return len(self.tensors[0])
    def __getitem__(self, index):
        return self.tensors[0][index] + 0.01 * torch.rand(8), self.tensors[1][index]

def recipe():
    made = plain()
    return dataclasses.replace(made, train=Items(made.train))
"""
BY_HAND = """
import dataclasses

whole = recipe

def recipe():
    made = whole()
    rows = [n for n in range(44) if n % 3 != 1 or n > 34]
    tensors = made.train.tensors if hasattr(made.train, "tensors") else made.train
    cut = tuple(tensor[rows] for tensor in tensors)
    return dataclasses.replace(made, train=Items(cut) if hasattr(made.train, "tensors") else cut)
"""
FEW_TO_JUDGE = """
from dataclasses import replace
from samepath.recipes.cifar10 import cifar10_small

def recipe(data):
    made = cifar10_small(data)
    return replace(made, valid=tuple(tensor[:20] for tensor in made.valid))
"""


@pytest.fixture
def keep(tmp_path: Path) -> str:
    """32 of the tiny recipe's 44 examples: four batches, the last of two."""
    numbers = np.arange(44)
    recipe = find_recipe(str(TINY))
    kept = (numbers % 3 != 1) | (numbers > 34)
    listed = KeepList(
        labels=labels_of(recipe.train, {}),
        positions=np.zeros((44, 2), np.float32),
        clusters=np.zeros(44, np.int64),
        kept=kept,
        reasons=["" if row else "noise" for row in kept],
    )
    write_keep_list(tmp_path / "keep.csv", listed)
    return str(tmp_path / "keep.csv")


def trained(recipe: Path, out: Path, num_workers: int, keep: str | None = None) -> RunResult:
    return train(Request(recipe=str(recipe), keep=keep, num_workers=num_workers, out=out))[0]


@pytest.mark.parametrize("more", ["", DATASET], ids=["tensors", "dataset"])
def test_same_bits_at_every_worker_count_and_as_cut_by_hand(
    more: str, keep: str, tmp_path: Path
) -> None:
    recipe, by_hand = tmp_path / "whole.py", tmp_path / "by_hand.py"
    recipe.write_text(TINY.read_text() + more)
    by_hand.write_text(TINY.read_text() + more + BY_HAND)
    expected = trained(by_hand, tmp_path / "expected", 1)
    assert expected.steps == 8
    for num_workers in (1, 2, 3):
        found = trained(recipe, tmp_path / f"{num_workers}", num_workers, keep)
        assert found.num_workers == num_workers
        assert found.digest == expected.digest
        assert found.metrics == expected.metrics
    assert trained(recipe, tmp_path / "all", 1).digest != expected.digest


RELABELLED = """
first = recipe

def recipe():
    made = first()
    labels = (made.train.tensors if hasattr(made.train, "tensors") else made.train)[1]
    labels[[0, 12, 40]] = (labels[[0, 12, 40]] + 1) % 4
    return made
"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("more", "counts"), [("", (1, 2, 3, 5)), (DATASET, (1, 3))], ids=["tensors", "dataset"]
)
def test_new_labels_are_as_if_written_by_hand(
    more: str, counts: tuple[int, ...], keep: str, tmp_path: Path
) -> None:
    recipe, by_hand = tmp_path / "whole.py", tmp_path / "by_hand.py"
    recipe.write_text(TINY.read_text() + more)
    by_hand.write_text(TINY.read_text() + more + RELABELLED + BY_HAND)
    plain, path = read_keep_list(Path(keep)), tmp_path / "relabel.csv"
    assert plain.labels is not None
    relabelled = np.isin(np.arange(44), (0, 12, 40))
    suggested = (plain.labels + 1) % 4
    write_keep_list(path, replace(plain, relabelled=relabelled, suggested=suggested))
    expected = trained(by_hand, tmp_path / "expected", 1)
    verdict = verify(VerifyRequest(recipe=str(recipe), keep=str(path), counts=counts, steps=8))
    assert verdict.equal
    assert {run.digest for run in verdict.runs} == {expected.digest}
    assert trained(recipe, tmp_path / "plain", 1, keep).digest != expected.digest


def test_stopped_and_resumed_on_more_workers(keep: str, tmp_path: Path) -> None:
    straight = trained(TINY, tmp_path / "straight", 1, keep)
    out = tmp_path / "stopped"
    train(Request(recipe=str(TINY), keep=keep, num_workers=1, steps=3, out=out))
    rest = Request(
        recipe=str(TINY), num_workers=3, epochs=2, out=out, resume=True
    )  # the keep-list is the run's
    assert train(rest)[0].digest == straight.digest


@pytest.mark.usefixtures("forked")
def test_verify_looks_at_what_is_kept(keep: str, tmp_path: Path) -> None:
    verdict = verify(VerifyRequest(recipe=str(TINY), keep=keep, counts=(1, 2, 3), steps=8))
    assert verdict.equal
    assert verdict.options.num_examples == 32
    assert verdict.runs[0].digest == trained(TINY, tmp_path / "run", 1, keep).digest


@pytest.mark.usefixtures("forked")
def test_cifar10_small_at_every_worker_count(tmp_path: Path) -> None:
    """With crops and flips, on files of noise in the binary layout."""
    noise = np.random.default_rng(0)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = noise.integers(0, 256, (NUM_IMAGES, RECORD), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(tmp_path / name)
    recipe = tmp_path / "few.py"
    recipe.write_text(FEW_TO_JUDGE)
    verdict = verify(
        VerifyRequest(
            recipe=str(recipe),
            data=str(tmp_path / "data_batch_1.bin"),
            counts=(1, 2, 3),
            steps=2,
            batch_size=24,
            grain_size=4,
        )
    )
    assert verdict.equal
    assert verdict.options.num_examples == NUM_IMAGES
    assert [run.steps for run in verdict.runs] == [2, 2, 2, 2], "one of them was continued"
