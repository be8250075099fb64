"""Folds that are killed and interrupted go on, and end as unhurt ones do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from elastic_runs import SAMEPATH, num_lines, until

from samepath.engine.train import Request, train

RECIPE = Path(__file__).parents[1] / "parity" / "folds_recipe.py"


def start(out: Path, slow_seconds: float) -> subprocess.Popen[str]:
    arguments = ("--folds", "2", "--groups", "patient", "-n", "2", "--json", "--out", out)
    return subprocess.Popen(
        [SAMEPATH, "folds", RECIPE, *arguments],
        env=os.environ | {"SLOW_SECONDS": str(slow_seconds)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(out: Path) -> int:
    return sum(num_lines(run) for run in out.glob("runs/*"))


def test_killed_and_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "folds"
    killed = start(out, 0.2)
    until(lambda: lines(out) >= 2, killed)
    killed.kill()
    killed.communicate()
    stopped = start(out, 0.1)
    until(lambda: lines(out) >= 6, stopped)
    stopped.send_signal(signal.SIGINT)
    said = stopped.communicate()[1]
    assert stopped.returncode == 130, said
    assert "the same command goes on from here" in said
    assert (out / "splits").is_dir()
    assert not (out / "predictions.npz").exists()
    stdout, stderr = (last := start(out, 0)).communicate()
    assert last.returncode == 0, stderr
    for run in json.loads(stdout)["runs"]:
        name = Path(run["folder"]).name
        keep = str(out / "splits" / f"{name}.csv")
        request = Request(recipe=str(RECIPE), keep=keep, num_workers=1, out=tmp_path / name)
        assert run["digest"] == train(request)[0].digest
