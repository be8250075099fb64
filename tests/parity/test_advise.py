"""Advice with real workers: what it measures is of this recipe, and Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samepath.engine.run.options import Options, Overrides, resolve
from samepath.insight.advise.runs import ShortRuns, ShortRunsTask, short_runs
from samepath.recipe import find_recipe
from samepath.timing.measured import read_measured

SAMEPATH = str(Path(sys.executable).with_name("samepath"))
RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))


@pytest.fixture(scope="module")
def asked() -> Options:
    return resolve(find_recipe(RECIPE), Overrides(epochs=40))


def run(options: Options, **changes: Any) -> ShortRuns:
    task: dict[str, Any] = {
        "workers": 2,
        "recipe_rate": 0.01,
        "most_rate_steps": 0,
        "rate_seconds": 60.0,
        "noise_options": options,
        "noise_seconds": 60.0,
    }
    return short_runs(ShortRunsTask(options=options, **(task | changes)))


def test_rates_are_tried_and_the_noise_scale_is_measured(asked: Options) -> None:
    found = run(asked, most_rate_steps=30, noise_options=replace(asked, steps=40))
    losses = found.losses
    assert {0.01, 0.04} <= set(losses)
    assert len(losses) % 2 == 0, "two workers, a rate each"
    assert len({seen[0] for seen in losses.values()}) == 1, "the same weights, the same batch"
    assert len({tuple(seen) for seen in losses.values()}) == len(losses)
    assert all(len(seen) == 30 for seen in losses.values())
    assert found.noise_status == "finished"
    assert found.noise_steps == 40
    assert not any("valid_loss" in line for line in found.lines)
    assert [line for line in found.lines if "train_loss" in line][-1]["noise_low"] is not None
    # together at the recipe's rate, as one worker alone did
    together = [line["train_loss"] for line in found.lines if "train_loss" in line]
    assert together[:30] == losses[0.01]


def test_no_part_goes_on_when_its_time_is_over(asked: Options) -> None:
    long = replace(asked, steps=100_000, epochs=20_000)
    found = run(asked, most_rate_steps=10_000, rate_seconds=2.0, noise_options=long,
                noise_seconds=1.0)  # fmt: skip
    assert 10 <= found.rate_steps < 10_000
    assert {len(seen) for seen in found.losses.values()} <= {found.rate_steps}
    assert found.noise_status == "interrupted"
    assert 0 < found.noise_steps < 10_000


def left(folder: Path) -> list[Path]:
    return list(folder.glob("samepath*"))  # torch leaves a folder of its own


def environment(temporary: Path) -> dict[str, str]:
    temporary.mkdir()
    return os.environ | {"TMPDIR": str(temporary)}


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [SAMEPATH, "advise", RECIPE, "--minutes", "0.1", "--out", str(out), "--json",
         "--network", "here", "--network", "summit", "--workers-per-node", "3"],
        capture_output=True, text=True, timeout=300, check=False,
        env=environment(tmp_path / "temporary"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)
    assert advice == json.loads((out / "advice.json").read_text())
    assert advice["kind"] == "advice"
    assert [curve["network"] for curve in advice["curves"]] == ["here", "summit"]
    here, summit = advice["curves"]
    assert here["rows"][0]["how"] == "measured"
    assert [row["workers"] for row in summit["rows"]] == [1, 2, 3, 4, 5]
    assert [row["nodes"] for row in summit["rows"]] == [1, 1, 1, 2, 2]
    assert summit["workers_per_node"] == 3
    assert summit["nodes"] == -(-summit["best"] // 3)
    assert advice["grain_fixed"]  # it has batch norm
    assert advice["rates"]["recipe_rate"] == 0.01
    assert len(advice["verdict"].splitlines()) == 3
    assert read_measured(out).recipe == RECIPE
    assert {file.name for file in out.iterdir()} == {
        "advice.html", "advice.json", "advice.svg", "measured.json",
    }  # fmt: skip
    assert "timing grains" in done.stderr
    assert left(tmp_path / "temporary") == []


def test_the_critical_batch_is_measured(tmp_path: Path) -> None:
    """In a folder that an interrupted command left: it is gone on with."""
    out, recipe = tmp_path / "out", tmp_path / "mine.py"
    (out / "branches").mkdir(parents=True)
    recipe.write_text(Path(RECIPE).read_text().replace("epochs=2", "epochs=3"))
    done = subprocess.run(
        [SAMEPATH, "advise", str(recipe), "--minutes", "0.1", "--out", str(out), "--json",
         "--network", "here", "--critical-batch", "measured", "--batch-sizes", "20",
         "--branch-at", "1", "--branch-epochs", "1", "--branch-seeds", "2"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)
    found = advice["measured_batch"]
    branches = [(branch["batch_size"], branch["seed"]) for branch in found["branches"]]
    assert branches == [(10, 0), (10, 1), (20, 0), (20, 1)]
    assert all(branch["curve"] for branch in found["branches"])
    assert found["critical"] in (10, 20)
    first, last = advice["verdict"].splitlines()
    assert first.startswith("On this machine (")
    assert last.count(". ") == 1
    page = (out / "advice.html").read_text()
    assert "The critical batch, measured" in page
    assert page.count("data:image/svg+xml") == 2


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [SAMEPATH, "advise", RECIPE, "--minutes", "1", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(tmp_path / "temporary") | {"SLOW_SECONDS": "0.05"},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "on 2 workers" in line or "on 1 worker" in line:
            break
    time.sleep(2.0)  # the workers are starting
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert not out.exists()
    assert left(tmp_path / "temporary") == []
