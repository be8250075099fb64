"""Did it help? Training on all the data, on what was kept, and on as much kept at random.

In: a StudyRequest without a keep-list, two keep-lists, batch sizes, weight decays. Out: a
Comparison: every kind of data at every batch size and decay, trained for the same number of epochs
and judged at the end (Gahlot et al. 2020, figures 6 and 7). Guaranteed: as for any study, bad input
raises before anything is written, and nothing is trained twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from samepath.data.keep_list import read_keep_list
from samepath.engine.options import Options
from samepath.engine.train import available_workers
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.study.batches import METRIC, refuse_batches
from samepath.study.collect import curve_of, end_of
from samepath.study.grid import Job
from samepath.study.opening import StudyRequest, entered, look_into
from samepath.study.results import AnyStudy, Ended, Epoch, read_as
from samepath.study.runner import Watcher, run_jobs

FULL, FILTERED, RANDOM = "full", "filtered", "random"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kind of training data."""

    name: str
    """full, filtered or random."""
    keep: str | None
    """Its keep-list."""
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    variant: str
    batch_size: int
    weight_decay: float
    seed: int
    folder: str
    ended: Ended
    why: str
    curve: tuple[Epoch, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison(AnyStudy):
    """All runs of a comparison; `num_examples` is that of the full data."""

    variants: tuple[Variant, ...]
    batch_sizes: tuple[int, ...]
    weight_decays: tuple[float, ...]
    seeds: tuple[int, ...]
    epochs: int
    metric: str
    """What a run is judged by at its end: "accuracy" where the recipe evaluates it, else "loss"."""
    runs: tuple[ComparedRun, ...]
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be compared."""

    filtered: Path
    """The keep-list."""
    random: Path
    """The control: a keep-list of the same size."""
    batch_sizes: tuple[int, ...] = ()
    weight_decays: tuple[float, ...] = ()
    """The recipe's own when empty."""


def compare(request: StudyRequest, wanted: Wanted, watcher: Watcher) -> Comparison:
    """Train everything to its end."""
    opened = look_into(request)
    shared = opened.options
    options = {
        FULL: shared,
        FILTERED: _only_kept(shared, wanted.filtered),
        RANDOM: _only_kept(shared, wanted.random),
    }
    _refuse_unequal(wanted, options)
    sizes = wanted.batch_sizes or (shared.batch_size,)
    refuse_batches(sizes, min(each.num_examples for each in options.values()))
    decays = wanted.weight_decays or (opened.recipe_decay,)
    seeds = tuple(range(request.seeds))
    jobs = {
        place: _job(options[place[3]], *place) for place in product(seeds, decays, sizes, options)
    }
    kept = {name: each.keep_identity for name, each in options.items()}
    with entered(opened, request, "comparison", also={"keep_lists": kept}):
        run_jobs(
            list(jobs.values()),
            opened.folder,
            cores=available_workers(),
            command=request.command,
            watcher=watcher,
        )
    runs = tuple(_run(opened.folder, job, *place) for place, job in jobs.items())
    judged = any(METRIC in epoch.metrics for run in runs for epoch in run.curve)
    return Comparison(
        **opened.heading(request),
        variants=tuple(
            Variant(name=name, keep=each.keep, num_examples=each.num_examples)
            for name, each in options.items()
        ),
        batch_sizes=sizes,
        weight_decays=decays,
        seeds=seeds,
        epochs=shared.epochs,
        metric=METRIC if judged else "loss",
        runs=runs,
        verdict="",
    )


def to_json(comparison: Comparison) -> dict[str, Any]:
    return {"kind": "comparison", **asdict(comparison)}


def from_json(content: Mapping[str, Any]) -> Comparison:
    found: Comparison = read_as(Comparison, content)
    return found


def _only_kept(options: Options, keep: Path) -> Options:
    found = find_recipe(options.recipe, options.data, str(keep))
    num_examples = len(read_keep_list(keep).rows)
    return replace(
        options, keep=found.keep, keep_identity=found.keep_identity, num_examples=num_examples
    )


def _refuse_unequal(wanted: Wanted, options: Mapping[str, Options]) -> None:
    filtered, control = options[FILTERED].num_examples, options[RANDOM].num_examples
    if filtered == options[FULL].num_examples:
        raise UserError(f"{wanted.filtered} keeps every example; there is nothing to compare")
    if filtered != control:
        raise UserError(
            f"{wanted.random} keeps {control} examples and {wanted.filtered} {filtered}; the "
            "control must keep as many (samepath curate writes one beside each keep.csv)"
        )


def _job(options: Options, seed: int, decay: float, batch_size: int, variant: str) -> Job:
    own = replace(
        options,
        batch_size=batch_size,
        grain_size=min(options.grain_size, batch_size),
        weight_decay=decay,
        seed=seed,
        patience=None,  # all runs have the same epochs
    )
    return Job(
        folder=f"runs/{variant}-batch{batch_size}-decay{decay:.6g}-seed{seed}",
        label=f"{variant}, batch {batch_size}, decay {decay:.3g}, seed {seed}",
        options=own,
    )


def _run(
    folder: Path, job: Job, seed: int, decay: float, batch_size: int, variant: str
) -> ComparedRun:
    ended, why = end_of(folder, job)
    return ComparedRun(
        variant=variant,
        batch_size=batch_size,
        weight_decay=decay,
        seed=seed,
        folder=job.folder,
        ended=ended,
        why=why,
        curve=curve_of(folder, job),
    )
