"""What a run says in its first steps of a smaller number of workers at most, and that it changes
nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath import Recipe, start
from samepath.console import Watcher
from samepath.engine.run.fewer_workers import STEPS, FewerWorkers
from samepath.engine.train import Request, train

FIXED, EACH = 0.01, 0.002
"""Seconds that every grain takes, and every example."""
INPUTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
BATCH = 16
notes: list[str] = []


class Notes(Watcher):
    def note(self, text: str) -> None:
        notes.append(text)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    time.sleep(FIXED + EACH * len(batch))
    return F.mse_loss(model(batch), batch)


def words(
    *layers: nn.Module, step_seconds: float | None = None, num_steps: int = 2, **settings: Any
) -> str:
    """What is said after steps with 8 grains of a batch on one worker."""
    asked: dict[str, Any] = {"max_workers": 8, "loss": loss, "batch_size": BATCH} | settings
    with start(seed=7) as session:
        model = nn.Sequential(nn.Linear(6, 6), *layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = session.prepare(model, optimizer, **asked)
        looks, taken = FewerWorkers(trainer), []
        for share in list(trainer.batches(INPUTS, 0))[:num_steps]:
            began = time.perf_counter()
            trainer.step(share)
            taken.append(time.perf_counter() - began)
        return looks.words(taken if step_seconds is None else [step_seconds] * STEPS)


def test_says_what_grains_cost_beyond_their_examples() -> None:
    true = 7 * FIXED / (8 * FIXED + BATCH * EACH)
    said = words()
    assert said.startswith("with --max-workers 1 a step would take about ")
    found = float(said.partition("about ")[2].partition("%")[0]) / 100
    assert 0.5 * true < found < 1.2 * true, (said, true)
    assert "no more than 1 could then take part" in said


@pytest.mark.parametrize(
    "how",
    [
        {"max_workers": 1},
        {"max_workers": BATCH},  # in grains of one there is no half
        {"step_seconds": 1.0},  # most of a step is something else
        {"step_seconds": 10.0},  # it would take too long to find out
        {"exact": False},
    ],
)
def test_says_nothing(how: dict[str, Any]) -> None:
    assert words(**how) == ""


@pytest.mark.filterwarnings("ignore:whether the loss is a mean")
def test_a_loss_that_counts_its_calls_is_not_called_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counts(model: nn.Module, batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return loss(model, batch) * (1 + 1 / calls)

    def after_steps() -> int:
        nonlocal calls
        calls = 0
        assert words(loss=counts) == ""
        return calls

    with_it = after_steps()
    monkeypatch.setattr(FewerWorkers, "_gain", lambda *_: 0.0)
    assert with_it == after_steps()


def test_says_nothing_where_another_grain_is_another_model() -> None:
    assert words(nn.BatchNorm1d(6)) == ""


def recipe() -> Recipe:
    """This file is also a recipe."""
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)),
        train=INPUTS,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=BATCH,
        epochs=2,
    )


def test_the_path_is_the_same(tmp_path: Path) -> None:
    def run(name: str, **asked: Any) -> tuple[str, bool]:
        notes.clear()
        request = Request(recipe=__file__, num_workers=1, out=tmp_path / name, **asked)
        digest = train(replace(request, display=Notes))[0].digest
        return digest, any("--max-workers 1 a step" in note for note in notes)

    silent, said = run("silent")
    assert not said
    assert run("said", says_gain=True) == (silent, True)
    assert run("grain", says_gain=True, grain_size=2) == (silent, False)
