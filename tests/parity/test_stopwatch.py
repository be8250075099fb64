"""A step taken apart by real workers; sleeping takes as long on a busy machine as on a quiet."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from samepath.engine.run.options import resolve
from samepath.engine.run.request import available_workers
from samepath.recipe import find_recipe
from samepath.timing.links import find_cluster
from samepath.timing.measured import MeasuredStep, read_measured, write_measured
from samepath.timing.model import Buckets, simulate, workload_from
from samepath.timing.stopwatch import measure_step

pytestmark = pytest.mark.alone

SLEEPY = """
import time
import torch
from torch import nn
from samepath import Recipe

class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x * 1.0
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.02)
        return super().step(closure)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)
    def forward(self, x):
        return self.last(Nap.apply(self.first(x), 0.005 * len(x)))

def loss(model, batch):
    time.sleep(0.005 * len(batch))
    return model(batch).square().mean()

def recipe():
    return Recipe(model=Net, train=torch.ones(40, 3), loss=loss, epochs=1, batch_size=8,
                  optimizer=lambda parameters: Slow(parameters, lr=1.0), grain_size=2)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredStep:
    path = tmp_path_factory.mktemp("recipes") / "sleepy.py"
    path.write_text(SLEEPY)
    told: list[str] = []
    found = measure_step(resolve(find_recipe(str(path))), seconds=4.0, tell=told.append)
    assert told[0] == f"timing {path} on {min(available_workers(), 2)} workers"
    return found


def test_grains_gradients_and_updates_are_told_apart(measured: MeasuredStep) -> None:
    medians = {int(size): statistics.median(t) for size, t in measured.grain_times.items()}
    assert list(medians) == [1, 2, 4, 8]
    for size, seconds in medians.items():
        assert seconds == pytest.approx(0.010 * size, rel=0.3, abs=0.004)
    assert measured.update_seconds == pytest.approx(0.02, abs=0.01)
    assert measured.tensor_bytes == (4, 12, 12, 36)  # the last layer's come first
    assert set(measured.tensor_names[:2]) == {"last.weight", "last.bias"}
    early, late = measured.tensor_ready[1], measured.tensor_ready[2]
    assert early == pytest.approx(0.5, abs=0.12)  # before the nap that half the grain takes
    assert late == pytest.approx(1.0, abs=0.12)
    assert measured.step_seconds["1"] == pytest.approx(0.1, rel=0.25)


@pytest.mark.skipif(available_workers() < 2, reason="needs two cores")
def test_two_workers_take_what_is_predicted_from_one(measured: MeasuredStep) -> None:
    assert measured.crowding["2"] == pytest.approx(1.0, abs=0.25)  # sleepers do not mind
    here = find_cluster("here", measured.local)
    alone, two = simulate(workload_from(measured), here, [1, 2], policy=Buckets())
    assert alone.median_seconds == pytest.approx(measured.step_seconds["1"], rel=0.2)
    assert two.median_seconds == pytest.approx(measured.step_seconds["2"], rel=0.25)


def test_links_are_measured_both_ways(measured: MeasuredStep) -> None:
    for link in (measured.local, measured.network):
        assert link.how == "measured"
        assert 1e-6 < link.latency_seconds < 0.05
        assert 1e6 < link.bytes_per_second < 1e12
    assert measured.local.cores_taken == 1.0
    assert 0.0 < measured.network.cores_taken < 4.0


def test_it_is_written_and_read(measured: MeasuredStep, tmp_path: Path) -> None:
    write_measured(tmp_path, measured)
    assert read_measured(tmp_path) == measured
