"""A study with real runs: what it finds is what the runs did, and nothing is trained twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samepath.engine.train import Request, train
from samepath.study.results import Study, from_json

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
EPOCHS = 6


def study(out: Path, *arguments: str, recipe: str = RECIPE) -> dict[str, Any]:
    """`samepath study --json` in a process of its own."""
    command = [
        str(Path(sys.executable).with_name("samepath")),
        "study",
        recipe,
        "--json",
        "--out",
        str(out),
    ]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


RACE = (
    "--strategies", "strong,weak,warmup:epochs=1,stale,noise", "--workers", "1,2,4,8",
    "--max-epochs", str(EPOCHS), "--target", "auto", "--seeds", "2",
)  # fmt: skip


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    out = tmp_path_factory.mktemp("raced") / "study"
    found = from_json(study(out, *RACE))
    assert isinstance(found, Study)
    return out, found


def copy_of(out: Path, to: Path, *, runs: bool) -> Path:
    """A study's folder with or without its runs; what was timed is timed."""
    to.mkdir()
    for name in ("settings.json", "clock.json"):
        shutil.copy(out / name, to / name)
    if runs:
        shutil.copytree(out / "runs", to / "runs")
    return to


def test_one_path_is_trained_once(raced: tuple[Path, Study]) -> None:
    out, found = raced
    folders = {run.folder for run in found.runs if run.strategy == "strong" and run.seed == 0}
    assert folders == {"runs/strong-seed0"}
    one_worker = {run.folder for run in found.runs if run.workers == 1 and run.seed == 1}
    assert one_worker == {"runs/strong-seed1"}
    assert {f"runs/{path.name}" for path in (out / "runs").iterdir()} == {
        run.folder for run in found.runs if run.folder
    }


def test_a_studys_run_is_the_run_that_train_makes(
    raced: tuple[Path, Study], tmp_path: Path
) -> None:
    out, found = raced
    record = next(r for r in found.runs if r.strategy.startswith("warmup") and r.workers == 2)
    request = Request(
        recipe=RECIPE,
        num_workers=3,
        strategy="warmup:epochs=1",
        virtual_workers=2,
        seed=record.seed,
        epochs=len(record.curve),
        target="none",
        out=tmp_path / "run",
    )
    result, _ = train(request)
    expected = json.loads((out / record.folder / "run.json").read_text())["result"]
    assert result.digest == expected["digest"]
    assert record.last is not None
    assert result.valid_loss == record.last.valid_loss
    assert record.batch_size == 20
    assert record.learning_rate == pytest.approx(0.02, rel=0.05)  # under the recipe's schedule


def test_the_target_is_what_the_sequential_runs_came_to(raced: tuple[Path, Study]) -> None:
    _, found = raced
    assert found.target.how == "auto"
    assert found.target.fraction == 0.5
    sequential = [r for r in found.runs if r.strategy == "strong" and r.workers == 1]
    assert [run.ended for run in sequential] == ["target", "target"]
    reached = [run.last.epoch for run in sequential if run.last]
    assert max(reached) == EPOCHS // 2
    assert all(run.last.valid_loss <= found.target.loss for run in sequential if run.last)  # type: ignore[operator]


def test_times_say_how_they_are_known(raced: tuple[Path, Study]) -> None:
    _, found = raced
    for run in found.runs:
        if run.ended == "impossible" or run.strategy == "noise":  # its measuring is modelled
            continue
        fits = run.workers <= 2 and run.strategy.split(":")[0] in ("strong", "weak", "warmup")
        assert run.how == ("measured" if fits or run.workers == 1 else "modelled"), run.strategy
        assert run.last is not None
        if run.how == "measured":
            key = f"{run.batch_size}x{run.workers}"
            assert run.step_seconds == found.clock.measured_step_seconds[key]
            assert run.last.seconds == pytest.approx(run.last.steps * run.step_seconds)
    (prediction,) = [p for p in found.predictions if p.strategy == "strong"]
    assert prediction.workers == 2


def test_a_batch_larger_than_the_data_is_named(raced: tuple[Path, Study]) -> None:
    _, found = raced
    impossible = [r for r in found.runs if r.ended == "impossible"]
    assert {(r.strategy, r.workers) for r in impossible} == {
        ("weak", 8), ("warmup:epochs=1", 8),
    }  # fmt: skip
    assert "a batch of 80 is larger than the data (44 examples)" in impossible[0].why
    assert found.cell("weak", 8).efficiency is None


