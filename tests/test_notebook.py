"""`samepath.train` and `samepath.verify` are the commands, and show how far they are."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import samepath
from samepath import notebook

RECIPE = Path(__file__).with_name("helpers") / "linear_recipe.py"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return Path(shutil.copy(RECIPE, tmp_path / "mine.py"))


class Cell:
    """Stands for a notebook's cell."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, content: str) -> None:
        self.shown.append(content)


@pytest.mark.usefixtures("fork_server")
def test_progress_of_workers_is_shown_here(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell()
    display = SimpleNamespace(HTML=str, display=lambda *_, **__: cell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    monkeypatch.setattr(notebook, "DRAW_SECONDS", 0.0)
    runs = []
    for n in (1, 2):
        runs.append(samepath.train(recipe, num_workers=n, epochs=1, out=tmp_path / str(n)))
        assert any("mine.py" in shown and "<progress" in shown for shown in cell.shown), n
        assert "<progress" not in cell.shown[-1], "bars go when their run has ended"
        cell.shown.clear()
    assert runs[0].result.digest == runs[1].result.digest
    assert [run.result.num_workers for run in runs] == [1, 2]
    assert len([line for line in runs[1].metrics() if "train_loss" in line]) == 3


def test_verify(recipe: Path, forked: Any) -> None:
    verdict = samepath.verify(recipe, [1, 2], steps=2, progress=False)
    assert verdict.equal
    with pytest.raises(samepath.UserError, match=r"verify\(\) has no setting 'step'.*'steps'"):
        samepath.verify(recipe, step=2)
    assert {"train", "verify", "Recipe", "start"} <= set(dir(samepath))
