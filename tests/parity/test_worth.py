"""`samepath worth` with real runs: the same bits at one and at three workers, and after a stop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from samepath.console import SilentWatcher
from samepath.errors import UserError
from samepath.recipes.nodules.worth.page import arms_table, finish_worth
from samepath.recipes.nodules.worth.runs import Worth, WorthRequest, from_json, measure_worth
from samepath.study.opening import StudyRequest

ASKED = WorthRequest(
    generator="nodules-small",
    arms=("real", "generated"),
    percents=(100,),
    folds=2,
    seeds=1,
    epochs=1,
    generator_epochs=1,
)


class Stopping(SilentWatcher):
    """Counts what is trained, and stops before the classifiers."""

    def __init__(self, *, stops: bool = False) -> None:
        self.stops = stops
        self.trained: list[str] = []

    def progress(self, what: str, done: float, total: float | None, facts: str = "") -> None:
        if self.stops and what == "data of the classifiers":
            raise KeyboardInterrupt

    def end(self, what: str, said: str | None = None) -> None:
        self.trained += [what] if "fold" in what else []


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large and small balls."""
    path = tmp_path_factory.mktemp("worth") / "balls.npz"
    random, label = np.random.default_rng(0), np.arange(120) % 2
    away = np.linalg.norm(np.indices((8, 8, 8)) - 3.5, axis=0)
    radius = 1.6 + label + random.normal(0, 0.2, 120)
    mask = away < radius[:, None, None, None]
    volume = np.where(mask, 200, 20) + random.integers(0, 20, mask.shape)
    np.savez(path, volume=volume.astype(np.uint8), mask=mask, label=label)
    return path


def measured(data: Path, out: Path, workers: int, watcher: SilentWatcher | None = None) -> Worth:
    request = StudyRequest(recipe="nodules-classifier", data=str(data), out=out)
    return measure_worth(request, ASKED, watcher or SilentWatcher(), num_workers=workers)


def test_same_bits_at_any_number_of_workers_and_after_a_stop(data: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(data, tmp_path / "1", 1, stopped := Stopping(stops=True))
    assert len(stopped.trained) == 2  # the generators
    alone = measured(data, tmp_path / "1", 1, went_on := Stopping())
    assert len(went_on.trained) == 4  # the classifiers alone
    more = measured(data, tmp_path / "3", 3)
    assert more.generators == alone.generators
    assert [run.digest for run in more.runs] == [run.digest for run in alone.runs]
    assert len({run.digest for run in alone.runs}) == 4
    assert (more.arms, more.pairs, more.predictions) == (alone.arms, alone.pairs, alone.predictions)
    files = sorted(path.name for path in (tmp_path / "1" / "data").iterdir())
    assert len(files) == 6
    for name in files:
        ours, theirs = (tmp_path / each / "data" / name for each in "13")
        assert ours.read_bytes() == theirs.read_bytes()
    held_out = np.load(tmp_path / "1" / "predictions.npz")
    assert held_out["generated_100"].shape == (1, 120)
    assert (held_out["generated_100"] != 0).all()

    page = finish_worth(alone, tmp_path / "1")
    text = page.read_text(encoding="utf-8")
    assert "It did not help" in text or "They" in text
    assert from_json(json.loads((tmp_path / "1" / "worth.json").read_text("utf-8"))) == alone
    assert [row[0] for row in arms_table(alone)] == [
        "trained on",
        "real nodules",
        "real and generated",
    ]
    request = StudyRequest(recipe="nodules-classifier", data=str(data), out=tmp_path / "1")
    with pytest.raises(UserError, match="holds another study: times"):
        measure_worth(request, replace(ASKED, times=2.0), SilentWatcher(), num_workers=1)


def test_nodules_in_their_surroundings_are_compared_too(data: Path, tmp_path: Path) -> None:
    """`nodules-ct`, on nodules with masks and with a category that is not their label."""
    with np.load(data) as arrays:
        np.savez(tmp_path / "balls.npz", **arrays, category=np.repeat(["a", "b", "c"], 40))
    request = StudyRequest(
        recipe="nodules-classifier", data=str(tmp_path / "balls.npz"), out=tmp_path / "out"
    )
    asked = replace(ASKED, generator="nodules-ct", arms=("generated",))
    found = measure_worth(request, asked, SilentWatcher(), num_workers=2)
    assert len(found.generators) == len(found.runs) == 2
    assert found.verdict.startswith("Nothing was asked")
    for fold in (1, 2):
        made = np.load(tmp_path / "out" / "made" / f"fold{fold}-100.npz")
        seen = np.load(tmp_path / "out" / "data" / f"fold{fold}-100-generator.npz")
        assert made["volume"].shape == seen["volume"].shape
        assert made["volume"].dtype == np.uint8
        assert np.bincount(made["label"]).tolist() == np.bincount(seen["label"]).tolist()
        assert not {cube.tobytes() for cube in made["volume"]} & {
            cube.tobytes() for cube in np.load(data)["volume"]
        }
