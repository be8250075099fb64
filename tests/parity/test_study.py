"""A study with real runs: what it finds is what the runs did, and nothing is trained twice."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import samepath
from study_files import checked_study

import paper_study
from samepath.console import SilentWatcher
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.study import race as race_of_a_study
from samepath.study import runner
from samepath.study.opening import StudyRequest, entered, look_into
from samepath.study.results import Study, from_json
from samepath.study.runner import PlannedRun

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
EPOCHS = 6


def study(out: Path, *arguments: str, recipe: str = RECIPE) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        samepath("study", recipe, "--json", "--out", out, *arguments)
    )
    assert checked_study(out / "study.json") == content
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
    assert [c.efficiency for c in found.cells if (c.strategy, c.workers) == ("weak", 8)] == [None]


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
    assert {path.name for path in copy.glob("*.svg")} >= {"time_to_target.svg", "pareto.svg"}


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
    asked = ("--workers", "1,2", "--max-epochs", EPOCHS, "--target", "0.0001")
    said = samepath("study", RECIPE, "--out", out, *asked, code=2).splitlines()[-1]
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


FAIR = (
    "--strategies", "warmup", "--workers", "1,2", "--max-epochs", str(EPOCHS),
    "--target", "tuned", "--tune", "3", "--studies", "2", "--hold", "2",
)  # fmt: skip

ASKED: dict[str, Any] = {  # the same, in Python
    "strategies": ("warmup",), "workers": (1, 2), "max_epochs": EPOCHS,
    "target": "tuned", "tune": 3, "studies": 2, "hold": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def tuned(
    raced: tuple[Path, Study], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Study]:
    """A study that goes on, fairly, in the folder of one that did not tune."""
    out = copy_of(raced[0], tmp_path_factory.mktemp("tuned") / "study", runs=True)
    found = from_json(study(out, *FAIR))
    assert isinstance(found, Study)
    return out, found


def losses_of(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [float(line["valid_loss"]) for line in lines if "valid_loss" in line]


def test_every_strategy_gets_as_many_trials(tuned: tuple[Path, Study]) -> None:
    out, found = tuned
    assert found.tuning is not None
    assert found.tuning.num_trials == 3
    places = {(t.study, t.strategy, t.workers) for t in found.tuning.trials}
    assert places == {(n, name, k) for n in (0, 1) for name in ("strong", "warmup") for k in (1, 2)}
    assert all(len(t.tried) == 3 for t in found.tuning.trials)
    # the first is what is prescribed; it is the run with nothing changed
    for trials in found.tuning.trials:
        assert trials.tried[0].learning_rate == 0.01
        prescribed = "strong" if trials.workers == 1 else trials.strategy
        assert trials.tried[0].strategy == prescribed
    one = [t for t in found.tuning.trials if t.workers == 1 and t.study == 0]
    assert len({t.tried for t in one}) == 1, "with one worker they are all one path"
    for n in (0, 1):
        assert (out / f"runs/warmup-k2-seed{10_000 + n}").is_dir()
    # no seed that trials were chosen with is reported
    assert found.tuning.seeds == (10_000, 10_001)
    assert {run.seed for run in found.runs} == {0, 1}
    assert {run.study: run.seed for run in found.runs} == {0: 0, 1: 1}


def test_the_chosen_trial_is_the_soonest_and_is_trained_again(
    tuned: tuple[Path, Study], tmp_path: Path
) -> None:
    _, found = tuned
    assert found.tuning is not None
    runs = {(r.study, r.strategy, r.workers, r.tuned): r for r in found.runs}
    assert len(runs) == len(found.runs) == 2 * 2 * 2 * 2
    others = [t for t in found.tuning.trials if t.chosen]
    assert others, "at least one strategy is better tuned, or the test shows nothing"
    for trials in found.tuning.trials:
        chosen = trials.tried[trials.chosen]
        assert chosen.seconds == min(trial.seconds for trial in trials.tried)
        folder = runs[trials.study, trials.strategy, trials.workers, True].folder
        prescribed = runs[trials.study, trials.strategy, trials.workers, False].folder
        assert (folder == prescribed) == (trials.chosen == 0)
    trials = others[-1]
    chosen = trials.tried[trials.chosen]
    record = runs[trials.study, trials.strategy, trials.workers, True]
    assert record.last is not None
    request = Request(
        recipe=RECIPE,
        num_workers=2,
        strategy=chosen.strategy,
        virtual_workers=trials.workers,
        learning_rate=chosen.learning_rate,
        seed=record.seed,
        epochs=record.last.epoch,
        target="none",
        out=tmp_path / "run",
    )
    assert train(request)[0].valid_loss == record.last.valid_loss


def test_trials_that_end_early_change_no_choice(
    tuned: tuple[Path, Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same study with trials that go on: a trial that was ended is trained to its end."""
    out, found = tuned
    assert found.tuning is not None
    given = [trial.epochs for trials in found.tuning.trials for trial in trials.tried]
    assert min(given) < EPOCHS, "at least one trial was ended, or the test shows nothing"
    assert all(trials.tried[0].epochs == EPOCHS for trials in found.tuning.trials)
    monkeypatch.setattr(race_of_a_study, "ended_before", lambda latest, entry, clock: entry)
    request = StudyRequest(recipe=RECIPE, out=copy_of(out, tmp_path / "whole", runs=True), **ASKED)
    whole = race_of_a_study.race(request, SilentWatcher())
    assert whole.tuning is not None
    assert {t.epochs for trials in whole.tuning.trials for t in trials.tried} == {EPOCHS}
    chosen = [(t.study, t.strategy, t.workers, t.chosen) for t in found.tuning.trials]
    assert [(t.study, t.strategy, t.workers, t.chosen) for t in whole.tuning.trials] == chosen
    assert (whole.runs, whole.cells) == (found.runs, found.cells)


