"""Weights from wherever they are kept."""

from __future__ import annotations

from pathlib import Path

import curation_recipe
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from samepath.curation.weights import load_from, rehearse
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.recipe import Recipe, find_recipe

RECIPE = curation_recipe.__file__


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("weights") / "run"
    train(Request(recipe=RECIPE, num_workers=1, steps=2, out=out))
    return out


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return find_recipe(RECIPE)


def taken(source: Path, recipe: Recipe) -> tuple[torch.Tensor, str]:
    model = recipe.model()
    words = load_from(source, recipe, model)
    return model[1].weight.detach(), words  # type: ignore[index]


def test_a_run_and_its_checkpoints(run: Path, recipe: Recipe) -> None:
    weight, words = taken(run, recipe)
    assert words == f"the network is that of the run {run} after step 2"
    (step,) = (run / "checkpoints").glob("step-*")
    for source in (step, step / "state.safetensors"):
        same, words = taken(source, recipe)
        assert torch.equal(same, weight)
        assert "that of the checkpoint" in words


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("plain.safetensors", ""),
        ("plain.pt", ""),
        ("lightning.ckpt", "(its 'state_dict', names without 'model.')"),
        ("parallel.safetensors", "(names without 'module.')"),
        ("moved/state.safetensors", "(names without 'model/')"),
    ],
)
def test_files(name: str, says: str, tmp_path: Path, recipe: Recipe, run: Path) -> None:
    torch.manual_seed(5)
    model = recipe.model()
    weights = model.state_dict()
    file = tmp_path / name
    if name.startswith("moved"):  # a checkpoint's file without what lies beside it
        weight, _ = taken(run, recipe)
        (state,) = run.glob("checkpoints/*/state.safetensors")
        file.parent.mkdir()
        file.write_bytes(state.read_bytes())
    else:
        weight = model[1].weight.detach()  # type: ignore[index]
    if name == "lightning.ckpt":
        inside = {f"model.{key}": value for key, value in weights.items()}
        torch.save({"epoch": 3, "optimizer": {"lr": 0.1}, "state_dict": inside}, file)
    elif file.suffix == ".pt":
        torch.save(weights, file)
    elif name.startswith("parallel"):
        save_file({f"module.{key}": value for key, value in weights.items()}, file)
    elif name.startswith("plain"):
        save_file(weights, file)
    found, words = taken(file, recipe)
    assert torch.equal(found, weight)
    assert words == f"the network's weights are those of {file} {says}".rstrip()


def test_what_does_not_fit_is_named(tmp_path: Path, recipe: Recipe) -> None:
    file = tmp_path / "a.pt"
    torch.save({"1.weight": torch.zeros(3)}, file)
    with pytest.raises(UserError, match=r"a\.pt: does not fit .*Missing key"):
        taken(file, recipe)
    torch.save(nn.Linear(2, 2), file)  # a pickled object
    with pytest.raises(UserError, match=r"a\.pt: cannot be read"):
        taken(file, recipe)
    torch.save([1, 2], file)
    with pytest.raises(UserError, match="it holds a list, not a state_dict"):
        taken(file, recipe)


class Grows(nn.Module):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Grows.made += 1
        self.layer = nn.Linear(Grows.made, 1)


def test_a_model_that_cannot_be_loaded_again_is_found_before_training() -> None:
    rehearse(nn.Linear(2, 2), nn.Linear(2, 2))
    last = nn.Conv2d(3, 4, 3)
    last.weight.data = last.weight.data.contiguous(memory_format=torch.channels_last)
    rehearse(last, nn.Conv2d(3, 4, 3))
    with pytest.raises(UserError, match=r"cannot be saved and loaded again .*size mismatch"):
        rehearse(Grows(), Grows())
