"""`samepath verify` with real workers: what is the same passes, what is broken is located.

Each case is a recipe with one thing wrong. Runs share one server of processes, so they are quick.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samepath.cli import main
from samepath.engine.verify.verify import Difference, Verdict, VerifyRequest, verify
from samepath.errors import UserError

BROKEN = Path(__file__).parents[2] / "examples" / "broken_recipe.py"

HEAD = """
import os, random, time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from samepath import Recipe

made = torch.Generator().manual_seed(0)
inputs, labels = torch.randn(40, 6, generator=made), torch.randint(0, 3, (40,), generator=made)
outside = lambda: 1e-3 * int.from_bytes(os.urandom(2))

class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 5), middle, nn.Linear(5, 3)
    def forward(self, inputs):
        return self.last(self.middle(self.first(inputs)))

def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])

def make(middle=nn.Tanh, **changes):
    return Recipe(**(dict(
        model=lambda: Net(middle()), train=(inputs, labels), loss=loss, epochs=3,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=12, grain_size=2) | changes))
"""

DATASET_DRAWS = """
class Items(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return inputs[i] + outside(), labels[i]
recipe = lambda: make(train=Items())
"""
DATASET_KEEPS = """
class Items(Dataset):
    def __init__(self): self.generator = np.random.default_rng(3)
    def __len__(self): return 40
    def __getitem__(self, i): return inputs[i] + self.generator.normal(), labels[i].clone()
recipe = lambda: make(train=Items())
"""
DATA_UNSEEDED = """
recipe = lambda: make(train=(torch.from_numpy(np.random.rand(40, 6)).float(), labels))
"""
MODULE_KEEPS = """
class Counts(nn.Module):
    calls = 0
    def forward(self, inputs):
        self.calls += 1
        return inputs * (1 + 1e-3 * self.calls)
recipe = lambda: make(Counts)
"""
LATE = """
class Late(nn.Module):
    calls = 0
    def forward(self, inputs):
        self.calls += 1
        return inputs + (outside() if self.calls > 9 else 0.0)
recipe = lambda: make(Late)
"""
WEIGHTS_DRAW = """
def model():
    torch.manual_seed(int.from_bytes(os.urandom(4)))
    return Net(nn.Tanh())
recipe = lambda: make(model=model)
"""
AUGMENT_DRAWS = """
augment = lambda batch, draws: (batch[0] + outside(), batch[1])
recipe = lambda: make(augment=augment)
"""
AUGMENT_WITH_TORCH = """
augment = lambda batch, draws: (batch[0] + torch.randn_like(batch[0]), batch[1])
recipe = lambda: make(augment=augment)
"""
BACKWARD_DRAWS = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs): return inputs.clone()
    @staticmethod
    def backward(ctx, gradient): return gradient * (1 + outside())
class Scaled(nn.Module):
    def forward(self, inputs): return Scale.apply(inputs)
recipe = lambda: make(Scaled)
"""
OPTIMIZER_DRAWS = """
class Restless(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            parameter += outside()
recipe = lambda: make(optimizer=lambda parameters: Restless(parameters, lr=0.01))
"""
RATE_READS_WORKERS = """
rate = lambda: 0.01 * int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else 0.01
recipe = lambda: make(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate()))
"""
ONLY_VALIDATION = """
class Restless(nn.Module):
    def forward(self, inputs): return inputs if self.training else inputs + outside()
recipe = lambda: make(Restless, valid=(inputs, labels))
"""


def verdict_of(
    code: str, folder: Path, counts: tuple[int, ...] = (1, 2), steps: int = 5
) -> Verdict:
    path = folder / "recipe.py"
    path.write_text(HEAD + code)
    return verify(VerifyRequest(recipe=str(path), counts=counts, steps=steps))


def difference_of(code: str, folder: Path, counts: tuple[int, ...] = (1, 2)) -> Difference:
    found = verdict_of(code, folder, counts).difference
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "where", "step", "repeatable"),
    [
        (DATASET_DRAWS, "data", 1, False),
        (DATASET_KEEPS, "data", 1, True),
        (WEIGHTS_DRAW, "initial weights", 0, False),
        (AUGMENT_DRAWS, "augment", 1, False),
        (OPTIMIZER_DRAWS, "update", 1, False),
    ],
    ids=["dataset draws", "dataset keeps", "weights", "augment", "optimizer"],
)
def test_stages_are_told_apart(
    code: str, where: str, step: int, repeatable: bool, tmp_path: Path
) -> None:
    found = difference_of(code, tmp_path)
    assert found.cause.where == where
    assert (found.step, found.repeatable, found.module) == (step, repeatable, None)
    assert found.name == "model/first.weight"
    assert found.values is not None
    assert 0 < found.values.num_different <= found.values.num_values == 30
    assert found.values.max_ulps


