"""Which runs a study needs, and what its command line refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from commands import error_line
from measured_steps import made_clock

from samepath.cli import main
from samepath.engine.run.options import Options, Overrides, resolve
from samepath.recipe import find_recipe
from samepath.study.opening import StudyRequest, look_into
from samepath.study.race import ended_before, file_name, race_entries, same_as_strong
from samepath.study.runner import PlannedRun, request_for
from samepath.timing.model import Clock


@pytest.fixture(scope="module")
def options() -> Options:
    return resolve(find_recipe("digits"), Overrides(epochs=4))


@pytest.mark.parametrize(
    ("strategy", "k", "same"),
    [
        ("strong", 32, True),
        ("weak", 1, True),
        ("weak", 2, False),
        ("linear", 1, True),
        ("warmup", 1, True),
        ("sqrt-warmup:epochs=1", 2, False),
        ("stale", 1, True),
        ("stale:lag=0", 8, True),
        ("stale", 2, False),
        ("asynchronous", 1, True),
        ("asynchronous:bound=0", 8, True),
        ("lamb", 1, False),
        ("decay:milestones=2", 1, False),
        ("decay:milestones=4", 8, True),  # after the last of four epochs
        ("growth:milestones=2", 8, False),
        ("curvature", 2, False),
    ],
)
def test_who_keeps_the_sequential_path(strategy: str, k: int, same: bool) -> None:
    assert same_as_strong(strategy, k, epochs=4) is same


def test_entries_share_paths(options: Options) -> None:
    entries = race_entries(options, ["strong", "weak", "linear"], [1, 2, 4, 64], [0, 1])
    assert len(entries) == 3 * 4 * 2
    trained = {entry.run.folder for entry in entries if entry.run is not None}
    assert trained == {
        f"runs/{name}-seed{seed}"
        for seed in (0, 1)
        for name in ("strong", "weak-k2", "weak-k4", "linear-k2", "linear-k4")
    }
    none = [entry for entry in entries if entry.run is None]
    assert {(entry.strategy, entry.workers) for entry in none} == {("weak", 64), ("linear", 64)}
    assert all("larger than the data" in entry.why for entry in none)


def test_rates_have_folders_of_their_own(options: Options) -> None:
    (entry, *_) = race_entries(replace(options, learning_rate=0.125), [], [1], [0])
    assert entry.run is not None
    assert entry.run.folder == "runs/strong-rate0.125-seed0"
    assert file_name("warmup:epochs=10") == "warmup-epochs-10"
    assert file_name("../mine.py") == "..-mine.py"


def test_a_trial_has_the_epochs_that_end_before_the_best_one(options: Options) -> None:
    clock = Clock(made_clock(grain_size=options.grain_size, grain_fixed=True))
    (entry,) = race_entries(options, [], [1], [0])
    step_seconds, _ = clock.step_seconds(batch_size=options.batch_size, workers=1)
    epoch = options.plan.steps_per_epoch * step_seconds
    for latest, epochs in ((0.0, 1), (1.5 * epoch, 1), (3.5 * epoch, 3), (9 * epoch, 4)):
        ended = ended_before(latest, entry, clock)
        assert ended.run is not None
        assert (ended.options.epochs, ended.run.options.epochs) == (epochs, epochs)
    assert ended_before(math.inf, entry, clock) is entry
    (_, measured) = race_entries(options, ["noise"], [2], [0])[-2:]
    assert measured.options.strategy == "noise"
    assert ended_before(epoch, measured, clock) is measured, "what it will do is not known"


def test_what_shapes_a_path_reaches_the_run(options: Options, tmp_path: Path) -> None:
    request = StudyRequest(recipe="digits", out=tmp_path / "study")
    own = replace(options, exact=False, compile=True, threads=3, seed=7, learning_rate=0.5)
    run = PlannedRun(folder="runs/a", label="a", options=own)
    asked = request_for(run, look_into(request), request, workers=1)
    for name in (
        "exact",
        "compile",
        "threads",
        "seed",
        "learning_rate",
        "batch_size",
        "grain_size",
    ):
        assert getattr(asked, name) == getattr(own, name), name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategies", "strong,liner"], ["unknown strategy 'liner'", "did you mean 'linear'?"]),
        (["--strategies", ","], ["names nothing"]),
        (["--strategies", "warmup:epoch=3"], ["no parameter 'epoch=3'", "epochs"]),
        (["--workers", "1,two"], ["--workers 1,two", "'two'", "such as 1,2,4"]),
        (["--workers", "0,1"], ["'0'", "at least 1"]),
        (["--workers", "1,-2"], ["'-2'"]),
        (["--target", "low"], ["--target low", "auto"]),
        (["--target", "auto:2"], ["--target auto:2"]),
        (["--seeds", "0"], ["--seeds 0"]),
        (["--tune", "0"], ["--tune 0", "at least 2 trials"]),
        (["--tune", "1"], ["--tune 1", "leave it out"]),
        (["--studies", "0"], ["--studies 0", "at least 1"]),
        (["--hold", "0"], ["--hold 0", "at least 1"]),
        (["--hold", "11"], ["--hold 11", "--patience 10", "longer patience"]),
        (["--target", "tuned"], ["--target tuned", "add --tune N"]),
        (["--studies", "101", "--seeds", "100"], ["--studies 101 of --seeds 100", "fewer"]),
        (["--batch-sizes", "64", "--tune", "3"], ["leave --tune out"]),
        (
            ["--batch-sizes", "64", "--learning-rate", "0.1"],
            ["--learning-rate ", "--learning-rates"],
        ),
        (["--batch-sizes", "64", "--batch-size", "32"], ["--batch-size ", "all sizes"]),
        (["--batch-sizes", "64", "--workers", "1,2"], ["--workers", "leave --workers out"]),
        (["--batch-sizes", "64", "--strategies", "weak"], ["leave --strategies out"]),
        (["--batch-sizes", "64", "--target", "0.1"], ["leave --target out"]),
        (["--batch-sizes", "64", "--network", "1GbE"], ["leave --network out"]),
        (["--batch-sizes", "64", "--patience", "3"], ["leave --patience out"]),
        (["--max-epochs", "0"], ["--epochs 0", "at least 1"]),
        (["--learning-rate", "-1"], ["--learning-rate -1", "largest"]),
        (["--network", "1GB"], ["1GB"]),
        (["--learning-rates", "0.1"], ["--learning-rates needs --batch-sizes"]),
        (["--batch-sizes", "16,4096"], ["4096", "larger than the data (1437 examples)"]),
        (["--batch-size", "4096"], ["4096", "larger than the data"]),
        (["--out", "there.txt"], ["there.txt is a file"]),
        (["--out", "full"], ["full is not empty and holds no study"]),
        # several recipes
        (["digits"], ["two recipes are called 'digits'"]),
        (["nodules-smal"], ["nodules-smal"]),
        (["nodules-small", "--out", "there.txt"], ["there.txt is a file"]),
        (["nodules-small", "--out", "full"], ["full holds file", "another folder"]),
        (["nodules-small", "--target", "0.1"], ["--target LOSS is for one recipe"]),
        (["nodules-small", "--data", "x"], ["--data is for one recipe"]),
        (["nodules-small", "--grain", "2"], ["--grain is for one recipe"]),
        (["nodules-small", "--learning-rate", "1"], ["--learning-rate 1", "largest"]),
        (["nodules-small", "--strategies", "liner"], ["unknown strategy 'liner'"]),
    ],
)
def test_bad_input(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.txt").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["study", "digits", *arguments])
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert out == ""
    said = error_line(err)
    for word in words:
        assert word in said
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "there.txt"]


def test_another_studys_folder_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "study"
    out.mkdir()
    settings = '{"kind": "race", "recipe": "nodules-small", "data": null, "batch_size": 32}'
    (out / "settings.json").write_text(settings)
    with pytest.raises(SystemExit) as ended:
        main(["study", "digits", "--out", "study"])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert "holds another study: recipe (was 'nodules-small', now 'digits')" in said
    assert [path.name for path in out.iterdir()] == ["settings.json"]
    assert (out / "settings.json").read_text() == settings
