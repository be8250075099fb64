"""Short runs of real training, for advice, and what they say of learning rates and batch sizes.

In: options and how long it may take. Out: training losses by rate and the noise scale along a run;
from these a RangeTest and a CriticalBatch. Guaranteed: real workers started once; they try rates
side by side, each alone with one, then train together at the recipe's own; nothing is evaluated or
left behind; no part goes on when its time is over, and says so.

Rates: all runs begin with the same weights and see the same batches in the same order, so that
their losses differ by the rate alone. A run converges if it lowers the loss, and not by less than
half of what the best run did where its rate is above that one's (below it is only slow). The search
is `study.rates`'s.

Batches: with B examples a step, training needs

    S = S_min (1 + B_crit / B) steps and E = S B = E_min (1 + B / B_crit) examples

(McCandlish et al. 2018, section 2.4), so k workers with a batch B each use their examples with an
efficiency of E(B) / E(kB) = (1 + c) / (k + c), c = B_crit / B: the counterpart of the time's. There
is room if two workers keep it above the floor at the low end of the interval, none if they do not
at the high end; between the two it cannot be told. The noise scale grows as the loss falls, so a
short run can find that there is room, but not that there will be none.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, ReduceLROnPlateau

from samepath.engine.comm.collective import Alone
from samepath.engine.launch.launch import call_workers
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.session import Session, start
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.step.settings import StepResult
from samepath.insight.advise.advice import (
    CriticalBatch,
    NoisePoint,
    RangeTest,
    RateTrial,
    Room,
    example_efficiency,
)
from samepath.owners import owned_folder
from samepath.recipe import Recipe
from samepath.study import rates as search
from samepath.study.results import Tried

OVERRUN = 1.3
"""Rates are given up when they take so much longer than they were given."""
_TIME_IS_UP = 1
FACTOR, RUNGS = 4.0, 6
"""Rates above the recipe's, up to 4^5 of it; and as many below."""
LEAST_DECREASE = 0.02
"""Of the first loss: less is no decrease."""
KEPT = 0.5
"""Of the best decrease."""
LEAST_STEPS, MOST_STEPS = 10, 200
"""Of a short run."""
PUBLISHED = {"MNIST": (200, 900), "SVHN": (500, 4000), "CIFAR-10": (900, 2000)}
"""Critical batches and simple noise scales, averages of whole runs (McCandlish et al. 2018, table
in appendix A): how far the one lies below the other."""
RATIOS = sorted(critical / simple for critical, simple in PUBLISHED.values())
MOST_POINTS = 300
ENOUGH = 0.25
"""Of the training: a run as long says that a larger batch has no room, a shorter one does not."""

