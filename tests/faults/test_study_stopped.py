"""A study that is killed or interrupted anywhere goes on, and finds what an unhurt one finds."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

RECIPE = str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py")
ARGUMENTS = (
    "--strategies", "strong,linear,stale", "--workers", "1,2,4", "--max-epochs", "8",
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


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("unhurt") / "study"
    return out, run(out)


def timed(out: Path, unhurt: Path) -> Path:
    """A folder in which everything but the training has been done."""
    out.mkdir()
    for name in ("settings.json", "clock.json"):
        shutil.copy(unhurt / name, out / name)
    return out


def lines(out: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in out.glob("runs/*/metrics.jsonl"))


def begin(out: Path, until: int) -> subprocess.Popen[str]:
    """A slow study, once its runs have written so many lines."""
    process = subprocess.Popen(
        command(out),
        env=os.environ | {"SLOW_SECONDS": "0.02"},
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


@pytest.mark.parametrize("number", range(3))
def test_killed_at_a_random_moment(
    number: int, unhurt: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = timed(tmp_path / "study", unhurt[0])
    process = begin(out, random.Random(number).randrange(1, 120))
    process.kill()
    process.communicate()
    again = run(out)
    assert again["runs"] == unhurt[1]["runs"]
    assert again["cells"] == unhurt[1]["cells"]
    assert again["verdict"] == unhurt[1]["verdict"]


def test_its_runs_end_with_it(unhurt: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out = timed(tmp_path / "study", unhurt[0])
    process = begin(out, 60)
    assert of_study(out)
    process.kill()
    process.communicate()
    limit = time.monotonic() + 10.0
    while of_study(out):
        assert time.monotonic() < limit, "runs of a study that was killed go on"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_saves_and_goes_on(
    number: signal.Signals, unhurt: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = timed(tmp_path / "study", unhurt[0])
    process = begin(out, 60)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert "the same command goes on from here" in said
    assert "Traceback" not in said
    states = {file.parent.name: json.loads(file.read_text())["status"]
              for file in out.glob("runs/*/run.json")}  # fmt: skip
    assert "interrupted" in states.values()
    assert "running" not in states.values()
    assert run(out)["runs"] == unhurt[1]["runs"]


def test_two_at_a_time_are_refused(unhurt: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out = timed(tmp_path / "study", unhurt[0])
    process = begin(out, 1)
    try:
        done = subprocess.run(command(out), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "is being run by another process" in done.stderr
    finally:
        process.kill()
        process.communicate()
