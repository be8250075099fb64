"""The report of a cross-validation: its intervals, its verdict, its files."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from samepath.report.folds import (
    calibration_table,
    finish_folds,
    folds_table,
    tables_in_short,
    verdict,
)
from samepath.study.calibration import calibration
from samepath.study.folds import FoldRun, Folds, from_json, mean_intervals
from samepath.study.results import Epoch

ACCURACY = (0.81, 0.78, 0.9, 0.84, 0.87)


def made_run(repeat: int, fold: int, accuracy: float) -> FoldRun:
    losses = [math.exp(-0.3 * epoch) + 0.2 + 0.01 * fold * epoch / 4 for epoch in range(1, 13)]
    best = losses.index(min(losses)) + 1
    curve = tuple(
        Epoch(
            epoch=number, steps=10 * number, examples=80 * number, seconds=float(number),
            batch_size=8, learning_rate=0.1, train_loss=loss, valid_loss=loss,
        )
        for number, loss in enumerate(losses, start=1)
    )  # fmt: skip
    return FoldRun(
        repeat=repeat, fold=fold, folder=f"runs/repeat{repeat}-fold{fold}", num_train=80,
        num_held_out=20, ended="epochs", why="", weights="best", epochs=float(best),
        digest=f"{fold:064x}", metrics={"accuracy": accuracy, "loss": min(losses)}, curve=curve,
    )  # fmt: skip


def made(repeats: int = 1) -> Folds:
    runs = tuple(
        made_run(repeat, fold, accuracy - 0.01 * repeat)
        for repeat in range(1, repeats + 1)
        for fold, accuracy in enumerate(ACCURACY, start=1)
    )
    return Folds(
        format=1, command=("samepath", "folds", "mine.py"), versions={}, recipe="mine.py",
        num_examples=100, num_valid=20, grain_size=2, optimizer="Adam", batch_size=8, seed=0,
        epochs=12, folds=5, repeats=repeats, groups="patient", stratify=None, examples="all",
        runs=runs, metrics=mean_intervals(runs), pooled={"accuracy": 0.83},
        predictions="ab" * 32, verdict="",
    )  # fmt: skip


def test_intervals() -> None:
    """Nadeau and Bengio's variance: wider than the usual one, which takes folds for independent."""
    values = np.array(ACCURACY) - 0.01
    found = made().metrics["accuracy"]
    reach = t.ppf(0.975, 4) * values.std(ddof=1) * math.sqrt(1 / 5 + 20 / 80)
    assert found.mean == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((found.mean - reach, found.mean + reach))
    assert found.high - found.mean > 1.4 * t.ppf(0.975, 4) * values.std(ddof=1) / math.sqrt(5)


def test_verdict_and_table() -> None:
    said = verdict(made())
    assert said.startswith("Mean over 5 folds: accuracy 0.83 (95%: ")
    assert said.endswith("All out-of-fold predictions together: accuracy 0.83.")
    assert "5 folds, 3 times" in verdict(made(3))
    table = folds_table(made(2))
    assert table[0][-2:] == ["accuracy", "loss"]
    assert table[6][0] == "fold 1 of repeat 2"
    assert [row[0] for row in table[-3:]] == ["mean", "95% interval", "all together"]
    failed = replace(made_run(1, 2, math.nan), ended="diverged")
    runs = (made().runs[0], failed)
    assert verdict(replace(made(), runs=runs)) == (
        "Fold 2 diverged; there is no mean over all folds."
    )
    assert math.isnan(mean_intervals(runs)["accuracy"].mean)


@pytest.mark.parametrize("repeats", [1, 3])
def test_everything_is_written(repeats: int, tmp_path: Path) -> None:
    found, page = finish_folds(made(repeats), tmp_path)
    assert from_json(json.loads((tmp_path / "folds.json").read_text())) == found
    with (tmp_path / "folds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [r.metrics["accuracy"] for r in found.runs]
    text = page.read_text()
    assert "data:image/svg+xml;base64," in text
    assert "somewhat better than those of new data" in text
    assert "<svg" in (tmp_path / "folds.svg").read_text()


def test_calibration_has_a_table_and_a_figure(tmp_path: Path) -> None:
    parts = calibration(np.array([0.9, 0.9, 0.65]), np.array([True, False, True]))
    found, page = finish_folds(replace(made(), calibration=parts), tmp_path)
    assert from_json(json.loads((tmp_path / "folds.json").read_text())) == found
    assert calibration_table(parts) == [
        ["confidence", "examples", "mean confidence (%)", "accuracy (%)"],
        ["60 to 70%", "1", "65.0", "100.0"],
        ["80 to 90%", "2", "90.0", "50.0"],
    ]
    title, table, _ = tables_in_short(found)[1]
    assert title == "Calibration: expected error 38.3 points"
    assert table == calibration_table(parts)
    assert "out-of-fold predictions: 38.3 percentage points." in page.read_text()
    assert "<svg" in (tmp_path / "calibration.svg").read_text()


def test_a_fold_without_a_number_is_drawn(tmp_path: Path) -> None:
    runs = (*made().runs[:4], replace(made_run(1, 5, math.nan), ended="diverged"))
    failed = replace(made(), runs=runs, metrics=mean_intervals(runs), pooled={})
    found, _ = finish_folds(failed, tmp_path)
    again = from_json(json.loads((tmp_path / "folds.json").read_text()))
    assert math.isnan(again.metrics["accuracy"].low)
    assert found.verdict.startswith("Fold 5 diverged")
