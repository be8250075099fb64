"""Workers that are killed between a recipe's hooks: what the hooks changed is in the step that is
kept in memory, and the run ends as the one that nothing happened to."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_runs import GOES_ON, RECIPE, elastic, lines, undisturbed

HOOKS = RECIPE.with_name("hooks_recipe.py")
KILLING = f"""
import os, signal, sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, {str(HOOKS.parent)!r})
import hooks_recipe


def after_step(run):
    mark = Path(__file__).with_name(f"killed-{{run.step}}")
    if run.step in STEPS and not run.is_first and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    hooks_recipe.after_step(run)


def recipe():
    return replace(hooks_recipe.recipe(), after_step=after_step)
"""


def test_killed_in_a_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the first epoch, at the step after something was unfrozen, at an epoch's end."""
    steps = (3, 6, 10)
    recipe = tmp_path / "killing_hooks.py"
    recipe.write_text(KILLING + f"\n\nSTEPS = {steps}\n")
    result = elastic(recipe, tmp_path / "run", 2, most=2)
    assert len(list(tmp_path.glob("killed-*"))) == len(steps)
    said = capsys.readouterr().err
    assert said.count(GOES_ON) == len(steps)
    assert "not 2:" not in said, "no step is lost"
    assert (result.digest, lines(tmp_path / "run")) == undisturbed(tmp_path, 3, HOOKS)
