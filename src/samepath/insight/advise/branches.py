"""The critical batch, measured: branches of one run from the same exact state.

In: a recipe's options, after how many epochs to branch, batch sizes, how many orders of the data.
Out: a MeasuredBatch. Guaranteed: bad input raises before anything is trained; every branch begins
with the bits that the base run ended with, and one with the base's own batch and seed goes on along
its path; runs are those of a study: side by side, and gone on with after an interruption.

The method is Merrill et al. 2025 (arXiv 2505.23971, section 3.1): a run is stopped, goes on with
batches of kB examples at a learning rate scaled by k (SGD) or sqrt(k) (all others, which are like
Adam), and the critical batch is the largest that still comes to the loss of batch B after the same
number of examples. Two things differ. Their tolerance is a loss (0.01 of a language model's). The
losses of recipes have all scales and signs, so ours is a part of the examples: a batch is within it
if it comes to the base's loss with at most a tenth more of them. And they have one order of the
data, we several.

Losses are those of training batches, each the loss of the weights before its update. Between
updates the loss is taken to change in a straight line, and it is averaged over the examples of one
epoch (half of them before, half after), so that every batch size is smoothed alike.

Examples E that a branch needs to the base's loss also give the trade-off of McCandlish et al. 2018
(equation 2.11), (S / S_min - 1)(E / E_min - 1) = 1 with S = E / B steps, or E = E_min (1 + B /
B_crit): a straight line in B. Its B_crit is a batch that needs twice the fewest examples, and so
lies above the largest that needs hardly more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from samepath.console import Watcher, count
from samepath.engine.run.options import Options, with_fingerprints
from samepath.engine.run.request import available_workers
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.insight.advise.advice import span
from samepath.insight.advise.runs import RATIOS
from samepath.insight.folder import BRANCHES
from samepath.recipe import Recipe
from samepath.study.opening import Opened, StudyRequest, entered
from samepath.study.places.destination import LOCAL
from samepath.study.results import Branch, MeasuredBatch
from samepath.study.runner import PlannedRun, train_runs

SEEDS = 3
TOLERANCE = 0.1
PART, LEAST_EPOCHS = 10, 2
"""Losses are compared after a tenth of the recipe's epochs, at least so many."""
LONGER = 2
"""Branches with a larger batch are trained for so many times as long."""
LEAST_STEPS = 10
"""Of a branch with the largest batch, where none was named, until losses are compared."""
POINTS = 64
"""Of the smoothed loss in an epoch."""
SHOWN = 100
"""Points of a curve that are kept."""
FEWEST_FITTED = 3
"""Batch sizes that a line is put through."""

Losses = Sequence[tuple[int, float]]
"""Examples before each step of a branch, and the step's loss."""


@dataclass(frozen=True, kw_only=True)
class BranchRequest:
    """What a person asked for; None: chosen by what the recipe has."""

    at: int | None = None
    """Epochs before the branches."""
    epochs: int | None = None
    """After which losses are compared."""
    batch_sizes: tuple[int, ...] = ()
    seeds: int = SEEDS
    on: str = LOCAL
    """Where they are trained: this machine, or a cluster."""
    in_study: bool = False
    """Whether a study asks, in which --max-epochs alone says how long branches are."""


@dataclass(frozen=True, kw_only=True)
class BranchPlan:
    """What is trained."""

    at: int
    epochs: int
    batch_sizes: tuple[int, ...]
    """Larger than the base's."""
    seeds: tuple[int, ...]
    on: str = LOCAL

    @property
    def most_epochs(self) -> int:
        return LONGER * self.epochs

    def num_epochs(self) -> int:
        """Epochs of all runs together."""
        larger = len(self.batch_sizes) * self.most_epochs
        return self.at + len(self.seeds) * (self.epochs + 1 + larger)


