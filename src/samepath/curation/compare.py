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

from samepath.console import Watcher
from samepath.data.keep_list import read_keep_list
from samepath.engine.run.options import Options, training_source, with_fingerprints
from samepath.errors import UserError
from samepath.files import read_as
from samepath.recipe import find_recipe
from samepath.study.batches import facts_of, judged_by, refuse_batches, train_all, with_batch
from samepath.study.opening import StudyRequest, look_into
from samepath.study.results import BatchRun, BatchStudy
from samepath.study.runner import PlannedRun

FULL, FILTERED, RANDOM = "full", "filtered", "random"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kind of training data."""

    name: str
    """full, filtered or random."""
    keep: str | None
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class ComparedRun(BatchRun):
    variant: str
    weight_decay: float


@dataclass(frozen=True, kw_only=True)
class Comparison(BatchStudy):
    """All runs of a comparison; `num_examples` is that of the full data."""

    variants: tuple[Variant, ...]
    weight_decays: tuple[float, ...]
    runs: tuple[ComparedRun, ...]


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
    train_all(opened, request, jobs.values(), "comparison", watcher, {"keep_lists": kept})
    runs = tuple(
        ComparedRun(variant=variant, weight_decay=decay, **facts_of(opened.folder, job))
        for (_, decay, _, variant), job in jobs.items()
    )
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
        metric=judged_by(runs),
        runs=runs,
        verdict="",
    )


def to_json(comparison: Comparison) -> dict[str, Any]:
    return {"kind": "comparison", **asdict(comparison)}


def from_json(content: Mapping[str, Any]) -> Comparison:
    found: Comparison = read_as(Comparison, content)
    return found


def _only_kept(options: Options, keep: Path) -> Options:
    found = find_recipe(options.recipe, options.data, str(keep), threads=options.threads)
    kept = replace(
        options,
        keep=found.origin.keep,
        keep_identity=found.origin.keep_identity,
        num_examples=len(training_source(found)),
        train_content=None,  # the full data's
    )
    return with_fingerprints(kept, found)


def _refuse_unequal(wanted: Wanted, options: Mapping[str, Options]) -> None:
    full, filtered, control = (options[name].num_examples for name in (FULL, FILTERED, RANDOM))
    relabelled = read_keep_list(wanted.filtered).relabelled
    if filtered == full and (relabelled is None or not relabelled.any()):
        raise UserError(
            f"{wanted.filtered} keeps every example with its own label; there is nothing to compare"
        )
    if filtered != control:
        raise UserError(
            f"{wanted.random} keeps {control} examples and {wanted.filtered} {filtered}; the "
            "control must keep as many. samepath curate writes one beside keep.csv, and saving in "
            "samepath explore one beside every other; or give one with --random"
        )


def _job(options: Options, seed: int, decay: float, batch_size: int, variant: str) -> PlannedRun:
    return PlannedRun(
        folder=f"runs/{variant}-batch{batch_size}-decay{decay:.6g}-seed{seed}",
        label=f"{variant}, batch {batch_size}, decay {decay:.3g}, seed {seed}",
        options=replace(with_batch(options, batch_size, seed), weight_decay=decay),
    )