def test_a_module_that_keeps_state_is_located(tmp_path: Path) -> None:
    found = difference_of(MODULE_KEEPS, tmp_path)
    assert (found.step, found.grain, found.repeatable) == (1, 3, True)
    assert (found.module, found.module_kind) == ("middle", "Counts")
    assert "keeps" in found.cause.likely
    assert "buffer" in found.cause.remedy


def test_a_backward_pass_is_located(tmp_path: Path) -> None:
    found = difference_of(BACKWARD_DRAWS, tmp_path)
    assert (found.cause.where, found.module, found.module_kind) == ("gradient", "middle", "Scaled")


def test_a_later_step_and_a_later_count_are_located(tmp_path: Path) -> None:
    """The tenth call on one worker of two is in step 4; of three, it is in a later step."""
    verdict = verdict_of(LATE, tmp_path, (3, 2, 3), steps=4)
    assert [run.parts_at for run in verdict.runs[:3]] == [None, 4, None]
    assert verdict.runs[0].digest == verdict.runs[2].digest != verdict.runs[1].digest
    found = verdict.difference
    assert found is not None
    assert (found.num_workers, found.step, found.module) == ((3, 2), 4, "middle")


def test_settings_that_read_the_worker_count_are_found(tmp_path: Path) -> None:
    found = difference_of(RATE_READS_WORKERS, tmp_path)
    assert (found.cause.where, found.step, found.name) == ("settings", 0, "groups")
    assert "WORLD_SIZE" in found.cause.likely


def test_workers_of_one_run_are_compared_too(tmp_path: Path) -> None:
    found = difference_of(OPTIMIZER_DRAWS, tmp_path, (2, 1))
    assert (found.num_workers, found.worker, found.cause.where) == ((2, 2), 1, "update")


def test_metrics_are_compared_too(tmp_path: Path) -> None:
    verdict = verdict_of(ONLY_VALIDATION, tmp_path)
    assert len({run.digest for run in verdict.runs}) == 1
    found = verdict.difference
    assert found is not None
    assert (found.step, found.name, found.module) == (4, "valid loss", "middle")


def test_the_broken_example_is_caught_and_located(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["verify", str(BROKEN), "-n", "1,2,3", "--steps", "3"])
    assert end.value.code == 1
    words = " ".join(capfd.readouterr().out.split())
    assert "1 worker and 2 workers part at step 1." in words
    assert "first tensor model/first.weight: " in words
    assert "of 36 values differ, by up to " in words
    assert "units in the last place" in words
    assert "first module noise (ProcessNoise)" in words
    assert "for grain 0 its output differs though its input is the same" in words
    assert "process id" in words
    assert "remedy draw from torch's" in words


def test_what_is_the_same_passes_and_leaves_nothing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as end:
        main(["verify", "digits", "-n", "1,2,3", "--steps", "7", "--seed", "3", "--json"])
    assert end.value.code == 0
    found = json.loads(capfd.readouterr().out)
    assert found["equal"]
    assert found["difference"] is None
    routes = [[leg["num_workers"] for leg in run["route"]] for run in found["runs"]]
    assert routes == [[1], [2], [3], [2, 1, 3]], "alone, launched, and saved and continued"
    assert {run["steps"] for run in found["runs"]} == {7}
    assert found["trained"]["resumed_at"] == [3, 6]
    assert len({run["digest"] for run in found["runs"]}) == 1
    assert not list(tmp_path.glob("samepath-*"))


@pytest.mark.parametrize(
    ("counts", "changes", "message"),
    [
        ((1, 9), {}, "9 workers, but a batch of 128 in grains of 16 has only 8 grains"),
        ((2,), {}, "try -n 1,2"),
        (None, {"grain_size": 128}, "add --grain 64"),
        ((1, 2), {"grain_size": 129}, "grain of 129"),
        ((1, 2), {"steps": 0}, "at least one step"),
    ],
)
def test_bad_input_is_refused_before_training(
    counts: tuple[int, ...] | None, changes: dict[str, int], message: str
) -> None:
    told: list[str] = []
    asked: dict[str, Any] = {"steps": 2, "batch_size": 128, "grain_size": 16, **changes}
    with pytest.raises(UserError, match=message):
        verify(VerifyRequest(recipe="digits", counts=counts, **asked, tell=told.append))
    assert not told


def test_under_a_launcher_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError, match="without torchrun"):
        verify(VerifyRequest(recipe="digits", counts=(1, 2)))


@pytest.mark.parametrize("code", [DATA_UNSEEDED, AUGMENT_WITH_TORCH])
def test_global_generators_are_keyed_in_recipes_and_augmentation(code: str, tmp_path: Path) -> None:
    assert verdict_of(code, tmp_path).equal
