"""What a recipe computes before training does not depend on the machine's cores, nor on variables:
real commands, in the environment that a person has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMEPATH = Path(sys.executable).parent / "samepath"
LIMIT_SECONDS = 240.0
STANDARDISED = """
from functools import cache
import torch
from torch import nn
from samepath import Recipe

made = torch.Generator().manual_seed(0)
x = torch.randn(100_000, 8, generator=made) * 3 + 1

def standardised():
    return (x - x.mean()) / x.std()

def model():  # called by the launcher too, to check it
    layer = nn.Linear(8, 1)
    with torch.no_grad():
        layer.bias += shift()
    return layer

@cache
def shift():
    return x.mean()

def recipe():
    return Recipe(
        model=model, train=standardised()[:64], batch_size=16, grain_size=4, epochs=1,
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""


def clean(**more: str) -> dict[str, str]:
    """An environment without anybody's choice of threads."""
    return {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | more


def digest(recipe: Path, out: str, *options: str, **variables: str) -> str:
    command = [str(SAMEPATH), "train", str(recipe), "--json", "--steps", "2", "--out", out]
    ended = subprocess.run(
        [*command, *options],
        cwd=recipe.parent,
        env=clean(**variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return str(json.loads(ended.stdout)["digest"])


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose data another number of threads would make differently."""
    file = tmp_path_factory.mktemp("threads") / "recipe.py"
    file.write_text(STANDARDISED)
    code = (
        "import torch, recipe\n"
        "for threads in (1, 2):\n"
        "    torch.set_num_threads(threads)\n"
        "    print(recipe.standardised().sum().item(), recipe.x.mean().item())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=file.parent,
        env=clean(),
        capture_output=True,
        text=True,
        check=True,
    )
    one, two = ended.stdout.splitlines()
    assert one.split()[0] != two.split()[0], "else it shows nothing"
    assert one.split()[1] != two.split()[1], "else it shows nothing"
    return file


@pytest.fixture(scope="module")
def alone(recipe: Path) -> str:
    return digest(recipe, "alone", "-n", "1")


def test_what_a_recipe_computes_does_not_depend_on_cores_or_variables(
    recipe: Path, alone: str
) -> None:
    assert digest(recipe, "two", "-n", "2") == alone
    assert digest(recipe, "told", "-n", "1", OMP_NUM_THREADS="2") == alone
    assert digest(recipe, "two-told", "-n", "2", OMP_NUM_THREADS="2") == alone


def test_threads_that_were_asked_for_are_the_recipes_too(recipe: Path, alone: str) -> None:
    """And a resumed run goes on with the threads it had."""
    whole = digest(recipe, "whole", "-n", "1", "--threads", "2")
    assert whole != alone, "the recipe's data are other ones"
    assert digest(recipe, "two-of-two", "-n", "2", "--threads", "2") == whole
    digest(recipe, "stopped", "-n", "2", "--threads", "2", "--steps", "1")
    assert digest(recipe, "stopped", "-n", "1", "--resume") == whole


def test_torch_is_left_as_it_was(recipe: Path) -> None:
    """For a notebook that goes on."""
    code = (
        "import torch\n"
        "from samepath.engine.run.options import Overrides\n"
        "from samepath.engine.train import Request, train\n"
        "torch.set_num_threads(3)\n"
        f"train(Request(recipe={str(recipe)!r}, num_workers=1, steps=1))\n"
        "print(torch.get_num_threads())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=recipe.parent,
        env=clean(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["3"]