Losses: TypeAlias = Mapping[float, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ShortRunsTask:
    """What the workers are told."""

    options: Options
    workers: int
    recipe_rate: float
    most_rate_steps: int
    """Of each rate's run; 0: none."""
    rate_seconds: float
    noise_options: Options
    """With how many steps, and in which grains; 0 steps: none."""
    noise_seconds: float


@dataclass(frozen=True, kw_only=True)
class ShortRuns:
    """What the workers found."""

    losses: dict[float, list[float]]
    """By rate, step by step; a run that diverged is shorter."""
    rate_steps: int
    """Of a run that did not."""
    rates_note: str
    rate_seconds: float
    lines: list[dict[str, Any]]
    """Of the metrics of the run at the recipe's rate."""
    noise_status: str
    """How that run ended: finished, diverged, or interrupted when its time was over."""
    noise_steps: int
    noise_seconds: float


def short_runs(task: ShortRunsTask) -> ShortRuns:
    """Do all of it on real workers of this machine."""
    with owned_folder("advise-") as folder:
        found: ShortRuns = call_workers(_work, (task, Path(folder)), task.workers)[0]
    return found


def _work(task: ShortRunsTask, folder: Path) -> ShortRuns | None:
    """One worker's part; what all found, on the first worker."""
    recipe = only_training(recipe_of(task.options))
    with start(seed=task.options.seed, threads=task.options.threads) as session:
        began = time.perf_counter()
        losses, rate_steps, note = _try_rates(recipe, task, session, began)
        tried = time.perf_counter()
        # what rates left over counts, and if they took more, it is not all from here
        over = max(began + task.rate_seconds, tried - 0.5 * task.noise_seconds) + task.noise_seconds
        place = RunFolder(folder / "run")
        status, steps = "", 0
        if task.noise_options.steps:
            status, steps = _train(recipe, task.noise_options, session, place, over)
        ended = time.perf_counter()
        if not session.is_first:
            return None
        return ShortRuns(
            losses=losses,
            rate_steps=rate_steps,
            rates_note=note,
            rate_seconds=tried - began,
            lines=place.read_metrics(),
            noise_status=status,
            noise_steps=steps,
            noise_seconds=ended - tried,
        )


def only_training(recipe: Recipe) -> Recipe:
    """Leave out what a short run has no time for. A rate that waits for the validation loss to stop
    falling stays where it is."""
    return replace(
        recipe,
        valid=None,
        valid_facts={},
        target=None,
        keep_weights=(),
        schedule=None if recipe.schedule is None else _without_plateau(recipe.schedule),
    )


def _without_plateau(
    schedule: Callable[[torch.optim.Optimizer], LRScheduler],
) -> Callable[[torch.optim.Optimizer], LRScheduler]:
    def made(optimizer: torch.optim.Optimizer) -> LRScheduler:
        found = schedule(optimizer)
        return ConstantLR(optimizer, 1.0) if isinstance(found, ReduceLROnPlateau) else found

    return made


def _try_rates(
    recipe: Recipe, task: ShortRunsTask, session: Session, began: float
) -> tuple[dict[float, list[float]], int, str]:
    """Every worker does its rate of each round, and knows what all found. The first round in which
    not all diverge goes on for its part of the time; the others are as many steps."""
    losses: dict[float, list[float]] = {}
    steps = task.most_rate_steps
    if not steps:
        return losses, 0, "a short run takes longer than there was time for; give more --minutes"
    share = task.rate_seconds / planned_rounds(session.num_workers)
    over = began + OVERRUN * task.rate_seconds
    longest, is_timed = 0.0, False
    while rates := next_rates(task.recipe_rate, losses, steps, session.num_workers):
        now = time.perf_counter()
        late = now + longest > began + task.rate_seconds
        if losses and not session.collective.agree(not late):
            return losses, steps, f"there was no time to try {_listed(rates)}"
        seen: list[float] = []
        ended, was_timed = "", is_timed
        if session.worker < len(rates):
            until = over if is_timed else now + share
            seen, ended = _losses_at(recipe, task, session, rates[session.worker], steps, until)
        if not is_timed:
            done = float(len(seen)) if ended in ("finished", "interrupted") else math.inf
            fewest = float(session.collective.gather_rows(np.array([done])).min())
            is_timed = math.isfinite(fewest)  # otherwise all diverged
            steps = int(min(steps, fewest))
        if not session.collective.agree(not was_timed or ended != "interrupted"):
            return losses, steps, f"there was no time to finish {_listed(rates)}"
        seen = (seen + [math.nan] * steps)[:steps]
        by_worker = session.collective.gather_rows(np.array(seen)).tolist()
        losses |= {rate: _finite(found) for rate, found in zip(rates, by_worker, strict=False)}
        longest = max(longest, time.perf_counter() - now)
    return losses, steps, ""


def _losses_at(
    recipe: Recipe, task: ShortRunsTask, session: Session, rate: float, steps: int, until: float
) -> tuple[list[float], str]:
    """Losses of one run, alone, for so long (but a least number of steps); and how it ended."""
    options = replace(task.options, learning_rate=rate, steps=steps)
    needed_epochs = -(-steps // options.plan.steps_per_epoch)
    options = replace(options, epochs=max(options.epochs, needed_epochs))
    seen: list[float] = []
    alone = Session(Alone(session.device), seed=options.seed)

    def note(_: object, results: Sequence[StepResult]) -> None:
        seen.extend(result.loss for result in results)

    def stop() -> int:
        return _TIME_IS_UP if time.perf_counter() > until and len(seen) >= least else 0

    least = min(LEAST_STEPS, steps) - 1  # the step under way is the last
    ended = Run(recipe, options, alone, None, after_step=note, stop_asked=stop).go().status
    return seen, ended


def _train(
    recipe: Recipe, options: Options, session: Session, place: RunFolder, over: float
) -> tuple[str, int]:
    """A run of all workers together; how it ended, and after how many steps."""

    def stop() -> int:
        return _TIME_IS_UP if time.perf_counter() > over else 0

    if session.is_first:
        place.write(asdict(options), [], None)
    session.collective.agree(True)  # the folder is there
    try:
        result = Run(recipe, options, session, place, stop_asked=stop).go()
    finally:
        place.unlock()
    return result.status, result.steps


def _finite(seen: list[float]) -> list[float]:
    """Up to where it diverged."""
    return list(itertools.takewhile(math.isfinite, seen))


def _listed(rates: list[float]) -> str:
    return ("rates of " if len(rates) > 1 else "a rate of ") + ", ".join(f"{r:.3g}" for r in rates)


# ---- what they say of learning rates


def planned_rounds(workers: int) -> int:
    """Rounds of as many rates as there are workers that are usually enough."""
    return 1 + math.ceil(4 / workers)


def judge(losses: Losses, steps: int) -> list[Tried]:
    """Every rate that was tried, in order."""
    if not losses:
        return []
    start = _start(losses)
    ends = {rate: _end(seen, steps) for rate, seen in losses.items()}
    best = min(ends, key=lambda rate: ends[rate])
    decrease = start - ends[best]
    useful = decrease > LEAST_DECREASE * abs(start)
    found = []
    for rate, end in sorted(ends.items()):
        if not math.isfinite(end):
            why = "it diverged"
        elif not useful:
            why = f"its loss did not fall in {steps} steps"
        elif rate > best and start - end < KEPT * decrease:
            why = "its loss stays high"
        else:
            why = ""
        found.append(Tried(learning_rate=rate, converged=not why, loss=end, why=why))
    return found


def next_rates(recipe_rate: float, losses: Losses, steps: int, number: int) -> list[float]:
    """Choose at most so many rates to try next; none: it is known, or cannot be."""
    tried = judge(losses, steps)
    # where nothing has fallen yet, rates that leave the loss as it is are too low, not too high
    start = _start(losses)
    flat = bool(tried) and tried[-1].loss <= start + LEAST_DECREASE * abs(start)
    return search.next_rates(recipe_rate, tried, number, factor=FACTOR, rungs=RUNGS, too_low=flat)


def range_test(recipe_rate: float, losses: Losses, steps: int, note: str = "") -> RangeTest:
    """What all runs together say."""
    tried = judge(losses, steps)
    largest, failing = search.bracket(tried)
    if tried and largest is None and not note:
        if any(math.isfinite(each.loss) for each in tried):
            note = f"no rate lowered the loss by {LEAST_DECREASE:.0%} within {steps} steps"
        else:
            note = "every rate that was tried diverged"
    elif largest is not None and failing is None and not note:
        note = "every rate that was tried converged; larger ones may"
    return RangeTest(
        recipe_rate=recipe_rate,
        steps=steps,
        start_loss=_start(losses) if any(losses.values()) else None,
        trials=tuple(
            RateTrial(
                learning_rate=t.learning_rate, converged=t.converged, end_loss=t.loss, why=t.why
            )
            for t in tried
        ),
        largest=largest,
        failing=failing,
        note=note,
    )


def _start(losses: Losses) -> float:
    return next((seen[0] for seen in losses.values() if seen), math.nan)


def _end(seen: Sequence[float], steps: int) -> float:
    """The mean of the last fifth, at least three; infinite where the run did not get there."""
    if len(seen) < steps or not all(map(math.isfinite, seen)):
        return math.inf
    last = seen[:steps][-max(3, steps // 5) :]
    return math.fsum(last) / len(last)


# ---- what they say of batch sizes


def noise_points(lines: Iterable[Mapping[str, Any]]) -> list[NoisePoint]:
    """Pick the lines of a run's metrics that have an interval."""
    return [
        NoisePoint(
            step=line["step"],
            scale=_or_infinite(line["noise_scale"]),
            low=float(line["noise_low"]),
            high=_or_infinite(line["noise_high"]),
        )
        for line in lines
        if line.get("noise_low") is not None
    ]


def _or_infinite(value: float | None) -> float:
    """The engine has none where the mean gradient cannot be told from zero."""
    return math.inf if value is None else float(value)


def thinned(points: Sequence[NoisePoint]) -> tuple[NoisePoint, ...]:
    """Thin out to at most so many, the last among them."""
    every = -(-len(points) // MOST_POINTS) or 1
    return tuple(points[::-1][::every][::-1])


def weak_workers(critical: float, batch_size: int, floor: float) -> int | None:
    """The most workers with a batch each that keep the floor; None: there is no limit."""
    if math.isinf(critical) or floor <= 0.0:
        return None
    c = critical / batch_size
    return max(int((1.0 + c) / floor - c + 1e-9), 1)


def critical_batch(
    points: Sequence[NoisePoint],
    *,
    batch_size: int,
    floor: float,
    steps: int,
    part: float,
    grain_size: int,
    note: str = "",
) -> CriticalBatch:
    """What the end of the run says."""
    last = points[-1] if points else None
    low = high = None
    room: Room = "unknown"
    if last is not None:
        low, high = last.low * RATIOS[0], last.high * RATIOS[-1]
        if example_efficiency(low, batch_size, 2) >= floor:
            room = "yes"
        elif example_efficiency(high, batch_size, 2) < floor and part >= ENOUGH:
            room = "no"
        after = "less than 1%" if part < 0.01 else f"{part:.0%}"
        early = f"after {after} of the training; it grows as the loss falls"
        note = "; ".join(filter(None, [note, early if part < ENOUGH else ""]))
    return CriticalBatch(
        steps=steps,
        part=part,
        grain_size=grain_size,
        points=thinned(points),
        noise_scale=None if last is None else last.scale,
        noise_low=None if last is None else last.low,
        noise_high=None if last is None else last.high,
        critical_low=low,
        critical_high=high,
        room=room,
        weak_workers_low=None if low is None else weak_workers(low, batch_size, floor),
        weak_workers_high=None if high is None else weak_workers(high, batch_size, floor),
        note=note,
    )
