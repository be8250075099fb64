"""Engines on real workers: all compute the same gradient, and all tell what they did.

One launch with 2 workers (shared memory) and one with 3 (the network) run everything; the command
runs once, with 2 workers over the network.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from chrome_trace import check_trace, nested

from samepath.engine.comm.network import Peers
from samepath.engine.launch.launch import launch
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options, resolve
from samepath.engine.run.session import Link, Session, start
from samepath.insight.profile.engines import shares_of
from samepath.insight.profile.profile import gather, make_engine, take_step
from samepath.insight.profile.queue_reduction import QueueReduction, QueueSettings
from samepath.insight.profile.recorder import PhaseRecorder
from samepath.insight.profile.timeline import MAIN, chrome_trace, numbers
from samepath.recipe import find_recipe

pytestmark = pytest.mark.alone

# Batches of 10 in grains of 2; three workers have shares of 3, 3 and 4.
RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 120), nn.Linear(120, 120)
        self.last, self.seldom = nn.Linear(120, 4), nn.Linear(8, 4)

    def forward(self, inputs):
        scores = self.last(self.second(self.first(inputs).tanh()).tanh())
        used = USED(inputs)
        return scores + self.seldom(inputs) * used[:, None] if used.any() else scores

USED = lambda inputs: inputs[:, 0] < 9

def noise(batch, draws):
    return batch[0] + 0.1 * torch.from_numpy(draws.normal(8)), batch[1]

def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=-1)

def recipe():
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(44, 8, generator=made)
    labels = inputs[:, :4].argmax(1)
    return Recipe(model=Model, train=(inputs, labels), loss=loss, augment=noise, epochs=2,
                  optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
                  batch_size=10, grain_size=2)
"""
WEIGHTED = (
    RECIPE.replace("labels = ", "labels = torch.where(torch.arange(44) % 3 == 0, -1, ")
    .replace("argmax(1)", "argmax(1))")
    .replace(
        "epochs=2", "weight=lambda batch: float((batch[1] >= 0).sum()), clip_norm=0.5, epochs=2"
    )
)
"""Some labels do not count, so that shares weigh as many as are valid."""
SOMETIMES = RECIPE.replace("inputs[:, 0] < 9", "inputs[:, 0] > 1")
"""A layer that few examples, and not all shares, use (DDP refuses such models)."""
CASES = {
    "plain": (RECIPE, ("samepath", "ddp", "queue")),
    "weighted": (WEIGHTED, ("samepath", "ddp", "queue")),
    "sometimes": (SOMETIMES, ("samepath", "queue")),
}
SLOW_SECONDS = 0.12
UNEVEN = """
import os
import time
import torch
from torch import nn
from samepath import Recipe

def loss(model, batch):
    time.sleep(SECONDS if os.environ["RANK"] == "1" else SECONDS / 4)
    return model(batch).square().mean()

def recipe():
    return Recipe(model=lambda: nn.Linear(3, 1), train=torch.ones(60, 3), loss=loss, epochs=1,
                  optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=12, grain_size=GRAIN)
""".replace("SECONDS", str(SLOW_SECONDS))
"""Worker 1 is slow; every worker has one grain."""
STEPS = 5
SIZES = (5, 4000, 1, 300, 70_000, 20, 9)


def body(link: Link, folder: str, options: dict[str, Options]) -> None:
    """What every worker does."""
    with start(seed=0, link=link) as session:
        found: dict[str, Any] = {
            case: {name: _train(session, options[case], name) for name in CASES[case][1]}
            for case in CASES
        }
        found["uneven"] = {
            name: _train(session, options["uneven"], name) for name in CASES["plain"][1]
        }
        found["unwatched"] = _unwatched(session, options["plain"])
        found["orders"] = _orders(session)
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(found))


