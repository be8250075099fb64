"""A NaN on one worker only: others compute its grains, and the path is that of a healthy run. A NaN
that everybody finds is a run that has diverged."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import lines

from samepath.console import SilentWatcher
from samepath.engine.state.checkpoint import epochs_of, kept_weights
from samepath.engine.train import Request, train

LIMIT_SECONDS = 180
RECIPE = """
import os
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

FAIL, EVERYWHERE = "{FAIL}", {EVERYWHERE}
calls = 0

class Twist(torch.autograd.Function):
    @staticmethod
    def forward(context, loss):
        return loss.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * float("nan")

def loss(model, batch):
    global calls
    calls += model.training
    found = F.mse_loss(model(batch[0]), batch[1])
    first_time = model.training and calls == 4 and os.environ.get("RANK") == "{RANK}"
    always = EVERYWHERE and model.training and bool((batch[0] == 17.0 / 96).any())
    if FAIL == "loss" and (first_time or always):
        return found * float("inf")
    if FAIL == "gradient" and (first_time or always):
        return Twist.apply(found)
    return found

def recipe():
    data = (torch.arange(96.0).view(24, 4) / 96, torch.ones(24, 2))
    return Recipe(
        model=lambda: nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2)
        ),
        train=data,
        valid=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=12,
        grain_size=2,
        epochs=3,
    )
"""


class Notes(SilentWatcher):
    """A display that writes down what it is told (in a file: it lives in a worker)."""

    def __init__(self, file: Path, *_: object) -> None:
        self._file = file

    def note(self, text: str) -> None:
        with self._file.open("a") as file:
            file.write(text + "\n")


Found = tuple[str, str, int, list[dict[str, Any]], str]


def run(folder: Path, num_workers: int, **words: object) -> Found:
    """Status, digest, steps, metrics without times, and what was said."""
    folder.mkdir()
    text = RECIPE
    for name, value in {"FAIL": "", "RANK": "", "EVERYWHERE": False, **words}.items():
        text = text.replace(f"{{{name}}}", str(value))
    (folder / "mine.py").write_text(text)
    notes = folder / "notes"
    notes.touch()
    request = Request(
        recipe=str(folder / "mine.py"),
        num_workers=num_workers,
        out=folder / "run",
        display=partial(Notes, notes),
    )
    result, out = train(request)
    return result.status, result.digest, result.steps, lines(out), notes.read_text()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(tmp_path_factory.mktemp("nan") / "healthy", 1)


@pytest.mark.parametrize("fail", ["loss", "gradient"])
@pytest.mark.parametrize(("num_workers", "rank"), [(2, 1), (3, 0), (3, 2)])
def test_on_one_worker_only(
    fail: str, num_workers: int, rank: int, healthy: Found, tmp_path: Path
) -> None:
    found = run(tmp_path / "hurt", num_workers, FAIL=fail, RANK=rank)
    assert found[:-1] == healthy[:-1]
    whose = f"worker {rank}" if fail == "loss" else "some worker"  # a gradient is a sum
    assert found[-1].startswith(f"{whose} came to numbers that are not finite at step")
    assert found[-1].count("\n") == 1


@pytest.mark.parametrize("fail", ["loss", "gradient"])
def test_on_all_of_them(fail: str, tmp_path: Path) -> None:
    alone, several = (
        run(tmp_path / f"at-{count}", count, FAIL=fail, EVERYWHERE=True) for count in (1, 3)
    )
    assert alone == several
    assert alone[0] == "diverged"
    assert alone[-1] == ""


BEST = """
import torch
from torch import nn
from samepath import Recipe

evaluated = 0

def evaluate(model, batch):
    global evaluated
    evaluated += 1
    found = model(batch).square().mean()
    return {"loss": found * float("nan") if evaluated == 1 else found}

def recipe():
    return Recipe(
        model=lambda: nn.Linear(4, 2),
        train=torch.arange(48.0).view(12, 4) / 48,
        valid=torch.ones(2, 4),
        loss=lambda model, batch: model(batch).square().mean(),
        evaluate=evaluate,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=6,
        grain_size=2,
        epochs=3,
        keep_weights=(3,),
    )
"""


def test_a_first_validation_of_nan_is_not_the_best_for_ever(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(BEST)
    request = Request(recipe=str(tmp_path / "recipe.py"), num_workers=1, out=tmp_path / "run")
    result, _ = train(request)
    found = lines(tmp_path / "run")
    losses = [line["valid_loss"] for line in found if "valid_loss" in line]
    assert losses[0] == "nan"
    assert losses[2] == result.valid_loss < losses[1]
    best = kept_weights(tmp_path / "run" / "weights")["best"]
    assert epochs_of(best) == 3