def test_again_repeats_nothing_and_finds_the_same(
    raced: tuple[Path, Study], tmp_path: Path
) -> None:
    out, found = raced
    copy = copy_of(out, tmp_path / "copy", runs=True)
    before = {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/*")}
    again = from_json(study(copy, *RACE))
    assert isinstance(again, Study)
    assert {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/*")} == before
    assert (again.runs, again.cells, again.verdict) == (found.runs, found.cells, found.verdict)
    assert {path.name for path in copy.glob("*.png")} >= {"time_to_target.png", "pareto.png"}


def test_a_lower_target_goes_on_with_the_same_runs(
    raced: tuple[Path, Study], tmp_path: Path
) -> None:
    out, found = raced
    lowest = min(r.best_loss for r in found.runs if r.strategy == "strong" and r.seed == 0)
    arguments = ("--strategies", "weak", "--workers", "1,2", "--max-epochs", str(EPOCHS))
    lower = ("--target", repr(lowest))
    continued = from_json(study(copy_of(out, tmp_path / "a", runs=True), *arguments, *lower))
    afresh = from_json(study(copy_of(out, tmp_path / "b", runs=False), *arguments, *lower))
    assert isinstance(continued, Study)
    assert isinstance(afresh, Study)
    assert continued.runs == afresh.runs
    assert continued.target.how == "given"


def test_the_largest_rate_converges_and_the_next_does_not(
    raced: tuple[Path, Study], tmp_path: Path
) -> None:
    out = tmp_path / "largest"
    copy_of(raced[0], out, runs=False)
    settings = json.loads((out / "settings.json").read_text())
    (out / "settings.json").write_text(json.dumps(settings | {"learning_rate": "largest"}))
    found = from_json(
        study(out, "--strategies", "linear", "--workers", "1,2", "--max-epochs", str(EPOCHS),
              "--target", "auto", "--learning-rate", "largest")
    )  # fmt: skip
    assert isinstance(found, Study)
    assert found.rate.how == "largest"
    assert found.rate.value > 0.01  # the recipe's
    converged = {tried.learning_rate: tried.converged for tried in found.rate.tried}
    assert converged[found.rate.value]
    higher = [rate for rate in converged if rate > found.rate.value]
    assert higher
    assert not any(converged[rate] for rate in higher)
    linear = next(run for run in found.runs if run.strategy == "linear" and run.workers == 2)
    assert linear.learning_rate == pytest.approx(2 * found.rate.value)


def test_a_target_that_is_never_reached(raced: tuple[Path, Study], tmp_path: Path) -> None:
    out = copy_of(raced[0], tmp_path / "never", runs=True)
    samepath = str(Path(sys.executable).with_name("samepath"))
    done = subprocess.run(
        [samepath, "study", RECIPE, "--out", str(out), "--workers", "1,2", "--max-epochs",
         str(EPOCHS), "--target", "0.0001"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert "--target 0.0001: the sequential run did not reach it in 6 epochs" in said
    lowest = min(
        float(line["valid_loss"])
        for line in map(
            json.loads, (out / "runs/strong-seed0/metrics.jsonl").read_text().splitlines()
        )
        if "valid_loss" in line
    )
    assert f"the lowest it reached is {lowest:.4g}" in said
    assert not (out / "study.json").exists()


def test_batch_sizes_at_several_rates(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    content = study(
        out, "--batch-sizes", "4,12,44", "--learning-rates", "0.01,0.1", "--max-epochs", "2"
    )
    assert content["kind"] == "grid"
    assert content["metric"] == "accuracy"
    runs = {(run["batch_size"], run["learning_rate"]): run for run in content["runs"]}
    assert set(runs) == {(size, rate) for size in (4, 12, 44) for rate in (0.01, 0.1)}
    assert [epoch["steps"] for epoch in runs[12, 0.1]["curve"]] == [4, 8]
    assert runs[44, 0.01]["curve"][0]["learning_rate"] == 0.01
    assert "accuracy" in runs[4, 0.01]["curve"][-1]["metrics"]
    assert (out / "preferred_batch.png").is_file()
    lines = (out / "study.csv").read_text().splitlines()
    assert len(lines) == 1 + 6
