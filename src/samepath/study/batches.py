"""Accuracy against batch size at several learning rates (Gahlot et al. 2020, figures 4 and 5).

In: a StudyRequest, batch sizes and rates. Out: a GridStudy: every batch size at every rate, trained
for the same number of epochs and judged at the end. Guaranteed: as for a race, nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samepath.console import Watcher
from samepath.engine.run.options import Options
from samepath.errors import UserError
from samepath.study.opening import Opened, StudyRequest, entered, look_into
from samepath.study.results import BatchRun, GridRun, GridStudy
from samepath.study.runner import PlannedRun, end_of, epochs_of, train_runs

METRIC = "accuracy"
"""What runs are judged by where the recipe evaluates it."""


def batch_study(
    request: StudyRequest,
    batch_sizes: Sequence[int],
    learning_rates: Sequence[float],
    watcher: Watcher,
) -> GridStudy:
    """Train the grid to its end. Without rates, the recipe's."""
    opened = look_into(request)
    options = opened.options
    refuse_batches(batch_sizes, options.num_examples)
    rates = tuple(learning_rates) or (opened.recipe_rate,)
    seeds = tuple(range(request.seeds))
    planned = {
        (size, rate, seed): _planned(options, size, rate, seed)
        for seed in seeds
        for rate in rates
        for size in batch_sizes
    }
    train_all(opened, request, planned.values(), "grid", watcher)
    runs = tuple(
        GridRun(learning_rate=rate, **facts_of(opened.folder, run))
        for (_, rate, _), run in planned.items()
    )
    return GridStudy(
        **opened.heading(request),
        batch_sizes=tuple(batch_sizes),
        learning_rates=rates,
        seeds=seeds,
        epochs=options.epochs,
        metric=judged_by(runs),
        runs=runs,
        verdict="",
    )


def _planned(options: Options, batch_size: int, rate: float, seed: int) -> PlannedRun:
    return PlannedRun(
        folder=f"runs/batch{batch_size}-rate{rate:.6g}-seed{seed}",
        label=f"batch {batch_size}, rate {rate:.3g}, seed {seed}",
        options=replace(with_batch(options, batch_size, seed), learning_rate=rate),
    )


# ---- what every study of batch sizes does


def refuse_batches(batch_sizes: Sequence[int], num_examples: int) -> None:
    """Refuse a batch larger than the data."""
    too_large = [size for size in batch_sizes if size > num_examples]
    if too_large:
        raise UserError(
            f"--batch-sizes {too_large[0]} is larger than the data ({num_examples} examples); "
            "leave it out"
        )


def with_batch(options: Options, batch_size: int, seed: int) -> Options:
    """Options of a run that goes on to its last epoch, as all of its study do."""
    grain_size = min(options.grain_size, batch_size)
    return replace(options, batch_size=batch_size, grain_size=grain_size, seed=seed, patience=None)


def train_all(
    opened: Opened,
    request: StudyRequest,
    runs: Iterable[PlannedRun],
    kind: str,
    watcher: Watcher,
    also: Mapping[str, Any] | None = None,
) -> None:
    """Enter the study's folder and train what is not there yet."""
    with entered(opened, request, kind, also):
        train_runs(list(runs), opened, request, watcher)


def facts_of(study: Path, run: PlannedRun) -> dict[str, Any]:
    """The fields of `BatchRun`."""
    ended, why = end_of(study, run)
    return {
        "batch_size": run.options.batch_size,
        "seed": run.options.seed,
        "folder": run.folder,
        "ended": ended,
        "why": why,
        "curve": tuple(end.epoch for end in epochs_of(study, run)),
    }


def judged_by(runs: Iterable[BatchRun]) -> str:
    """Accuracy, where any run has one."""
    judged = any(METRIC in epoch.metrics for run in runs for epoch in run.curve)
    return METRIC if judged else "loss"
