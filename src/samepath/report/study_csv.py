"""A study as a table for other programs: `study.csv`.

In: a study. Out: a file with one line per run. Guaranteed: a header whose names explain themselves;
nothing is rounded; what does not exist is empty, NaN and infinity are "nan" and "inf".
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from samepath.files import write_atomically
from samepath.study.results import Epoch, GridRun, GridStudy, RunRecord, Study

_RACE = (
    *("strategy", "workers", "seed", "folder", "batch_size", "highest_learning_rate"),
    *("gradient_lag_steps", "ended", "why", "times_are", "step_seconds", "target_valid_loss"),
    *("reached_target", "seconds_to_target", "best_valid_loss"),
)
_GRID = ("batch_size", "learning_rate", "seed", "folder", "ended", "why")


def write_csv(study: Study | GridStudy, out: Path) -> None:
    """Write one line per run, replacing an older file whole."""
    names = sorted({name for run in study.runs for epoch in run.curve for name in epoch.metrics})
    if isinstance(study, Study):
        first: tuple[str, ...] = _RACE
        lines = [_race_line(study, run) | _end(run.curve, names) for run in study.runs]
    else:
        first = _GRID
        lines = [_grid_line(run) | _end(run.curve, names) for run in study.runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*first, *_end((), names)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.getvalue())


def _race_line(study: Study, run: RunRecord) -> dict[str, Any]:
    flat = (run.strategy, run.workers, run.seed, run.folder, run.batch_size, run.learning_rate)
    end = (run.lag, run.ended, run.why, run.how, run.step_seconds, study.target.loss)
    reached = ("yes" if run.reached else "no", run.seconds_to_target, run.best_loss)
    return dict(zip(_RACE, (*flat, *end, *reached), strict=True))


def _grid_line(run: GridRun) -> dict[str, Any]:
    flat = (run.batch_size, run.learning_rate, run.seed, run.folder, run.ended, run.why)
    return dict(zip(_GRID, flat, strict=True))


def _end(curve: tuple[Epoch, ...], metrics: list[str]) -> dict[str, Any]:
    """The last epoch, flat; empty where there is none."""
    last = curve[-1] if curve else None
    return {
        "epochs": last.epoch if last else 0,
        "steps": last.steps if last else 0,
        "examples_seen": last.examples if last else 0,
        "training_seconds": last.seconds if last else None,
        "final_batch_size": last.batch_size if last else None,
        "final_learning_rate": last.learning_rate if last else None,
        "final_train_loss": last.train_loss if last else None,
        "final_valid_loss": last.valid_loss if last else None,
        **{f"final_{name}": last.metrics.get(name) if last else None for name in metrics},
    }
