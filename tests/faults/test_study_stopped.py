"""A study that is killed or interrupted anywhere goes on, and finds what an unhurt one finds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from elastic_runs import RECIPE, SAMEPATH, until
from measured_steps import made_clock

from samepath.study import runner
from samepath.study.opening import StudyRequest, entered, look_into
from samepath.study.runner import PlannedRun

LIMIT_SECONDS = 300
ARGUMENTS = (
    "--strategies", "strong,linear,stale", "--workers", "1,2,4", "--max-epochs", "5",
    "--target", "auto",
)  # fmt: skip
CLOCK = made_clock(grain_size=2, grain_fixed=True)


def timed(out: Path) -> Path:
    """A study's folder in which the timing has been done."""
    request = StudyRequest(recipe=str(RECIPE), out=out)
    with entered(look_into(request), request, "race"):
        steps = [(batch, k) for batch in (10, 20) for k in (1, 2)]
        (out / "clock.json").write_text(json.dumps({"steps": steps, "facts": asdict(CLOCK)}))
    return out


def start(out: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SAMEPATH, "study", RECIPE, "--json", "--out", out, *ARGUMENTS],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def found(study: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = study.communicate()
    assert study.returncode == 0, stderr
    content: dict[str, Any] = json.loads(stdout)
    return {name: content[name] for name in ("runs", "cells", "verdict")}


def lines(out: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in out.glob("runs/*/metrics.jsonl"))


def of_study(out: Path) -> list[int]:
    """Processes that still work for a study in this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(link) for link in (place / "fd").iterdir()]
        except OSError:
            continue  # gone meanwhile, or not ours
        if any(link.startswith(str(out)) for link in links):
            found.append(int(place.name))
    return found


def states(out: Path) -> set[str]:
    return {json.loads(file.read_text())["status"] for file in out.glob("runs/*/run.json")}


def stop(study: subprocess.Popen[str], number: signal.Signals, when: Callable[[], bool]) -> None:
    """It saves, and says how to go on."""
    until(when, study)
    study.send_signal(number)
    said = study.communicate()[1]
    assert study.returncode == 128 + number
    assert "the same command goes on from here" in said
    assert "Traceback" not in said


def test_stopped_again_and_again(tmp_path: Path) -> None:
    unhurt = start(timed(tmp_path / "unhurt"))
    out = timed(tmp_path / "study")

    # before a run has made a step; another is refused meanwhile
    first = start(out, SAMEPATH_FAULT="begun=sleep 120")
    until(lambda: states(out) == {"running"}, first)
    second = start(out)
    assert "is being run by another process" in second.communicate()[1]
    assert second.returncode == 2
    stop(first, signal.SIGTERM, lambda: True)
    assert states(out) == {"interrupted"}

    killed = start(out, SLOW_SECONDS="0.1")  # no run ends by itself while we look
    until(lambda: lines(out) >= 8, killed)
    assert of_study(out)
    killed.kill()
    killed.communicate()
    assert until(lambda: not of_study(out)) < 10, "runs of a study that was killed go on"

    stop(start(out, SLOW_SECONDS="0.02"), signal.SIGINT, lambda: lines(out) >= 45)
    assert "interrupted" in states(out)
    assert "running" not in states(out)
    assert found(start(out)) == found(unhurt)


def test_a_recipe_that_is_edited_meanwhile(tmp_path: Path) -> None:
    """Runs that begin later are of the recipe that the study began with."""
    recipe = Path(shutil.copy(RECIPE, tmp_path / "mine.py"))
    request = StudyRequest(recipe=str(recipe), out=tmp_path / "study", max_epochs=1)
    opened = look_into(request)
    recipe.write_text("def recipe(: half a file")
    job = PlannedRun(folder="runs/a", label="a", options=opened.options)
    runner.train_runs([job], opened, request, Mock())
    assert runner.status_of(opened.folder, job) == "finished"
