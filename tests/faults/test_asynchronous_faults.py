"""A parameter server whose worker fails, which is told to stop, or which dies: nothing hangs, what
was saved goes on, and a message says what happened. Process 0 is the server, 1 and 2 are workers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import RECIPE, SAMEPATH, harm, harmful, num_lines, start, until

from samepath.engine.state.checkpoint import load_newest
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError, WorkerFailed

LIMIT_SECONDS = 180  # far below the minutes that a message would be waited for
STOP_SECONDS = 20.0  # less than the launcher would wait before it kills


def status(out: Path) -> str:
    return str(json.loads((out / "run.json").read_text())["status"])


def check_resume(recipe: Path, out: Path, num_workers: int, more_steps: int) -> None:
    """It goes on, and every batch is applied once or waits."""
    saved = load_newest(out / "checkpoints", pytest.fail)
    assert saved is not None
    steps = int(saved.state.structure["step"]) + more_steps
    request = Request(
        recipe=str(recipe), num_workers=num_workers, steps=steps, out=out, resume=True
    )
    result, _ = train(request)
    assert result.status == "finished"
    checkpoint = load_newest(out / "checkpoints", pytest.fail)
    assert checkpoint is not None
    waiting = checkpoint.state.structure.get("underway", {"$list": []})["$list"]
    updates = sum("staleness" in line for line in RunFolder(out).read_metrics())
    assert updates + len(waiting) == result.steps


@pytest.mark.parametrize(
    ("phase", "worker", "how", "error", "words"),
    [
        ("forward", 1, "raise", WorkerFailed, "worker 1 failed:\nTraceback.*is on fire"),
        ("forward", 1, "SIGKILL", WorkerFailed, r"worker 1 was ended by SIGKILL \(.*\)"),
        ("forward", 1, "misuse", UserError, "the scanner needs coal; add coal"),
        ("evaluation", 0, "SIGKILL", WorkerFailed, r"worker 0 was ended by SIGKILL \(.*\)"),
    ],
)
def test_the_error_names_who_failed(
    phase: str, worker: int, how: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    after = 10 if worker == 1 else 0  # five grains a batch
    recipe, out = harmful(tmp_path, harm(phase, worker, how=how, after=after)), tmp_path / "run"
    asynchronous = Request(
        recipe=str(recipe),
        num_workers=2,
        strategy="asynchronous:bound=3",
        out=out,
        checkpoint_steps=1,
    )
    with pytest.raises(error) as failed:
        train(asynchronous)
    assert re.fullmatch(words, str(failed.value), re.DOTALL)
    assert status(out) == "failed"
    if worker == 1:
        check_resume(recipe, out, 1, 2)


def test_without_a_launcher_that_looks_after_them(tmp_path: Path) -> None:
    """The server sees by itself that a worker is gone, and the other worker that the server is."""
    recipe = harmful(tmp_path, harm("forward", 1))
    place = {
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + os.getpid() % 12000),  # below those that the system gives
    }
    processes = [
        subprocess.Popen(
            [SAMEPATH, "train", recipe, "--strategy", "asynchronous:bound=3", "--out", "run"],
            cwd=tmp_path,
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    errors = [process.communicate(timeout=LIMIT_SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, -signal.SIGKILL, 1]
    assert re.search(r"samepath: worker 1 left", errors[0]), errors[0]
    assert re.search(r"samepath: worker 0 left", errors[2]), errors[2]
    assert status(tmp_path / "run") == "failed"


# Ctrl-C reaches every process of the terminal; kill and schedulers reach one
@pytest.mark.parametrize(
    ("number", "kill"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)]
)
def test_a_signal_leaves_a_run_to_continue(
    number: signal.Signals, kill: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(
        "train", RECIPE, "--strategy", "asynchronous", "-n", "2", "--json", "--epochs", "1000",
        "--out", out, slow_seconds=0.005, start_new_session=True,
    )  # fmt: skip
    until(lambda: num_lines(out) > 0, process)
    kill(process.pid, number)
    stdout, stderr = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 128 + number, stderr
    assert stderr.count("\n") == 1, "what it does"
    result = json.loads(stdout)
    assert result["status"] == status(out) == "interrupted"
    assert result["steps"] >= 1
    check_resume(RECIPE, out, 3, 7)