def _train(session: Session, options: Options, name: str) -> dict[str, Any]:
    recorder = PhaseRecorder(session.worker)
    peers = None if name == "samepath" else Peers(60.0)
    recipe = find_recipe(options.recipe)
    # fusion buffers that hold some of the layers, so that there are several
    settings = QueueSettings(cycle_seconds=1e-3, fusion_bytes=20_000)
    engine = make_engine(name, recipe, options, session, recorder, peers, settings)
    before = [p.tolist() for p in engine.model.parameters()]
    with engine.running():
        for number in range(STEPS):
            take_step(engine, recorder, number)
    weights = {n: p.tolist() for n, p in engine.model.named_parameters()}
    together = gather(session.collective, {name: recorder})
    del engine
    if peers is not None:
        peers.close()
    found: dict[str, Any] = {"before": before, "weights": weights}
    if together is not None:
        (timeline,) = together["timelines"]
        check_trace(chrome_trace(timeline, {}))
        for worker in range(session.num_workers):
            events = timeline.of(*MAIN, "step", worker=worker)
            assert nested((event.begin, event.end) for event in events)
        found["clock"] = together["clock"]
        found["numbers"] = vars(numbers(timeline))
        found["phases"] = sorted({event.phase for event in timeline.events})
    return found


def _unwatched(session: Session, options: Options) -> dict[str, Any]:
    """samepath without anything that notes times."""
    recipe = find_recipe(options.recipe)
    trainer = make_trainer(recipe, options, session)
    recorder = PhaseRecorder(session.worker)
    shares = shares_of(recipe, options, session, recorder, exact=True)
    for share in itertools.islice(shares, STEPS):
        trainer.step(share)
    return {n: p.tolist() for n, p in trainer.model.named_parameters()}


def _orders(session: Session) -> int:
    """Tensors announced in an order of each worker's own: how many sums came out right."""
    peers = Peers(60.0)
    settings = QueueSettings(cycle_seconds=1e-3, fusion_bytes=16_000)
    model = torch.nn.ParameterList([torch.empty(size) for size in SIZES])
    queue = QueueReduction(model, peers, PhaseRecorder(session.worker), settings)
    draw = random.Random(session.worker)
    workers, right = session.num_workers, 0
    with queue.running():
        for turn in range(10):
            tensors = [
                torch.full(
                    (size,),
                    1000 * turn + 10 * index + session.worker,
                    dtype=torch.float64 if index % 3 == 0 else torch.float32,
                )
                for index, size in enumerate(SIZES)
            ]
            for index in draw.sample(range(len(SIZES)), len(SIZES)):
                queue.announce(index, tensors[index])
                time.sleep(draw.random() * 2e-3)
            queue.wait()
            for index, tensor in enumerate(tensors):
                total = workers * (1000 * turn + 10 * index) + sum(range(workers))
                right += bool((tensor == total).all())
    peers.close()
    return right


