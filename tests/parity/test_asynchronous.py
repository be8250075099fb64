"""The parameter server, in real processes: sequential where it must be, stale and bounded else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samepath.engine.state.checkpoint import load_newest
from samepath.engine.state.progress import RunResult
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError

TINY = str(Path(__file__).with_name("tiny_recipe.py"))
TORCHRUN = Path(sys.executable).with_name("torchrun")
SAMEPATH = Path(sys.executable).with_name("samepath")
LIMIT_SECONDS = 120

# What tiny_recipe.py does not have: mixed types and layouts, a parameter that no grain uses and one
# that some batches use, clipping, a schedule by steps; and worker 1 can be made slow: its first
# batch then takes until the others have computed 8 (or PATIENCE_SECONDS), and they do not get
# much further before it is applied.
OTHER_RECIPE = """
import os, time
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(5)
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.head = nn.Linear(5 * 16, 4).bfloat16()
        self.never = nn.Linear(3, 3).double()
        self.sometimes = nn.Linear(4, 4).bfloat16()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64), persistent=False)

    def forward(self, inputs):
        self.seen += 1
        hidden = self.norm(self.conv(inputs.contiguous(memory_format=torch.channels_last)))
        scores = self.head(hidden.relu().flatten(1).bfloat16())
        if inputs[0, 0, 0, 0] > 0.8:
            scores = self.sometimes(scores)
        return scores + self.frozen.bfloat16()

def loss(model, batch):
    if PATIENCE_SECONDS:
        dawdle(Path(__file__).with_name(f"grains-{PATIENCE_SECONDS}"))
    bad = float("nan") if SPOILED and batch[1].eq(9).any() else 1.0
    return F.cross_entropy(model(batch[0]).float(), batch[1] % 4) * bad

SPOILED = False
PATIENCE_SECONDS = 0
calls = 0

def dawdle(grains):
    global calls
    calls += 1
    until = time.monotonic() + PATIENCE_SECONDS
    done = grains.with_suffix(".done")
    size = lambda: grains.stat().st_size if grains.exists() else 0
    if os.environ["RANK"] == "1":
        while calls == 1 and size() < 40 and time.monotonic() < until:
            time.sleep(0.01)
        if calls == 6:  # a second batch: the first has been applied
            done.touch()
    else:
        with grains.open("a") as file:
            file.write(".")
        while size() > 55 and not done.exists() and time.monotonic() < until:
            time.sleep(0.01)

def recipe():
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(44, 3, 6, 6, generator=made)
    labels = torch.randint(0, 4, (44,), generator=made)
    labels[20] = 9
    return Recipe(
        model=Mixed,
        train=(inputs, labels),
        loss=loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
        schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        schedule_every="step",
        clip_norm=0.5,
        batch_size=10,
        grain_size=2,
        epochs=3,
    )
