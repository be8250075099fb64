"""Runs that are told to stop: all is on disk, the exit code says so, and it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from braked_runs import family
from elastic_runs import (
    GOES_ON,
    elastic,
    harm,
    harmful,
    harms_done,
    left_behind,
    lines,
    meanwhile,
    start,
    steps_begun,
    steps_repeated,
    until,
    workers_of,
)

from samepath.engine import train as training
from samepath.engine.launch.reports import Interrupted
from samepath.engine.state.checkpoint import list_checkpoints
from samepath.engine.state.run_folder import RunFolder

LIMIT_SECONDS = 300
EPOCHS = 4
STEPS = 5 * EPOCHS


def to_launcher(run: subprocess.Popen[str]) -> None:
    """`kill`, or a scheduler that knows one process."""
    run.send_signal(signal.SIGTERM)


def to_all(run: subprocess.Popen[str]) -> None:
    """Slurm: every process of the step."""
    for process in family(run.pid):
        os.kill(process, signal.SIGTERM)


def to_group(run: subprocess.Popen[str]) -> None:
    """A terminal's Ctrl-C."""
    os.killpg(run.pid, signal.SIGINT)


def test_it_saves_and_goes_on(unhurt: tuple[str, Any], tmp_path: Path) -> None:
    pauses = [harm("forward", 0, step, "linger until told to stop") for step in (4, 9, 14)]
    recipe = harmful(tmp_path, *pauses, epochs=EPOCHS)
    out, scratch = tmp_path / "run", tmp_path / "scratch"
    scratch.mkdir()
    done = 0
    for num, (send, code) in enumerate(((to_launcher, 143), (to_all, 143), (to_group, 130))):
        run = start(
            "train", recipe, "-n", "1:4", "--here", "2", "--out", out, "--json",
            *["--resume"] * (num > 0), start_new_session=True, TMPDIR=str(scratch),
        )  # fmt: skip
        until(lambda: harms_done(recipe) > num, run)  # noqa: B023
        send(run)
        stdout, stderr = run.communicate(timeout=180)
        assert run.returncode == code, stderr
        continues = [f"samepath: continuing after step {done}"] if num else []
        assert stderr.splitlines()[1:] == continues
        assert json.loads(stdout)["status"] == "interrupted"
        done = json.loads(stdout)["steps"]
        assert 5 * (num + 1) <= done < STEPS
        assert list_checkpoints(out / "checkpoints")[-1].name == f"step-{done:08d}"
        assert left_behind(out) == []
        assert list(scratch.iterdir()) == []
    result = elastic(recipe, out, 3, resume=True)
    assert (result.digest, lines(out)) == unhurt
    assert steps_begun(recipe) == list(range(STEPS))


def test_one_worker_leaves(
    unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = harmful(tmp_path, slow_seconds=0.02, epochs=EPOCHS), tmp_path / "run"

    def leave() -> None:
        until(lambda: max(steps_begun(recipe), default=0) > 3)
        os.kill(workers_of(os.getpid())[1], signal.SIGTERM)

    with meanwhile(leave):
        result = elastic(recipe, out, 3)
    assert (result.digest, lines(out), result.num_workers) == (*unhurt, 2)
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"samepath: worker 1 was stopped by SIGTERM; {GOES_ON}\n"
        "samepath: going on without it: 2 left on this machine\n",
        said,
    )
    assert steps_repeated(recipe) <= 1
    assert left_behind(out) == []


def test_when_all_has_been_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have ended, and wait for those of other machines: there is nothing left to stop. What
    is in memory goes, unless the disk took the small run.json and not the checkpoint."""
    recipe, out = harmful(tmp_path, epochs=1), tmp_path / "run"
    result = elastic(recipe, out, 1)

    def told_to_stop() -> None:
        raise Interrupted(signal.SIGTERM)

    found = training._result(RunFolder(out), told_to_stop)
    assert (found.status, found.digest, found.signal) == ("finished", result.digest, None)
    folder, forgotten = RunFolder(out), list[str]()
    monkeypatch.setattr(training, "forget", forgotten.append)
    training._forget(folder)
    assert forgotten == [folder.run_id()]
    (newest,) = list_checkpoints(folder.checkpoints)
    newest.rename(newest.with_name("step-00000001"))
    training._forget(folder)
    assert len(forgotten) == 1
