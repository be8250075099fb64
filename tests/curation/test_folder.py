"""A curation folder that is read back: damage ends in one line that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curation_folders import make_curation_folder
from safetensors.numpy import load_file, save_file

from samepath.curation.folder import CurationFolder
from samepath.errors import UserError

Damage = Callable[[Path], object]


NOISE = {"rate": 0.1, "rate_low": 0.0, "rate_high": 0.2, "judge": "j", "confusions": []}


def about(**changes: object) -> Damage:
    def change(folder: Path) -> None:
        found = json.loads((folder / "curation.json").read_text())
        (folder / "curation.json").write_text(json.dumps({**found, **changes}))

    return change


def arrays(name: str, **changes: Any) -> Damage:
    def change(folder: Path) -> None:
        found = {**load_file(folder / f"{name}.safetensors"), **changes}
        kept = {each: array for each, array in found.items() if array is not None}
        save_file(kept, folder / f"{name}.safetensors")

    return change


def cut(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-50])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "curation.json").write_text("{"), "curation.json cannot be used"),
        (lambda folder: (folder / "curation.json").write_text("[]"), "it is no JSON object"),
        (about(format=2), "format is not 1"),
        (about(num_examples="many"), "num_examples"),
        (about(num_examples=121), r"shape (120, 2); (121, 2) is due"),
        (about(class_names=[]), "class_names"),
        (about(class_names=["one"]), "labels that have no class name"),
        (about(classes=[1]), "classes is wrong"),
        (about(label_noise=[]), "label_noise is wrong"),
        (about(label_noise={"rate": "0.1", "confusions": []}), "label_noise is wrong"),
        (about(label_noise=NOISE | {"confusions": [{"right": "cat"}]}), "label_noise is wrong"),
        (
            lambda folder: (folder / "map.safetensors").unlink(),
            "cannot be used: it is missing",
        ),
        (cut("map.safetensors"), "map.safetensors cannot be used"),
        (cut("features.safetensors"), "features.safetensors cannot be used"),
        (cut("images.safetensors"), "images.safetensors cannot be used"),
        (arrays("map", reduced=None), "no 'reduced'"),
        (arrays("map", map=np.full((120, 2), np.nan, "f4")), "NaN"),
        (arrays("map", map=np.zeros((120, 3), "f4")), "(120, 2) is due"),
        (arrays("features", losses=np.zeros((120, 2), "f4")), "'losses' holds float32 of shape"),
        (arrays("features", probabilities=np.zeros((120, 0), "f4")), "(120, C) is due"),
        (arrays("images", images=np.zeros((7, 4, 4), "u1")), "(7, 4, 4)"),
        (arrays("images", images=np.zeros((120, 4, 4), "f4")), "U8"),
    ],
)
def test_damaged_folders(tmp_path: Path, damage: Damage, words: str) -> None:
    folder = make_curation_folder(tmp_path / "curated", 120)
    assert len(CurationFolder(folder).read()) == 120
    damage(folder)
    with pytest.raises(UserError) as caught:
        CurationFolder(folder).read()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("run `samepath curate` again")