"""


def run(
    recipe: str,
    out: Path,
    num_workers: int,
    strategy: str | None = None,
    *,
    resume: bool = False,
    **asked: Any,
) -> RunResult:
    request = Request(
        recipe=recipe,
        num_workers=num_workers,
        strategy=strategy,
        **asked,
        out=out,
        resume=resume,
    )
    return train(request)[0]


def metrics(out: Path, *apart_from: str) -> list[dict[str, Any]]:
    lines = RunFolder(out).read_metrics()
    return [{k: v for k, v in line.items() if k not in apart_from} for line in lines]


def staleness(out: Path) -> list[int]:
    """Of each update."""
    return [line["staleness"] for line in metrics(out) if "train_loss" in line]


def check_summary(result: RunResult, out: Path) -> None:
    """The numbers in the result are those of the log, and every batch is applied or waits."""
    logged = staleness(out)
    assert result.staleness_mean == sum(logged) / len(logged)
    assert result.staleness_max == max(logged)
    written = json.loads((out / "run.json").read_text())["result"]
    assert written["staleness_mean"] == result.staleness_mean
    assert written["staleness_max"] == result.staleness_max
    checkpoint = load_newest(out / "checkpoints", pytest.fail)
    assert checkpoint is not None
    waiting = checkpoint.state.structure.get("underway", {"$list": []})["$list"]
    assert len(logged) + len(waiting) == result.steps


def same(result: RunResult, out: Path, expected: RunResult, expected_out: Path) -> None:
    assert result.status == expected.status
    assert result.steps == expected.steps
    assert metrics(out, "seconds", "staleness") == metrics(expected_out, "seconds")
    assert result.metrics == expected.metrics
    assert result.digest == expected.digest


@pytest.fixture
def other(tmp_path: Path) -> str:
    file = tmp_path / "other.py"
    file.write_text(OTHER_RECIPE)
    return str(file)


# ---- where it is sequential


@pytest.mark.parametrize(
    ("recipe", "asked"),
    [("nodules-small", {"steps": 4}), ("other", {})],
)
def test_one_worker_or_a_bound_of_0_is_sequential_training(
    recipe: str, asked: dict[str, Any], other: str, tmp_path: Path
) -> None:
    recipe = other if recipe == "other" else recipe
    expected = run(recipe, tmp_path / "alone", 1, **asked)
    for number, strategy in ((1, "asynchronous"), (3, "asynchronous:bound=0")):
        out = tmp_path / f"server-{number}"
        result = run(recipe, out, number, strategy, **asked)
        same(result, out, expected, tmp_path / "alone")
        assert (result.num_workers, result.staleness_max) == (number, 0)
        check_summary(result, out)


def test_stopped_and_resumed_with_other_workers_it_still_is(tmp_path: Path) -> None:
    expected = run(TINY, tmp_path / "alone", 1)
    out = tmp_path / "server"
    run(TINY, out, 2, "asynchronous:bound=0", steps=3)
    run(TINY, out, 1, resume=True, steps=7)
    result = run(TINY, out, 3, resume=True, epochs=2)
    same(result, out, expected, tmp_path / "alone")
    check_summary(result, out)


# ---- where it is not


def test_staleness_is_measured_and_bounded(other: str, tmp_path: Path) -> None:
    """While worker 1 computes, the others make many updates, unless they may not."""

    def dawdling(seconds: int, strategy: str) -> RunResult:
        text = OTHER_RECIPE.replace("PATIENCE_SECONDS = 0", f"PATIENCE_SECONDS = {seconds}")
        Path(other).write_text(text)
        result = run(other, tmp_path / strategy, 3, strategy, epochs=6)
        check_summary(result, tmp_path / strategy)
        return result

    free = dawdling(30, "asynchronous").staleness_max
    assert free is not None
    assert free >= 6, "of the others' 8 batches 2 may have been on their way"
    for bound in (1, 3):
        bounded = dawdling(bound, f"asynchronous:bound={bound}").staleness_max
        assert bounded is not None
        assert 1 <= bounded <= bound


def test_it_learns(tmp_path: Path) -> None:
    result = run(TINY, tmp_path, 2, "asynchronous", epochs=60, learning_rate=0.03, target=1.25)
    assert result.status == "target"
    assert result.valid_loss is not None
    assert result.valid_loss <= 1.25  # it begins with log 4
    assert result.staleness_max is not None
    assert result.staleness_max >= 1
    lines = [line["step"] for line in metrics(tmp_path) if "valid_loss" in line]
    assert lines == list(range(5, result.steps + 1, 5)), "an evaluation at each epoch's end"
    check_summary(result, tmp_path)


def test_what_was_outstanding_is_applied_after_a_stop(tmp_path: Path) -> None:
    """Every batch once, also when the run goes on with more, or fewer, workers."""
    run(TINY, tmp_path, 3, "asynchronous:bound=2", steps=7)
    check_summary(run(TINY, tmp_path, 1, resume=True, steps=8), tmp_path)
    result = run(TINY, tmp_path, 4, resume=True, epochs=4)
    assert result.steps == 20
    assert result.staleness_max is not None
    assert result.staleness_max <= 2
    check_summary(result, tmp_path)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_divergence_ends_the_run(num_workers: int, other: str, tmp_path: Path) -> None:
    Path(other).write_text(OTHER_RECIPE.replace("SPOILED = False", "SPOILED = True"))
    expected = run(other, tmp_path / "alone", 1)
    result = run(other, tmp_path / "server", num_workers, "asynchronous")
    assert result.status == expected.status == "diverged"
    assert result.message == expected.message
    if num_workers == 1:
        same(result, tmp_path / "server", expected, tmp_path / "alone")


# ---- how it is asked for


def test_the_run_remembers_its_server(tmp_path: Path) -> None:
    run(TINY, tmp_path / "real", 1, "asynchronous:bound=1", steps=2)
    config = json.loads((tmp_path / "real" / "run.json").read_text())["config"]
    assert (config["server"], config["virtual_workers"]) == (True, 1)
    for changed in ({"strategy": "asynchronous"}, {"virtual_workers": 2}):
        with pytest.raises(UserError, match="would change the path"):
            run(TINY, tmp_path / "real", 1, resume=True, **changed)
    virtual = run(TINY, tmp_path / "virtual", 1, "asynchronous", virtual_workers=3, steps=4)
    assert (virtual.staleness_mean, virtual.staleness_max) == (None, None)
    config = json.loads((tmp_path / "virtual" / "run.json").read_text())["config"]
    assert (config["server"], config["virtual_workers"]) == (False, 3)


def test_under_torchrun_one_process_is_the_server(tmp_path: Path) -> None:
    command = [str(TORCHRUN), "--nproc-per-node", "2", str(SAMEPATH), "train", TINY, "--json"]
    ended = subprocess.run(
        [*command, "--strategy", "asynchronous", "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["num_workers"] == 1
    assert result["digest"] == run(TINY, tmp_path / "alone", 1).digest


@pytest.mark.parametrize(
    ("processes", "num_workers", "says"),
    [(1, "auto", "start 2 or more"), (2, 2, "the launcher started 1 workers and a server")],
)
def test_under_torchrun_the_count_must_fit(
    processes: int, num_workers: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchruns = {"RANK": "0", "WORLD_SIZE": str(processes), "LOCAL_RANK": "0"}
    for name, value in {**torchruns, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=says):
        run(TINY, tmp_path / "run", num_workers, "asynchronous")
    assert not (tmp_path / "run").exists()
