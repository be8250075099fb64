"""Accuracy against batch size at several learning rates (Gahlot et al. 2020, figures 4 and 5).

In: a StudyRequest, batch sizes and rates. Out: a GridStudy: every batch size at every rate, trained
for the same number of epochs and judged at the end. Guaranteed: as for a race, nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from samepath.engine.options import Options
from samepath.engine.train import available_workers
from samepath.errors import UserError
from samepath.study.collect import curve_of, end_of
from samepath.study.grid import Job
from samepath.study.opening import Opened, StudyRequest, entered, look_into
from samepath.study.results import GridRun, GridStudy
from samepath.study.runner import Watcher, run_jobs

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
    jobs = {
        (size, rate, seed): _job(options, size, rate, seed)
        for seed in seeds
        for rate in rates
        for size in batch_sizes
    }
    with entered(opened, request, "grid"):
        run_jobs(
            list(jobs.values()),
            opened.folder,
            cores=available_workers(),
            command=request.command,
            watcher=watcher,
        )
    runs = tuple(_run(opened, size, rate, seed, job) for (size, rate, seed), job in jobs.items())
    judged = any(METRIC in epoch.metrics for run in runs for epoch in run.curve)
    return GridStudy(
        **opened.heading(request),
        batch_sizes=tuple(batch_sizes),
        learning_rates=rates,
        seeds=seeds,
        epochs=options.epochs,
        metric=METRIC if judged else "loss",
        runs=runs,
        verdict="",
    )


def refuse_batches(batch_sizes: Sequence[int], num_examples: int) -> None:
    too_large = [size for size in batch_sizes if size > num_examples]
    if too_large:
        raise UserError(
            f"--batch-sizes {too_large[0]} is larger than the data ({num_examples} examples); "
            "leave it out"
        )


def _job(options: Options, batch_size: int, rate: float, seed: int) -> Job:
    own = replace(
        options,
        batch_size=batch_size,
        grain_size=min(options.grain_size, batch_size),
        learning_rate=rate,
        seed=seed,
        patience=None,  # all runs have the same epochs
    )
    return Job(
        folder=f"runs/batch{batch_size}-rate{rate:.6g}-seed{seed}",
        label=f"batch {batch_size}, rate {rate:.3g}, seed {seed}",
        options=own,
    )


def _run(opened: Opened, batch_size: int, rate: float, seed: int, job: Job) -> GridRun:
    ended, why = end_of(opened.folder, job)
    return GridRun(
        batch_size=batch_size,
        learning_rate=rate,
        seed=seed,
        folder=job.folder,
        ended=ended,
        why=why,
        curve=curve_of(opened.folder, job),
    )
