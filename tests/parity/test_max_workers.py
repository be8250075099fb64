"""The most workers, in place of a grain size: another word for the same path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samepath.engine.train import Request, train

TINY = (
    Path(__file__).with_name("tiny_recipe.py").read_text().replace("batch_size=10", "batch_size=12")
)


def digest(folder: Path, out: str, text: str, num_workers: int, **more: Any) -> str:
    path = folder / f"{out}.py"
    path.write_text(text)
    request = Request(recipe=str(path), num_workers=num_workers, out=folder / out, **more)
    return train(request)[0].digest


def test_four_workers_at_most_is_the_path_of_their_grain_size(tmp_path: Path) -> None:
    """Batches of 12, and of 8 at the end of an epoch, in grains of 3."""
    expected = digest(tmp_path, "by-grain", TINY, 1, grain_size=3)
    typed = digest(tmp_path, "typed", TINY, 1, max_workers=4)
    said = TINY.replace("grain_size=2", "max_workers=4")
    assert said != TINY
    in_recipe = digest(tmp_path, "in-recipe", said, 4)
    unlike = digest(tmp_path, "unlike", TINY, 1, max_workers=2)
    assert expected == typed == in_recipe != unlike
