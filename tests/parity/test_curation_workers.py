"""Features on real workers: the same bits at 1, 2 and 3, and after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from samepath.curation import features, folder
from samepath.curation.features import Extraction, Extractor, extract, plan_extraction
from samepath.curation.folder import checksum
from samepath.recipe import find_recipe

RECIPE = str(Path(__file__).parents[1] / "helpers" / "curation_recipe.py")

NO_CLASSIFIER = """
import torch
from torch import nn
from torch.utils.data import Dataset
from samepath import Recipe

class Pairs(Dataset):
    def __len__(self):
        return 70
    def __getitem__(self, index):
        return {"x": torch.randn(6) + index, "y": torch.tensor([float(index)])}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 1)
    def forward(self, *, x):
        return self.last(self.drop(torch.tanh(self.first(x))))

def recipe():
    return Recipe(
        model=Net, train=Pairs(), loss=lambda m, b: (m(x=b["x"]) - b["y"]).square().mean(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.01), batch_size=10, grain_size=3, epochs=1)
"""


def planned(file: str, layer: str | None = None) -> tuple[Extraction, nn.Module]:
    recipe, extractor = find_recipe(file), Extractor()
    model = extractor.model(recipe)
    return plan_extraction(recipe, model, extractor, name=file, layer=layer), model


def test_the_same_bits_at_every_worker_count(tmp_path: Path) -> None:
    extraction, model = planned(RECIPE)
    assert (extraction.layer, extraction.head, extraction.num_blocks) == ("3:input", "3", 7)
    found = {n: extract(extraction, model, tmp_path / str(n), num_workers=n) for n in (1, 2, 3)}
    assert set(found[1]) == {"features", "losses", "probabilities"}
    assert len({checksum(arrays) for arrays in found.values()}) == 1
    recipe = find_recipe(RECIPE)
    images, labels = recipe.train  # type: ignore[misc]
    with torch.no_grad():
        expected = model(images).softmax(1).numpy()
    assert np.allclose(found[1]["probabilities"], expected, atol=1e-5)
    loss = recipe.loss(model, (images, labels)).item()
    assert np.isclose(found[1]["losses"].mean(), loss, rtol=1e-4)


def test_any_model_any_data_and_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keyword arguments, a data set of dictionaries with random items, no labels."""
    file = tmp_path / "mine.py"
    file.write_text(NO_CLASSIFIER)
    extraction, model = planned(str(file), layer="first")
    assert (extraction.head, extraction.num_blocks) == (None, 6)
    whole = extract(extraction, model, tmp_path / "whole", num_workers=2)
    assert set(whole) == {"features", "losses"}
    assert whole["features"].shape == (70, 5)

    write = folder.write_arrays
    written: list[Path] = []

    def write_two(path: Path, arrays: Any) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        write(path, arrays)

    monkeypatch.setattr(features, "write_arrays", write_two)
    with pytest.raises(KeyboardInterrupt):
        extract(extraction, model, tmp_path / "parts", num_workers=1)
    monkeypatch.undo()
    written[0].write_bytes(b"cut off")  # and one was damaged
    stamp = written[1].stat().st_mtime_ns
    left = [path.name for path in (tmp_path / "parts").glob("block-*.safetensors")]
    assert sorted(left) == [path.name for path in written]
    kept: list[int] = []

    def read(path: Path) -> Any:
        kept.append(path.stat().st_mtime_ns)
        return folder.read_arrays(path)

    monkeypatch.setattr(features, "read_arrays", read)
    again = extract(extraction, model, tmp_path / "parts", num_workers=2)
    assert stamp in kept, "the good block was not computed again"
    assert checksum(again) == checksum(whole)
