"""What the models of a cross-validation say, read back from its folder; what is not it, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samepath.curation.held_out import is_folds, read_folds
from samepath.curation.request import CurateRequest, Subject, subject_of
from samepath.errors import UserError
from samepath.recipe import find_recipe

TINY = str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return subject_of(find_recipe(TINY))


def folds(folder: Path, subject: Subject, **changes: Any) -> Path:
    """Two repeats over the tiny recipe's 44 training examples and 16 others, in any order."""
    draw = np.random.default_rng(0)
    assert subject.labels is not None
    labels = np.append(subject.labels, np.zeros(16, np.int64))
    index = np.append(draw.permutation(60), draw.permutation(60))
    arrays = {
        "index": index,
        "repeat": np.repeat([1, 2], 60),
        "fold": index % 5 + 1,
        "label": labels[index],
        "output": draw.normal(size=(120, 4)).astype(np.float32),
    }
    np.savez(folder / "predictions.npz", **{**arrays, **changes})
    runs = [{"folder": "runs/fold-1", "weights": "newest"}]
    (folder / "folds.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
    return folder


def test_means_over_repeats_by_example(subject: Subject, tmp_path: Path) -> None:
    folder = folds(tmp_path, subject)
    assert is_folds(folder)
    assert not is_folds(tmp_path / "elsewhere")
    found = read_folds(folder, subject)
    assert found.run == folder / "runs" / "fold-1"
    with np.load(folder / "predictions.npz") as content:
        mine = content["output"][content["index"] == 7]
    powers = np.exp(mine.astype(np.float64))
    expected = (powers / powers.sum(1, keepdims=True)).mean(0)
    assert found.probabilities.shape == (44, 4)
    assert np.allclose(found.probabilities[7], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label": np.zeros(120, np.int64)}, "is of other labels"),
        ({"output": np.zeros((120, 3), np.float32)}, "not one row of scores for 4 classes"),
        ({"index": np.zeros(120, np.int64)}, "is not of the 44 labelled training examples"),
    ],
)
def test_another_cross_validation(
    changes: dict[str, Any], said: str, subject: Subject, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        read_folds(folds(tmp_path, subject, **changes), subject)
    assert "\n" not in str(refused.value)


def test_a_damaged_file(subject: Subject, tmp_path: Path) -> None:
    folds(tmp_path, subject)
    (tmp_path / "predictions.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"predictions\.npz cannot be read"):
        read_folds(tmp_path, subject)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"folds": 1}, "--folds 1: give at least 2"),
        ({"folds": 5, "rounds": 2}, "leave --rounds out"),
        ({"folds": 5, "keep": "keep.csv"}, "leave --keep out"),
        ({"folds": 5, "source": Path("run")}, "leave --from out"),
        ({"budget": 0.1, "precision": 0.9}, "exclude each other"),
        ({"budget": -1.0}, "--budget -1"),
        ({"precision": 1.5}, "--precision 1.5"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        CurateRequest(recipe=TINY, out=tmp_path, **asked)
