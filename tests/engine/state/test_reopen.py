"""The Python files that a run's folder names: compared before any of them is executed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from samepath.cli import main
from samepath.curation.weights import load_from
from samepath.engine.elastic.machine import MachineOffer
from samepath.engine.run.request import Request
from samepath.engine.state.reopen import look_at, reopen
from samepath.engine.train import join, train
from samepath.errors import UserError
from samepath.insight.curvature.curvature import CurvatureRequest, measure_curvature
from samepath.recipe import find_recipe
from samepath.recipes.nodules.generation import GenerateRequest, generate
from samepath.report.show import show_run

TINY = Path(__file__).parents[2] / "parity" / "tiny_recipe.py"
DRAWS = """
from dataclasses import replace
import tiny_recipe

def recipe():
    return replace(tiny_recipe.recipe(), show=lambda run, folder: [])
"""
STRATEGY = """
from samepath import Choice

def strategy(k, moment):
    return Choice()
"""


def trained(folder: Path, recipe: str, **asked: Any) -> Path:
    """A short run in folder/run, of a recipe that is named from there."""
    out = folder / "run"
    train(Request(recipe=recipe, num_workers=1, steps=2, **asked, out=out))
    return out


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe (whose pictures are its own) and a strategy, where a person works."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(TINY, folder)
    (folder / "draws.py").write_text(DRAWS)
    (folder / "same.py").write_text(STRATEGY)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def change(run: Path, **changes: Any) -> None:
    """Write other things into run.json."""
    file = run / "run.json"
    record = json.loads(file.read_text())
    for name, value in changes.items():
        if isinstance(value, dict):
            record[name] |= value
        else:
            record[name] = value
    file.write_text(json.dumps(record))


def hostile(folder: Path) -> tuple[Path, Path]:
    """A file, and what it leaves where it is executed."""
    mark = folder / "executed"
    file = folder / "hostile.py"
    file.write_text(f"open({str(mark)!r}, 'w').close()\n{DRAWS}")
    return file, mark


def under_way(run: Path) -> None:
    """As if it had been started with a range and were being trained."""
    start = {"command": [], "versions": {"torch": torch.__version__}, "crew": [1, 2]}
    change(run, status="running", starts=[start])


OPENERS: dict[str, Callable[[Path], Any]] = {
    "show": show_run,
    "generate": lambda run: generate(GenerateRequest(run=run, out=run.parent / "new.npz", count=1)),
    "curvature": lambda run: measure_curvature(CurvatureRequest(runs=(run,))),
    "join": lambda run: join(run, MachineOffer(workers=1)),
    "python": reopen,
}


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("where", ["config", "code"])
def test_another_recipe_is_refused_before_it_is_executed(
    name: str, where: str, home: Path, tmp_path: Path
) -> None:
    run = trained(tmp_path, "draws.py")
    file, mark = hostile(tmp_path)
    (home / "draws.py").rename(home / "draws.bak")
    change(run, **{where: {"recipe": str(file)}})
    under_way(run)
    with pytest.raises(UserError, match=r"has changed since the run .* began; put it back") as said:
        OPENERS[name](run)
    assert (str(file) if where == "config" else "draws.py") in str(said.value)
    assert not mark.exists()


def test_a_curation_takes_weights_and_executes_nothing(home: Path, tmp_path: Path) -> None:
    run = trained(tmp_path, "draws.py")
    file, mark = hostile(tmp_path)
    change(run, code={"recipe": str(file)}, config={"recipe": str(file)})
    found = find_recipe("draws.py")
    assert "after step 2" in load_from(run, found, found.model())
    assert not mark.exists()


def test_the_hostile_file_would_have_left_a_mark(home: Path, tmp_path: Path) -> None:
    file, mark = hostile(tmp_path)
    find_recipe(str(file))
    assert mark.exists()


@pytest.mark.parametrize("where", ["config", "code"])
def test_another_strategy_is_refused_before_it_is_executed(
    where: str, home: Path, tmp_path: Path
) -> None:
    run = trained(tmp_path, "draws.py", strategy="same.py", virtual_workers=2)
    file, mark = hostile(tmp_path)
    (home / "same.py").unlink()
    change(run, **{where: {"strategy": str(file)}})
    under_way(run)
    with pytest.raises(UserError, match=r"the strategy .* has changed since the run"):
        join(run, MachineOffer(workers=1))
    with pytest.raises(UserError, match=r"the strategy .* has changed since the run"):
        train(Request(recipe="draws.py", num_workers=1, out=run, resume=True))
    assert not mark.exists()


def test_a_strategy_that_changes_between_two_looks_is_not_executed(
    home: Path, tmp_path: Path
) -> None:
    from samepath.strategies import find_strategy

    file, mark = hostile(tmp_path)
    with pytest.raises(UserError, match=r"hostile\.py has changed since the run began"):
        find_strategy(str(file), find_strategy("same.py").identity)
    assert not mark.exists()


def test_curves_are_drawn_without_code(home: Path, tmp_path: Path) -> None:
    """The recipe has no pictures of its own: it need not even be there."""
    run = trained(tmp_path, "tiny_recipe.py")
    (home / "tiny_recipe.py").unlink()
    page = show_run(run)
    assert page.is_file()
    assert not look_at(run).draws
    for command in (["digest", str(run)], ["tensorboard", str(run)]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    change(run, code={"draws": None})  # of an older samepath, which did not say so
    with pytest.raises(UserError, match=r"the recipe tiny_recipe\.py of the run .* is not there"):
        show_run(run)


def test_a_run_is_opened_from_another_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, "draws.py", strategy="same.py", virtual_workers=2)
    code = json.loads((run / "run.json").read_text())["code"]
    assert code == {
        "recipe": f"{home}/draws.py", "strategy": f"{home}/same.py", "draws": True
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert reopen(run).recipe.batch_size == 10
    more = Request(recipe="home/draws.py", num_workers=1, steps=4, out=run, resume=True)
    assert train(more)[0].steps == 4, "its strategy was found too"
    # the folder was copied to another machine: found where its path leads from here
    home.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    change(run, config={"recipe": "draws.py"})
    assert reopen(run).recipe.batch_size == 10
    change(run, config={"recipe": "digits"})
    with pytest.raises(UserError, match="the recipe digits has changed since"):
        reopen(run)
