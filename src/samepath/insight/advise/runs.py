"""Short runs of real training, for advice: some learning rates, and the noise scale along a run.

In: options and how long it may take. Out: training losses by rate, and lines of metrics.
Guaranteed: real workers started once; they try rates side by side, each alone with one, then train
together at the recipe's own; nothing is evaluated or left behind; no part goes on when its time is
over, and says so.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, ReduceLROnPlateau

from samepath.engine.comm.collective import Alone
from samepath.engine.launch.launch import launch
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.session import Session, start
from samepath.engine.state.progress import Silent
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.step.settings import StepResult
from samepath.insight.advise.judge import LEAST_STEPS, next_rates, planned_rounds
from samepath.owners import owned_folder
from samepath.recipe import Recipe

OVERRUN = 1.3
"""Rates are given up when they take so much longer than they were given."""
_TIME_IS_UP = 1


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
        launch(_work, (task, Path(folder)), task.workers)
        found = json.loads((Path(folder) / "found.json").read_text())
    found["losses"] = {float(rate): losses for rate, losses in found["losses"].items()}
    return ShortRuns(**found)


def _work(task: ShortRunsTask, folder: Path) -> None:
    """One worker's part."""
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
        if session.is_first:
            found = ShortRuns(
                losses=losses,
                rate_steps=rate_steps,
                rates_note=note,
                rate_seconds=tried - began,
                lines=place.read_metrics(),
                noise_status=status,
                noise_steps=steps,
                noise_seconds=ended - tried,
            )
            (folder / "found.json").write_text(json.dumps(vars(found)))


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


class _Losses(Silent):
    """Keeps what a run shows."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def step(self, result: StepResult, steps: int, epochs: float) -> None:
        self.seen.append(result.loss)


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
    display = _Losses()
    alone = Session(Alone(session.device), seed=options.seed)

    def stop() -> int:
        return _TIME_IS_UP if time.perf_counter() > until and len(display.seen) >= least else 0

    least = min(LEAST_STEPS, steps) - 1  # the step under way is the last
    ended = Run(recipe, options, alone, None, display=display, stop_asked=stop).go().status
    return display.seen, ended


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