def test_the_tuned_target_is_the_median_of_the_best_trials_reruns(
    tuned: tuple[Path, Study],
) -> None:
    out, found = tuned
    epochs = 5  # three quarters of six, upwards
    again = [path for path in (out / "runs").iterdir() if path.name.endswith(tuple(
        f"seed{20_000 + n}" for n in range(5)
    ))]  # fmt: skip
    assert len(again) == 5
    assert len({path.name.rpartition("-")[0] for path in again}) == 1, "of one trial"
    lowest = sorted(min(losses_of(path)[:epochs]) for path in again)
    assert found.target.loss == lowest[2]
    assert (found.target.how, found.target.fraction, found.target.hold) == ("tuned", 0.75, 2)
    trial = again[0].name.rpartition("-")[0]
    tried = {
        path.name: min(losses_of(path)[:epochs])
        for path in (out / "runs").iterdir()
        if path.name.startswith("strong") and path.name.endswith("seed10000")
    }
    assert len(tried) == 3
    assert min(tried, key=lambda name: tried[name]) == f"{trial}-seed10000"


def test_a_target_is_held_for_two_evaluations(tuned: tuple[Path, Study]) -> None:
    _, found = tuned
    reached = [run for run in found.runs if run.reached]
    assert reached
    for run in found.runs:
        within = [e.valid_loss is not None and e.valid_loss <= found.target.loss for e in run.curve]
        pairs = list(itertools.pairwise(within))
        assert run.reached == any(map(all, pairs))
        assert not any(map(all, pairs[:-1])), "the curve ends there"


def test_a_tuned_study_goes_on_and_finds_the_same(tuned: tuple[Path, Study]) -> None:
    out, found = tuned
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/run.json")}
    again = from_json(study(out, *FAIR))
    assert isinstance(again, Study)
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/run.json")} == before
    assert (again.runs, again.cells, again.tuning) == (found.runs, found.cells, found.tuning)
    assert again.verdict.startswith("Tuned with 3 trials each: a loss of ")


def test_a_study_goes_on_from_what_is_kept_of_its_runs(
    tuned: tuple[Path, Study], tmp_path: Path
) -> None:
    """As `benchmarks/paper_study.py` does on another machine: nothing is trained again."""
    out, found = tuned
    file, copy = tmp_path / "kept.jsonl", copy_of(out, tmp_path / "copy", runs=False)
    number = paper_study.save(out, file)
    assert number == len(list(out.glob("runs/*")))
    assert paper_study.restore(copy, file) == number
    request = StudyRequest(recipe=RECIPE, out=copy, **ASKED)
    again = race_of_a_study.race(request, SilentWatcher())
    assert not list(copy.glob("runs/*/checkpoints"))
    assert (again.runs, again.cells, again.tuning) == (found.runs, found.cells, found.tuning)
    shutil.rmtree(copy / "runs")
    assert paper_study.save(copy, file) == number, "what is kept stays"
    kept = map(json.loads, file.read_text().splitlines())
    measured = [line["run"] for line in kept if "measured" in line.get("epochs", {})]
    assert any("noise" in run for run in measured), "what a strategy has measured is kept too"


