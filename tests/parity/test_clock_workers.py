"""The clock with real workers: what it times is what steps are made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from samepath.engine.run.options import Options, resolve
from samepath.engine.run.request import available_workers
from samepath.recipe import find_recipe
from samepath.study.race import predictions
from samepath.timing import stopwatch
from samepath.timing.links import PRESETS
from samepath.timing.model import Clock
from samepath.timing.stopwatch import measure_clock

pytestmark = pytest.mark.alone

# Sleeping takes as long on a busy machine as on a quiet one, and two sleep as well as one.
SLEEPY = """
import time
import torch
from torch import nn
from samepath import Recipe

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.015)
        return super().step(closure)

def loss(model, batch):
    time.sleep(0.005 + 0.003 * len(batch))
    return model(batch).square().mean()

def recipe():
    return Recipe(model=lambda: nn.Linear(3, 1), train=torch.ones(40, 3), loss=loss, epochs=1,
                  optimizer=lambda parameters: Slow(parameters, lr=1.0), batch_size=8, grain_size=4)
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "PASSES", 1)
    monkeypatch.setattr(stopwatch, "LEAST_STEPS", 6)
    monkeypatch.setattr(stopwatch, "STEP_SECONDS", 0.5)
    monkeypatch.setattr(stopwatch, "GRAIN_SECONDS", 0.5)


def options_of(recipe: str) -> Options:
    return resolve(find_recipe(recipe))


def test_a_step_is_taken_apart(tmp_path: Path) -> None:
    path = tmp_path / "sleepy.py"
    path.write_text(SLEEPY)
    told: list[str] = []
    facts = measure_clock(
        options_of(str(path)),
        steps=[(8, 1), (8, 2), (16, 2), (80, 1)],
        network=PRESETS["100Gb"],
        tell=told.append,
    )
    assert facts.serial_seconds == pytest.approx(0.015, abs=0.005)
    assert list(facts.grain_seconds) == ["1", "2", "4", "8"]
    for size, seconds in facts.grain_seconds.items():
        assert seconds == pytest.approx(0.005 + 0.003 * int(size), abs=0.004)
    assert facts.gradient_bytes == 4 * 4
    assert (facts.grain_size, facts.grain_fixed, facts.threads) == (4, False, 1)
    assert facts.network == PRESETS["100Gb"]
    assert 0.0 <= facts.busy_cores <= (os.cpu_count() or 1)
    assert told[0] == f"timing {path} on 1 worker"
    steps = {"8x1", "8x2", "16x2"}  # there are not 80 examples
    assert set(facts.measured_step_seconds) == (steps if available_workers() > 1 else {"8x1"})
    clock = Clock(facts)
    for step, seconds in facts.measured_step_seconds.items():
        batch_size, workers = map(int, step.split("x"))
        modelled = clock.modelled(batch_size=batch_size, workers=workers)
        assert modelled == pytest.approx(seconds, rel=0.25), step
    for found in predictions(clock, batch_size=8):
        assert found.modelled_efficiency == pytest.approx(found.measured_efficiency, rel=0.3)


def test_grains_of_batch_norm_stay(tmp_path: Path) -> None:
    path = tmp_path / "normed.py"
    normed = "nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))"
    path.write_text(SLEEPY.replace("nn.Linear(3, 1)", normed))
    facts = measure_clock(
        options_of(str(path)),
        steps=[(8, 1), (4, 2), (8, 2), (8, 1000)],
        network=PRESETS["1GbE"],
        tell=lambda _: None,
    )
    assert facts.grain_fixed
    assert list(facts.grain_seconds) == ["4"]
    assert facts.gradient_bytes == 4 * (6 + 4)
    # 4 examples are one grain, which two workers cannot share
    steps = {"8x1", "8x2"} if available_workers() > 1 else {"8x1"}
    assert set(facts.measured_step_seconds) == steps
    alone = facts.measured_step_seconds["8x1"]
    assert Clock(facts).modelled(batch_size=8, workers=1) == pytest.approx(alone, rel=0.25)
