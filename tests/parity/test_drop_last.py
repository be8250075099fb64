"""Runs that leave out the short last batch: the same path at every count, also resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samepath.engine.state.progress import RunResult
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError

TINY = Path(__file__).with_name("tiny_recipe.py").read_text()


def go(folder: Path, out: str, num_workers: int, **more: Any) -> RunResult:
    request = Request(
        recipe=str(folder / "recipe.py"), num_workers=num_workers, out=folder / out, **more
    )
    return train(request)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the tiny recipe: 44 examples in batches of 10, without the last 4."""
    (tmp_path / "recipe.py").write_text(TINY.replace("epochs=2,", "epochs=2, drop_last=True,"))
    return tmp_path


def test_the_same_at_every_count_and_resumed(folder: Path) -> None:
    alone = go(folder, "1", 1)
    assert alone.steps == 8
    lines = RunFolder(folder / "1").read_metrics()
    assert [line["step"] for line in lines if "valid_loss" in line] == [4, 8]
    for num_workers in (2, 3):
        assert go(folder, str(num_workers), num_workers).digest == alone.digest
    go(folder, "resumed", 2, steps=5)
    resumed = go(folder, "resumed", 1, resume=True, epochs=2)
    assert resumed.digest == alone.digest


def test_a_number_of_steps_is_reached_all_the_same(folder: Path) -> None:
    """Five epochs of four steps, where the recipe has two."""
    assert go(folder, "run", 1, steps=18).steps == 18


def test_resume_compares_it(folder: Path) -> None:
    go(folder, "run", 1, steps=1)
    run = RunFolder(folder / "run")
    content = run.read()
    content["config"]["drop_last"] = False
    run._write_json(content)
    with pytest.raises(UserError, match=r"drop_last \(was False, now True\)"):
        go(folder, "run", 1, resume=True)