def test_several_recipes_end_with_a_profile(raced: tuple[Path, Study], tmp_path: Path) -> None:
    recipes = [Path(shutil.copy(RECIPE, tmp_path / f"{name}.py")) for name in ("one", "two")]
    out = tmp_path / "both"
    for recipe in recipes:  # what was timed is timed
        request = StudyRequest(recipe=str(recipe), out=out / recipe.stem)
        with entered(look_into(request), request, "race"):
            shutil.copy(raced[0] / "clock.json", request.folder)
    asked = ("--strategies", "weak", "--workers", "1,2", "--max-epochs", "2", "--target", "auto")
    content = json.loads(samepath("study", *recipes, "--json", "--out", out, *asked))
    assert content["kind"] == "profiles"
    assert [Path(recipe).stem for recipe in content["recipes"]] == ["one", "two"]
    own = {p["strategy"]: p for p in content["profiles"] if p["workers"] is None}
    for place, recipe in enumerate(recipes):
        found = checked_study(out / recipe.stem / "study.json")
        times = {
            name: min(
                cell["seconds"]["median"]
                for cell in found["cells"]
                if cell["strategy"] == name and cell["seconds"] is not None
            )
            for name in own
        }
        for name, profile in own.items():
            assert profile["ratios"][place] == times[name] / min(times.values())
    assert {path.name for path in out.iterdir()} == {
        "one", "two", "profiles.json", "profile.png", "report.html",
    }  # fmt: skip
    page = (out / "report.html").read_text()
    assert "Performance over all recipes" in page
    assert "two: time to a validation loss" in page


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
    assert (out / "preferred_batch.svg").is_file()
    lines = (out / "study.csv").read_text().splitlines()
    assert len(lines) == 1 + 6


def test_a_run_goes_on_with_cores_that_become_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long run begins with one of two cores. When the short one has ended it is stopped, and
    goes on with both, to the same bits."""
    monkeypatch.setattr(runner, "SHARING_SECONDS", 0.5)
    slow = tmp_path / "slow.py"
    text = Path(RECIPE).read_text()
    slow.write_text(text.replace('os.environ.get("SLOW_SECONDS", "0")', '"0.03"'))
    assert slow.read_text() != text
    request = StudyRequest(recipe=str(slow), out=tmp_path / "study")
    opened = look_into(request)
    short, long = (
        PlannedRun(folder=f"runs/{n}", label=str(n), options=replace(opened.options, epochs=n))
        for n in (1, 8)
    )
    runner.train_runs([short, long], opened, request, SilentWatcher(), cores=2)
    found = RunFolder(tmp_path / "study" / long.folder).read()
    assert [start["num_workers"] for start in found["starts"]] == [1, 2]
    expected, _ = train(Request(recipe=RECIPE, num_workers=1, epochs=8, out=tmp_path / "alone"))
    assert found["result"]["digest"] == expected.digest


def test_each_recipe_of_a_job_has_a_folder_and_a_file_of_its_own(tmp_path: Path) -> None:
    profile, paper = paper_study.JOBS["profile"], paper_study.JOBS["paper"]
    places = {folder: file.name for folder, file in profile.places(tmp_path)}
    assert places == {
        tmp_path / name: f"profile_study_{name}.jsonl"
        for name in ("digits", "cifar10_part", "nodules-small")
    }
    assert [place[0] for place in paper.places(tmp_path)] == [tmp_path]
    for job in (profile, paper):
        assert (Path(paper_study.PAGES).read_text()).count(f'"{job.page}"') == 1


BRANCHES = (
    "--strategies", "strong", "--workers", "1", "--max-epochs", "50", "--target", "auto:0.1",
    "--critical-batch", "measured",
)  # fmt: skip


def test_the_critical_batch_of_a_study_is_measured_by_branches_of_its_sequential_run(
    tmp_path: Path,
) -> None:
    out = tmp_path / "study"
    found = study(out, *BRANCHES)
    batch = found["measured_batch"]
    assert {branch["batch_size"] for branch in batch["branches"]} == {10, 20}
    assert (batch["base_batch"], batch["base_epochs"], batch["base_steps"]) == (10, 25, 125)
    page = (out / "report.html").read_text()
    assert "<h2>The critical batch, measured</h2>" in page
    assert "Branches after epoch 25 (3 orders of the data) put the critical batch at" in page
    assert (out / "critical_batch.svg").is_file()

    def losses(folder: Path) -> list[float]:
        lines = RunFolder(folder).read_metrics()
        return [line["train_loss"] for line in lines if "learning_rate" in line]

    sequential = losses(out / "runs" / "strong-seed0")
    base = losses(out / "branches" / "runs" / "base")
    both = min(len(sequential), len(base))
    assert both > 10
    assert base[:both] == sequential[:both], "it is on the sequential run's path"

    (out / "study.json").unlink()
    shutil.rmtree(out / "branches" / "runs" / "batch20-seed1")
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("run.json")}
    assert study(out, *BRANCHES)["measured_batch"] == batch
    again = {path: path.stat().st_mtime_ns for path in out.rglob("run.json")}
    assert again.items() > kept.items(), "nothing else is trained again"