@pytest.fixture(scope="module", params=[(2, "auto"), (3, "network")], ids=["2", "3"])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    num_workers, link = request.param
    folder = tmp_path_factory.mktemp(f"profile-{num_workers}")
    options = {}
    for case, (text, _) in CASES.items():
        (folder / f"{case}.py").write_text(text)
        options[case] = resolve(find_recipe(str(folder / f"{case}.py")))
    uneven = folder / "uneven.py"
    uneven.write_text(UNEVEN.replace("GRAIN", str(12 // num_workers)))
    options["uneven"] = resolve(find_recipe(str(uneven)))
    launch(body, (link, str(folder), options), num_workers)
    return [json.loads((folder / f"worker-{w}.json").read_text()) for w in range(num_workers)]


@pytest.mark.parametrize("case", CASES)
def test_all_engines_compute_the_same_gradient(case: str, found: list[dict[str, Any]]) -> None:
    expected = found[0][case]["samepath"]
    start_at = [torch.tensor(value) for value in expected["before"]]
    for name in CASES[case][1]:
        for worker in found:
            assert worker[case][name]["before"] == expected["before"]
            assert worker[case][name]["weights"] == found[0][case][name]["weights"], "all alike"
        weights = found[0][case][name]["weights"]
        for begin, (what, value) in zip(start_at, expected["weights"].items(), strict=True):
            ours = torch.tensor(value)
            assert (ours - begin).abs().max() > 1e-3, f"{what} has been trained"
            # float32, five steps: other orders of addition, nothing else
            torch.testing.assert_close(torch.tensor(weights[what]), ours, rtol=1e-5, atol=2e-7)


def test_noting_times_changes_no_bit(found: list[dict[str, Any]]) -> None:
    for worker in found:
        assert worker["plain"]["samepath"]["weights"] == worker["unwatched"]


def test_every_engine_tells_what_it_did(found: list[dict[str, Any]]) -> None:
    workers = len(found)
    model_bytes = 4 * sum(torch.tensor(v).numel() for v in found[0]["plain"]["ddp"]["before"])
    for name in CASES["plain"][1]:
        told = found[0]["plain"][name]
        said, phases = told["numbers"], set(told["phases"])
        assert "one machine" in told["clock"]
        assert (said["engine"], said["num_workers"], said["num_steps"]) == (name, workers, STEPS)
        assert {"step", "load", "forward", "backward", "wait", "update", "reduction"} <= phases
        assert ("negotiation" in phases) == (name == "queue")
        assert sum(said["shares"].values()) == pytest.approx(1.0)
        assert all(share >= 0.0 for share in said["shares"].values())
        assert said["shares"]["forward"] > 0.0
        assert said["shares"]["backward"] > 0.0
        assert 0.0 <= said["slowest_share"] <= said["waiting_share"] < 1.0
        assert 0.0 <= said["hidden_share"] <= 1.0
        assert 0.0 < said["communication_seconds"] < said["step_seconds"] * 2
        ring = 2 * (workers - 1) / workers * model_bytes
        if name == "samepath":  # the rest's sums, and rows in place of the largest matrix
            rest = ring * (1 - 4 * 120 * 120 / model_bytes)
            assert rest < said["bytes_sent"] < ring
        else:
            assert said["bytes_sent"] == pytest.approx(ring, rel=1e-3)
    assert found[0]["plain"]["ddp"]["numbers"]["num_reductions"] >= 1
    assert found[0]["plain"]["queue"]["numbers"]["num_reductions"] >= 3, "buffers are small"


def test_waiting_on_the_slowest_worker_is_told(found: list[dict[str, Any]]) -> None:
    """All but worker 1 wait three quarters of a step, and for nothing else; a crowded machine adds
    to the step."""
    workers = len(found)
    for name, told in found[0]["uneven"].items():
        said = told["numbers"]
        crowded = SLOW_SECONDS / said["step_seconds"]
        assert 0.2 < crowded < 1.05, name
        expected = 0.75 * (workers - 1) / workers * crowded
        assert said["slowest_share"] == pytest.approx(expected, rel=0.4), name
        assert said["slowest_share"] > 0.5 * said["waiting_share"], name
        forward = (SLOW_SECONDS + (workers - 1) * SLOW_SECONDS / 4) / workers
        assert said["phase_seconds"]["forward"] == pytest.approx(forward, rel=0.5), name


def test_tensors_ready_in_different_orders_are_not_mixed_up(found: list[dict[str, Any]]) -> None:
    for worker in found:
        assert worker["orders"] == 10 * len(SIZES)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("samepath")), "profile", "mine.py", "-n", "2",
         "--no-measure", "--engine", "samepath,ddp", "--engine", "queue", "--cycle-ms", "1",
         "--steps", "3", "--out", "found", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "SAMEPATH_LINK": "network"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said == {**json.loads((tmp_path / "found/profile.json").read_text()), "folder": "found"}
    assert list(said["engines"]) == ["samepath", "ddp", "queue"]
    for engine, each in said["engines"].items():
        assert each["num_steps"] == 3
        assert each["hidden_share"] is not None
        check_trace(json.loads((tmp_path / "found" / f"trace-{engine}.json").read_text()))
        assert (tmp_path / "found" / f"timeline-{engine}.png").stat().st_size > 10_000
    page = (tmp_path / "found/profile.html").read_text()
    assert "ui.perfetto.dev" in page
    assert page.count("<img") == 4
    assert said["queue"]["cycle_seconds"] == 0.001
