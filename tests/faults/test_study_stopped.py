"""A study that is killed or interrupted anywhere goes on, and finds what an unhurt one finds."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from measured_steps import made_clock

from samepath.engine.launch.reports import Interrupted
from samepath.study import runner
from samepath.study.opening import StudyRequest, entered, look_into
from samepath.study.runner import PlannedRun

RECIPE = str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py")
ARGUMENTS = (
    "--strategies", "strong,linear,stale", "--workers", "1,2,4", "--max-epochs", "5",
    "--target", "auto",
)  # fmt: skip
PATIENCE_SECONDS = 120.0


def command(out: Path) -> list[str]:
    samepath = str(Path(sys.executable).with_name("samepath"))
    return [samepath, "study", RECIPE, "--json", "--out", str(out), *ARGUMENTS]


def run(out: Path) -> dict[str, Any]:
    done = subprocess.run(command(out), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


CLOCK = made_clock(grain_size=2, grain_fixed=True)


def timed(out: Path) -> Path:
    """A study's folder in which the timing has been done."""
    request = StudyRequest(recipe=RECIPE, out=out)
    opened = look_into(request)
    with entered(opened, request, "race"):
        steps = [(batch, k) for batch in (10, 20) for k in (1, 2)]
        (out / "clock.json").write_text(json.dumps({"steps": steps, "facts": asdict(CLOCK)}))
    return out


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(timed(tmp_path_factory.mktemp("unhurt") / "study"))


def lines(out: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in out.glob("runs/*/metrics.jsonl"))


def begin(out: Path, until: int, slow_seconds: float = 0.02) -> subprocess.Popen[str]:
    """A slow study, once its runs have written so many lines."""
    process = subprocess.Popen(
        command(out),
        env=os.environ | {"SLOW_SECONDS": str(slow_seconds)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + PATIENCE_SECONDS
    while lines(out) < until:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit, "it does not get on"
        time.sleep(0.02)
    return process


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


@pytest.mark.parametrize(
    ("num_lines", "slow_seconds"),
    [(8, 0.5), (50, 0.02)],  # the first: no run ends by itself while we look
)
def test_killed(
    num_lines: int, slow_seconds: float, unhurt: dict[str, Any], tmp_path: Path
) -> None:
    out = timed(tmp_path / "study")
    process = begin(out, num_lines, slow_seconds)
    assert of_study(out)
    process.kill()
    process.communicate()
    limit = time.monotonic() + 10.0
    while of_study(out):
        assert time.monotonic() < limit, "runs of a study that was killed go on"
        time.sleep(0.05)
    again = run(out)
    assert again["runs"] == unhurt["runs"]
    assert again["cells"] == unhurt["cells"]
    assert again["verdict"] == unhurt["verdict"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_saves_and_goes_on(
    number: signal.Signals, unhurt: dict[str, Any], tmp_path: Path
) -> None:
    out = timed(tmp_path / "study")
    process = begin(out, 45)
    process.send_signal(number)
    said = process.communicate(timeout=180)[1]
    assert process.returncode == 128 + number
    assert "the same command goes on from here" in said
    assert "Traceback" not in said
    states = [json.loads(file.read_text())["status"] for file in out.glob("runs/*/run.json")]
    assert "interrupted" in states
    assert "running" not in states
    if number == signal.SIGINT:
        assert run(out)["runs"] == unhurt["runs"]


def begin_a_run(out: Path) -> None:
    """In a process of the study's: its folder says that it runs, and there is no step yet."""

    def begin(request: Any) -> None:
        try:
            (out / "status").write_text("running")
            time.sleep(60)
        except Interrupted:
            (out / "status").write_text("interrupted")
            raise

    runner.train = begin  # type: ignore[assignment,attr-defined]
    nothing: Any = None
    runner._work(nothing, [0], nothing)


def test_interrupted_before_a_run_has_made_a_step(tmp_path: Path) -> None:
    run = multiprocessing.get_context("forkserver").Process(target=begin_a_run, args=(tmp_path,))
    run.start()
    limit = time.monotonic() + PATIENCE_SECONDS
    while not (tmp_path / "status").exists():
        assert run.is_alive()
        assert time.monotonic() < limit, "it does not get on"
        time.sleep(0.02)
    os.kill(run.pid or 0, signal.SIGTERM)
    run.join(30)
    assert run.exitcode == 0
    assert (tmp_path / "status").read_text() == "interrupted"


def test_a_recipe_that_is_edited_meanwhile(tmp_path: Path) -> None:
    """Runs that begin later are of the recipe that the study began with."""
    recipe = Path(shutil.copy(RECIPE, tmp_path / "mine.py"))
    request = StudyRequest(recipe=str(recipe), out=tmp_path / "study", max_epochs=1)
    opened = look_into(request)
    recipe.write_text("def recipe(: half a file")
    job = PlannedRun(folder="runs/a", label="a", options=opened.options)
    runner.train_runs([job], opened, request, Mock())
    assert runner.status_of(opened.folder, job) == "finished"


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    out = timed(tmp_path / "study")
    process = begin(out, 1, slow_seconds=0.3)
    try:
        done = subprocess.run(
            command(out), capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 2
        assert "is being run by another process" in done.stderr
    finally:
        process.kill()
        process.communicate()
