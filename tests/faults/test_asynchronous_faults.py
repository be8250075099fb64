"""A parameter server whose worker fails, which is told to stop, or which dies: nothing hangs, what
was saved goes on, and a message says what happened.

Process 0 is the server, 1 and 2 are workers; worker 1 fails in its third batch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from samepath.engine.state.checkpoint import load_newest
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError, WorkerFailed

SAMEPATH = Path(sys.executable).with_name("samepath")
LIMIT_SECONDS = 180  # far below the minutes that a message would be waited for
STOP_SECONDS = 20.0  # less than the launcher would wait before it kills
RECIPE = """
import os, signal, time
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

FAIL = "{FAIL}"
calls = 0

def loss(model, batch):
    global calls
    calls += 1
    time.sleep(0.005)  # nobody is done before all have begun
    rank = os.environ.get("RANK")
    if FAIL == "server" and rank == "0":  # in its first evaluation: it computes nothing else
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == "1" and calls == 13:  # six grains a batch
        if FAIL == "raise":
            raise RuntimeError("the scanner is on fire")
        if FAIL == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAIL == "shape":
            return model(batch[0])
    return F.mse_loss(model(batch[0]), batch[1])

def recipe():
    data = (torch.arange(384.0).view(96, 4) / 384, torch.zeros(96, 2))
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2)),
        train=data,
        valid=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=12,
        grain_size=2,
        epochs=5,
    )
"""


def write(folder: Path, fail: str) -> str:
    file = folder / "mine.py"
    file.write_text(RECIPE.replace("{FAIL}", fail))
    return str(file)


def status(out: Path) -> str:
    return str(json.loads((out / "run.json").read_text())["status"])


def updates(out: Path) -> int:
    return sum("staleness" in line for line in RunFolder(out).read_metrics())


def check_resume(recipe: str, out: Path, num_workers: int, **asked: Any) -> None:
    """It goes on, and every batch is applied once or waits."""
    request = Request(recipe=recipe, num_workers=num_workers, **asked, out=out, resume=True)
    result, _ = train(request)
    assert result.status == "finished"
    checkpoint = load_newest(out / "checkpoints", pytest.fail)
    assert checkpoint is not None
    waiting = checkpoint.state.structure.get("underway", {"$list": []})["$list"]
    assert updates(out) + len(waiting) == result.steps


@pytest.mark.parametrize("fail", ["raise", "SIGKILL", "shape", "server"])
def test_the_error_names_who_failed(fail: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    request = Request(
        recipe=write(tmp_path, fail),
        num_workers=2,
        strategy="asynchronous:bound=3",
        out=out,
        checkpoint_steps=1,
    )
    with pytest.raises(UserError if fail == "shape" else WorkerFailed) as failed:
        train(request)
    text = str(failed.value)
    if fail == "raise":
        assert text.startswith("worker 1 failed:\nTraceback")
        assert text.endswith("RuntimeError: the scanner is on fire")
    elif fail == "SIGKILL":
        assert re.fullmatch(r"worker 1 was ended by SIGKILL \(process \d+\)", text)
    elif fail == "shape":
        assert "the loss of a grain has shape (2, 2)" in text
    else:
        assert re.fullmatch(r"worker 0 was ended by SIGKILL \(process \d+\)", text)
    assert status(out) == "failed"
    if fail in ("raise", "SIGKILL"):
        # its only worker is worker 1 again, which lives through two batches
        saved = load_newest(out / "checkpoints", pytest.fail)
        assert saved is not None
        check_resume(request.recipe, out, 1, steps=int(saved.state.structure["step"]) + 2)


def own_port() -> int:
    """Below those that the system gives to others."""
    return 20000 + os.getpid() % 12000


def test_without_a_launcher_that_looks_after_them(tmp_path: Path) -> None:
    """The server sees by itself that a worker is gone, and the other worker that the server is."""
    recipe, port = write(tmp_path, "SIGKILL"), own_port()
    began = time.monotonic()
    processes = [
        subprocess.Popen(
            [SAMEPATH, "train", recipe, "--strategy", "asynchronous:bound=3", "--out", "run"],
            cwd=tmp_path,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "3",
                "LOCAL_WORLD_SIZE": "3",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    errors = [process.communicate(timeout=LIMIT_SECONDS)[1] for process in processes]
    assert time.monotonic() - began < LIMIT_SECONDS
    assert [process.returncode for process in processes] == [1, -signal.SIGKILL, 1]
    assert re.search(r"samepath: (worker 1|another worker) left", errors[0]), errors[0]
    assert re.search(r"samepath: (worker 0|another worker) left", errors[2]), errors[2]
    assert status(tmp_path / "run") == "failed"


# Ctrl-C reaches every process of the terminal; kill and schedulers reach one
@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_leaves_a_run_to_continue(
    number: signal.Signals, to_group: bool, tmp_path: Path
) -> None:
    recipe, out = write(tmp_path, "nobody"), tmp_path / "run"
    command = [SAMEPATH, "train", recipe, "--strategy", "asynchronous", "-n", "2", "--json"]
    process = subprocess.Popen(
        [*map(str, command), "--epochs", "1000", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        file = out / "metrics.jsonl"
        while not (file.exists() and file.stat().st_size):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        (os.killpg if to_group else os.kill)(process.pid, number)
        stdout, stderr = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 128 + number, stderr
    assert stderr == ""
    result = json.loads(stdout)
    assert result["status"] == status(out) == "interrupted"
    assert result["steps"] >= 1
    check_resume(recipe, out, 3, steps=result["steps"] + 7)
