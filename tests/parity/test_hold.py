"""A target that must be held: the run goes on to the last of so many evaluations, on its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samepath.engine.state.progress import Progress
from samepath.engine.train import Request, train

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
EPOCHS = 6


def run(out: Path, workers: int, **asked: Any) -> Any:
    request = Request(recipe=RECIPE, num_workers=workers, epochs=EPOCHS, out=out, **asked)
    return train(request)[0]


def lines(out: Path) -> list[dict[str, Any]]:
    """All that was logged, without times."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in line if name != "seconds"} for line in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A run to its last epoch, and its validation losses."""
    out = tmp_path_factory.mktemp("hold") / "whole"
    run(out, 1, target="none")
    return out, [line["valid_loss"] for line in lines(out) if "valid_loss" in line]


def first_held(losses: list[float], target: float, hold: int) -> int:
    """Epochs after which the last `hold` losses are within the target, by looking at each."""
    return next(
        end
        for end in range(hold, len(losses) + 1)
        if all(loss <= target for loss in losses[end - hold : end])
    )


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_run_goes_on_along_its_path(
    workers: int, whole: tuple[Path, list[float]], tmp_path: Path
) -> None:
    out, losses = whole
    target, hold = sorted(losses)[-2], 3
    end = first_held(losses, target, hold)
    assert first_held(losses, target, 1) < end < EPOCHS
    result = run(tmp_path / "held", workers, target=target, hold=hold)
    assert (result.status, result.epochs) == ("target", end)
    assert lines(tmp_path / "held") == [line for line in lines(out) if line["epoch"] < end]
    plain = run(tmp_path / "plain", workers, target="none", steps=result.steps)
    assert plain.digest == result.digest, "the target and how it is held are not in the path"


def test_a_run_that_ended_at_the_target_goes_on_to_hold_it(
    whole: tuple[Path, list[float]], tmp_path: Path
) -> None:
    out, losses = whole
    target = sorted(losses)[-2]
    first = run(tmp_path / "run", 1, target=target, patience=10)
    assert (first.status, first.epochs) == ("target", first_held(losses, target, 1))
    longer = run(tmp_path / "run", 2, target=target, patience=10, hold=3, resume=True)
    assert (longer.status, longer.epochs) == ("target", first_held(losses, target, 3))
    assert lines(tmp_path / "run") == [line for line in lines(out) if line["epoch"] < longer.epochs]
    again = run(tmp_path / "run", 1, target=target, patience=10, hold=3, resume=True)
    assert (again.status, again.digest) == ("target", longer.digest), "it makes no further step"


def test_a_loss_outside_begins_the_count_anew() -> None:
    progress = Progress(recent=[0.9, 0.4, 0.3, 0.6, 0.4])
    assert not progress.stays_within(0.5, 2)
    assert progress.stays_within(0.5, 1)
    assert not Progress(recent=[0.4]).stays_within(0.5, 2), "too few"
    progress.recent += [0.5]
    assert progress.stays_within(0.5, 2)
    assert not Progress(recent=[0.4, float("nan")]).stays_within(0.5, 2)
    # patience looks at no more than its own epochs
    assert Progress(recent=[9.0, 1.0, 1.0, 1.0]).has_not_moved(2)
    assert not Progress(recent=[9.0, 1.0, 1.0, 1.0]).has_not_moved(3)
