"""A run stopped anywhere and continued on any number of workers is the run that never stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samepath.engine.state.progress import RunResult
from samepath.engine.train import Request, train
from samepath.errors import UserError

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
STEPS = 10
PATIENCE_SECONDS = 240.0
STOP_SECONDS = 20.0  # less than the launcher would wait before it kills


def run(
    out: Path, num_workers: int, *, resume: bool = False, checkpoint_steps: int | None = None,
    **asked: Any,
) -> RunResult:  # fmt: skip
    request = Request(
        recipe=RECIPE,
        num_workers=num_workers,
        **asked,
        out=out,
        resume=resume,
        checkpoint_steps=checkpoint_steps,
    )
    return train(request)[0]


def metrics(out: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl, apart from times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def same(result: RunResult, out: Path, expected: RunResult, expected_out: Path) -> None:
    assert result.digest == expected.digest
    assert result.steps == expected.steps
    assert result.train_loss == expected.train_loss
    assert result.metrics == expected.metrics
    assert metrics(out) == metrics(expected_out)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    return run(out, 1), out


def test_the_run_to_compare_with(uninterrupted: tuple[RunResult, Path]) -> None:
    """Two epochs, ten steps, two evaluations; it learns and its learning rate falls."""
    result, out = uninterrupted
    lines = metrics(out)
    assert result.steps == STEPS
    assert [line["step"] for line in lines if "train_loss" in line] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if "valid_loss" in line] == [5, 10]
    rates = [line["learning_rate"] for line in lines if "train_loss" in line]
    assert rates == pytest.approx([0.01] * 5 + [0.009] * 5)
    assert len({line["train_loss"] for line in lines if "train_loss" in line}) == STEPS


@pytest.mark.parametrize("stop", range(STEPS + 1))
def test_resumed_at_every_step(
    stop: int, uninterrupted: tuple[RunResult, Path], tmp_path: Path
) -> None:
    """One of the two parts on one worker, the other on two to five."""
    others = 2 + stop % 4
    first, second = (1, others) if stop % 2 else (others, 1)
    stopped = run(tmp_path, first, steps=stop)
    assert stopped.steps == stop
    assert (stopped.digest == uninterrupted[0].digest) == (stop == STEPS)
    resumed = run(tmp_path, second, resume=True, epochs=2)
    same(resumed, tmp_path, *uninterrupted)


def test_seventeen_alone_then_four_workers_are_forty_on_three(tmp_path: Path) -> None:
    straight = run(tmp_path / "a", 3, steps=40)
    run(tmp_path / "b", 1, steps=17)
    resumed = run(tmp_path / "b", 4, steps=40, resume=True)
    assert resumed.steps == 40
    same(resumed, tmp_path / "b", straight, tmp_path / "a")


def test_many_short_pieces(uninterrupted: tuple[RunResult, Path], tmp_path: Path) -> None:
    run(tmp_path, 2, steps=0)
    for steps in (1, 4, 5, 6, 9, 10):
        result = run(tmp_path, 1, steps=steps, resume=True)
    same(result, tmp_path, *uninterrupted)
    starts = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert len(starts) == 7
    assert {start["host"] for start in starts} == {socket.gethostname()}


def test_a_run_killed_after_a_checkpoint_repeats_what_was_lost(
    uninterrupted: tuple[RunResult, Path], tmp_path: Path
) -> None:
    """Steps beyond the checkpoint are computed again, and logged once."""
    run(tmp_path, 1, steps=8, checkpoint_steps=3)
    checkpoints = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-00000006", "step-00000008"]
    for file in checkpoints[1].iterdir():  # as if the kill had come before step 8 was saved
        file.unlink()
    checkpoints[1].rmdir()
    with (tmp_path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 9, "epo')
    same(run(tmp_path, 2, resume=True, epochs=2), tmp_path, *uninterrupted)


def test_a_damaged_checkpoint_is_passed_over(
    uninterrupted: tuple[RunResult, Path], tmp_path: Path
) -> None:
    run(tmp_path, 1, steps=8, checkpoint_steps=3)
    state = tmp_path / "checkpoints" / "step-00000008" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    same(run(tmp_path, 2, resume=True, epochs=2), tmp_path, *uninterrupted)


# ---- signals, with real processes


def start_training(out: Path, num_workers: int) -> subprocess.Popen[str]:
    samepath = Path(sys.executable).with_name("samepath")
    return subprocess.Popen(
        [
            samepath,
            "train",
            RECIPE,
            "-n",
            str(num_workers),
            "--epochs",
            "1000",
            "--out",
            out,
            "--json",
        ],
        env={**os.environ, "SLOW_SECONDS": "0.01"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_steps(process: subprocess.Popen[str], out: Path) -> None:
    """Until the first steps are logged."""
    limit = time.monotonic() + PATIENCE_SECONDS
    file = out / "metrics.jsonl"
    while not (file.exists() and file.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit, "no step was logged"
        time.sleep(0.02)


# Ctrl-C reaches every process of the terminal; kill and schedulers reach one
@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_leaves_a_run_to_continue(
    number: signal.Signals, to_group: bool, tmp_path: Path
) -> None:
    """Runs on one and on two workers, side by side because starting them takes longest."""
    outs = {num_workers: tmp_path / f"run-{num_workers}" for num_workers in (1, 2)}
    processes = {n: start_training(out, n) for n, out in outs.items()}
    for num_workers, process in processes.items():
        out = outs[num_workers]
        with process:
            wait_for_steps(process, out)
            (os.killpg if to_group else os.kill)(process.pid, number)
            stdout, stderr = process.communicate(timeout=STOP_SECONDS)
        assert process.returncode == 128 + number, stderr
        # on a slow machine there is a line of progress
        said = [line for line in stderr.splitlines() if "examples/s" not in line]
        assert len(said) == 1, "what it does"
        result = json.loads(stdout)
        written = json.loads((out / "run.json").read_text())
        assert result["status"] == written["status"] == "interrupted"
        assert result["steps"] >= 1

        end = result["steps"] + 7
        resumed = run(out, 3 - num_workers, resume=True, steps=end)
        straight = run(tmp_path / f"straight-{num_workers}", 1, steps=end)
        same(resumed, out, straight, tmp_path / f"straight-{num_workers}")


def test_beyond_the_target(uninterrupted: tuple[RunResult, Path], tmp_path: Path) -> None:
    """A run that ended at its target goes on to the end when told to, on the same path."""
    losses = [line["valid_loss"] for line in metrics(uninterrupted[1]) if "valid_loss" in line]
    out = tmp_path / "run"
    reached = run(out, 2, target=losses[0])
    assert (reached.status, reached.steps) == ("target", STEPS // 2)
    assert run(out, 1, resume=True).steps == STEPS // 2
    result = run(out, 3, resume=True, target="none")
    assert result.status == "finished"
    same(result, out, *uninterrupted)


DATA_RECIPE = """
import numpy as np
import torch
from samepath import Recipe