def plan_branches(request: BranchRequest, options: Options) -> BranchPlan:
    """Choose what was not said; refuse what cannot be."""
    for flag, value in (
        ("--branch-at", request.at),
        ("--branch-epochs", request.epochs),
        ("--branch-seeds", request.seeds),
    ):
        if value is not None and value < 1:
            raise UserError(f"{flag} {value}: it must be at least 1")
    batch, data = options.batch_size, options.num_examples
    sizes = sorted(set(request.batch_sizes) - {batch})
    for size in sizes:
        if size > data:
            raise UserError(
                f"--batch-sizes {size} is larger than the data ({data} examples); leave it out"
            )
        if size < batch or size % batch:
            raise UserError(
                f"--batch-sizes {size} is no multiple of the batch of {batch}; give such as "
                f"{2 * batch},{4 * batch}"
            )
    epochs = request.epochs or max(LEAST_EPOCHS, options.epochs // PART)
    at = request.at or max(1, min(options.epochs // 2, options.epochs - LONGER * epochs))
    if at + LONGER * epochs > options.epochs:
        raise UserError(
            f"{options.recipe!r} has {count(options.epochs, 'epoch')}: too few for branches after "
            f"{at} that take up to {LONGER * epochs} more; give "
            + (
                f"--max-epochs {1 + LONGER * LEAST_EPOCHS} or more"
                if request.in_study
                else "a smaller --branch-at or --branch-epochs (1 and 1 need 3)"
            )
        )
    if not sizes:
        most = min(data, epochs * data // LEAST_STEPS)
        sizes = list(takewhile(lambda size: size <= most, (batch << n for n in range(1, 40))))
    if not sizes:
        raise UserError(
            f"a batch of {2 * batch} makes fewer than {LEAST_STEPS} steps in "
            f"{count(epochs, 'epoch')} of {data} examples; give a smaller --batch-size, or more "
            + ("--max-epochs" if request.in_study else "--branch-epochs")
        )
    seeds = tuple(range(options.seed, options.seed + request.seeds))
    return BranchPlan(at=at, epochs=epochs, batch_sizes=tuple(sizes), seeds=seeds, on=request.on)


def measure_batch(
    plan: BranchPlan,
    recipe: Recipe,
    options: Options,
    folder: Path,
    step_seconds: float,
    watcher: Watcher,
    command: tuple[str, ...] = (),
) -> MeasuredBatch:
    """Train the base run, then its branches, in a folder of their own, and read what they did;
    `step_seconds` is what a step of the base takes with one worker."""
    optimizer = recipe.optimizer(p for p in recipe.model().parameters() if p.requires_grad)
    rule = "linear" if isinstance(optimizer, torch.optim.SGD) else "sqrt"
    options = with_fingerprints(options, recipe)
    base = PlannedRun(
        folder="runs/base",
        label=f"base run, batch {options.batch_size}",
        options=replace(options, epochs=plan.at),
    )
    branches = {
        (size, seed): _planned(options, plan, rule, size, seed)
        for size in (options.batch_size, *plan.batch_sizes)
        for seed in plan.seeds
    }
    request = StudyRequest(recipe=options.recipe, out=folder, command=command, on=plan.on)
    opened = Opened(
        folder=folder,
        recipe=recipe,
        options=options,
        optimizer=type(optimizer).__name__,
        recipe_rate=float(optimizer.param_groups[0]["lr"]),
        recipe_decay=0.0,
        num_valid=0,
    )
    epoch_seconds = step_seconds * options.num_examples / options.batch_size

    def alone_seconds(run: PlannedRun) -> float:
        return epoch_seconds * (run.options.epochs - (0 if run is base else plan.at))

    total = span(epoch_seconds * plan.num_epochs() / available_workers())
    watcher.note(f"training a run and {len(branches)} branches of it, about {total}")
    shaped_by = {"batch_size": options.batch_size, "at": plan.at, "seed": options.seed}
    with entered(opened, request, BRANCHES, shaped_by):
        train_runs([base], opened, request, watcher, alone_seconds)
        content = RunFolder(folder / base.folder).read()
        if content["status"] != "finished":
            raise UserError(
                f"the run ended by itself after {content['result']['epochs']:.3g} epochs "
                f"({content['status']}), before its branches begin; give a smaller --branch-at"
            )
        train_runs(list(branches.values()), opened, request, watcher, alone_seconds)
    ended = {key: RunFolder(folder / run.folder).read()["status"] for key, run in branches.items()}
    losses = {key: losses_of(folder, run) for key, run in branches.items()}
    noise = content["result"]
    return judge(
        plan, options, rule, losses, ended,
        base_steps=noise["steps"],
        noise=tuple(noise[name] for name in ("noise_scale", "noise_low", "noise_high")),
    )  # fmt: skip


def _planned(options: Options, plan: BranchPlan, rule: str, size: int, seed: int) -> PlannedRun:
    is_base = size == options.batch_size
    # one epoch more: the loss is averaged over half of one after the last that is compared
    epochs = plan.at + (plan.epochs + 1 if is_base else plan.most_epochs)
    return PlannedRun(
        folder=f"runs/batch{size}-seed{seed}",
        label=f"batch {size}, order {seed}",
        options=replace(
            options,
            epochs=epochs,
            strategy=rule,
            strategy_identity=rule,
            virtual_workers=size // options.batch_size,
            seed=seed,
        ),
        start_from="runs/base",
    )


def losses_of(study: Path, run: PlannedRun) -> list[tuple[int, float]]:
    """Read the losses of a branch's steps, each with the examples seen before it."""
    plan = StrategySchedule(run.options).plan(0, ())
    used = plan.num_examples
    if plan.drop_last:
        used -= used % plan.batch_size
    found: list[tuple[int, float]] = []
    epochs, place = 0, 0
    for line in RunFolder(study / run.folder).read_metrics():
        if "learning_rate" not in line:
            continue
        found.append((epochs * used + place, float(line["train_loss"])))
        place += plan.batch_size
        if place >= used:
            epochs, place = epochs + 1, 0
    return found


# ---- what they say


def smoothed(losses: Losses, window: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average the loss over `window` examples, half of them before and half after: at which
    examples, and what it is there."""
    known = [(examples, loss) for examples, loss in losses if math.isfinite(loss)]
    if not known or known[-1][0] < window:
        return np.empty(0), np.empty(0)
    at, loss = np.array(known, np.float64).T
    places = np.arange(int(at[-1] * POINTS / window) + 1, dtype=np.float64) * (window / POINTS)
    values = np.interp(places, at, loss)
    area = np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2.0)])
    middles: NDArray[np.float64] = places[POINTS:] - window / 2.0
    means: NDArray[np.float64] = (area[POINTS:] - area[:-POINTS]) / POINTS
    return middles, means


def reaches(places: NDArray[np.float64], values: NDArray[np.float64], loss: float) -> float | None:
    """Examples after which a smoothed loss is first as low as this; None: it never is."""
    below = np.flatnonzero(values <= loss)
    if not len(below):
        return None
    first = int(below[0])
    if first == 0:
        return float(places[0])
    part = (values[first - 1] - loss) / (values[first - 1] - values[first])
    return float(places[first - 1] + part * (places[first] - places[first - 1]))


def judge(
    plan: BranchPlan,
    options: Options,
    rule: str,
    losses: Mapping[tuple[int, int], Losses],
    ended: Mapping[tuple[int, int], str],
    *,
    base_steps: int,
    noise: Sequence[float | None] = (None, None, None),
) -> MeasuredBatch:
    """What the branches' losses, by batch size and seed, say."""
    batch, window = options.batch_size, options.num_examples
    compared = float(plan.epochs * window)
    curves = {key: smoothed(found, window) for key, found in losses.items()}
    branches = []
    for (size, seed), (places, values) in curves.items():
        wanted = _loss_at(*curves[batch, seed], compared)
        if wanted is None:
            raise UserError(
                f"the branch with the batch of {batch} and seed {seed} ended by itself "
                f"({ended[batch, seed]}) before losses are compared; give fewer --branch-epochs"
            )
        base_examples = reaches(*curves[batch, seed], wanted)
        assert base_examples is not None, "it comes to its own loss"
        examples = reaches(places, values, wanted)
        thin = max(1, len(places) // SHOWN)
        branches.append(
            Branch(
                batch_size=size,
                seed=seed,
                rate_factor=(size / batch) ** (1.0 if rule == "linear" else 0.5),
                ended=ended[size, seed],
                loss=_loss_at(places, values, compared),
                examples=examples,
                ratio=None if examples is None else examples / base_examples,
                curve=tuple(zip(places[::thin].tolist(), values[::thin].tolist(), strict=True)),
            )
        )
    sizes = (batch, *plan.batch_sizes)
    ratios = {
        size: [_or_infinite(each.ratio) for each in branches if each.batch_size == size]
        for size in sizes
    }
    most = 1.0 + TOLERANCE
    within = {size: statistics.median(ratios[size]) <= most for size in sizes}
    surely = {size: max(ratios[size]) <= most for size in sizes}
    fits = {seed: fit_of([b for b in branches if b.seed == seed]) for seed in plan.seeds}
    single = [found for found in fits.values() if found is not None]
    scale, low, high = noise
    return MeasuredBatch(
        base_batch=batch,
        base_epochs=plan.at,
        base_steps=base_steps,
        epochs=plan.epochs,
        most_epochs=plan.most_epochs,
        window=window,
        tolerance=TOLERANCE,
        rule=rule,
        seeds=plan.seeds,
        branches=tuple(branches),
        critical=list(takewhile(within.__getitem__, sizes))[-1],
        low=list(takewhile(surely.__getitem__, sizes))[-1],
        high=next((size for size in sizes if min(ratios[size]) > most), None),
        # orders differ in how soon they come to the loss and in which batches do: each has its line
        fitted=statistics.median(single) if single else None,
        fitted_low=min(single, default=None),
        fitted_high=max(single, default=None),
        noise_scale=scale,
        noise_low=None if low is None else low * RATIOS[0],
        # without an upper end the mean gradient is lost in the noise
        noise_high=None if low is None else math.inf if high is None else high * RATIOS[-1],
    )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _loss_at(
    places: NDArray[np.float64], values: NDArray[np.float64], examples: float
) -> float | None:
    if not len(places) or places[-1] < examples:
        return None
    return float(np.interp(examples, places, values))


def fit_of(branches: Sequence[Branch]) -> float | None:
    """B_crit of E = E_min (1 + B / B_crit); no part is negative, errors count relative to E. None
    with fewer batch sizes than say whether it is a line."""
    from scipy.optimize import nnls

    reached = [(b.batch_size, b.examples) for b in branches if b.examples is not None]
    if len({size for size, _ in reached}) < FEWEST_FITTED:
        return None
    sizes, examples = np.array(reached, np.float64).T
    parts = np.stack([np.ones_like(sizes), sizes], axis=1) / examples[:, None]
    (fewest, slope), _ = nnls(parts, np.ones_like(examples))
    return math.inf if slope == 0.0 else float(fewest / slope)