def recipe(data):
    inputs = torch.from_numpy(np.load(data))
    return Recipe(
        model=lambda: torch.nn.Linear(4, 4), train=inputs, batch_size=6, grain_size=2, epochs=2,
        loss=lambda model, batch: (model(batch) - batch).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""


def test_data_given_on_the_command_line(tmp_path: Path) -> None:
    """The same at every count; remembered on resume, wherever it moved to; refused if changed."""
    recipe, data = tmp_path / "recipe.py", tmp_path / "data.npy"
    recipe.write_text(DATA_RECIPE)
    np.save(data, np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32))

    def go(out: str, num_workers: int, **more: Any) -> RunResult:
        request = Request(recipe=str(recipe), num_workers=num_workers, out=tmp_path / out, **more)
        return train(request)[0]

    straight = go("straight", 1, data=str(data))
    go("run", 2, data=str(data), steps=3)
    assert go("run", 3, resume=True, epochs=2).digest == straight.digest
    moved = data.rename(tmp_path / "moved.npy")
    again = go("run", 1, resume=True, data=str(moved))
    assert again.digest == straight.digest
    np.save(moved, np.zeros((30, 4), np.float32))
    with pytest.raises(UserError, match=r"cannot resume: .*moved\.npy changed since the run began"):
        go("run", 1, resume=True, data=str(moved))
