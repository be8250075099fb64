"""Learning-rate range tests: which rates to try next, and the largest that still converges.

In: what was tried, and whether each try converged. Out: rates to try next; in the end the largest.
Rates go up in steps of a factor from the recipe's until one does not converge (or down until one
does); then what lies between the two is divided until they are close. `largest_rate` is a study's
test: short sequential runs one after another, judged by their validation loss. `samepath advise`
searches in the same way with runs side by side, judged by their training loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from samepath.engine.run.options import Options
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.study.results import Rate, Tried
from samepath.study.runner import PlannedRun

CLOSE = 1.3
"""The ratio at which the largest rate is known well enough."""
FACTOR, RUNGS = 2.0, 13
"""The factor between rates of a study's test, and their number."""
LOSS_FACTOR = 2.0
"""A short run of a study converges if it ends with at most so many times the lowest loss."""


def next_rates(
    recipe_rate: float,
    tried: Sequence[Tried],
    number: int,
    *,
    factor: float,
    rungs: int,
    too_low: bool = False,
) -> list[float]:
    """Choose at most so many rates to try next; none: the largest is known, or cannot be.

    `tried` is in the order of rates; `rungs` bounds the rates above the recipe's (with it), and as
    many below. `too_low`: the highest rate did not converge, but because it was too low."""
    ladder = [recipe_rate * factor**rung for rung in range(rungs)]
    if not tried:
        return ladder[:number]
    largest, failing = bracket(tried)
    if largest is not None and failing is not None:
        if failing / largest <= CLOSE:
            return []
        if number == 1:
            return [math.sqrt(largest * failing)]
        step = (failing / largest) ** (1.0 / (number + 1))
        return [largest * step**place for place in range(1, number + 1)]
    if largest is not None or too_low:
        above = [rate for rate in ladder if rate > tried[-1].learning_rate * CLOSE]
        return above[:number]
    lower = [tried[0].learning_rate / factor ** (rung + 1) for rung in range(rungs)]
    return [rate for rate in lower if rate > recipe_rate / factor**rungs][:number]


def bracket(tried: Sequence[Tried]) -> tuple[float | None, float | None]:
    """The largest rate that converges, below all that do not, and the next that does not.

    A rate that converges above one that does not is luck, and not to be recommended."""
    best = min(tried, key=lambda each: each.loss, default=None)
    if best is None or not best.converged:
        return None, None
    above = [each for each in tried if each.learning_rate >= best.learning_rate]
    failing = next((each.learning_rate for each in above if not each.converged), None)
    good = [t.learning_rate for t in above if failing is None or t.learning_rate < failing]
    return max(good), failing


def range_epochs(max_epochs: int) -> int:
    """Long enough to tell, short beside the study."""
    return max(2, math.ceil(max_epochs / 20))


def largest_rate(
    options: Options,
    recipe_rate: float,
    study: Path,
    train: Callable[[Sequence[PlannedRun]], None],
) -> Rate:
    """Find the largest rate with which a short sequential run in the study's folder converges.

    Cunha et al. 2018 chose their rate so ("further increasing it in the sequential model causes
    divergence"), and their verdict on the linear rule depends on it."""
    ends: dict[float, tuple[str, float]] = {}
    tried: list[Tried] = []
    epochs = range_epochs(options.epochs)
    while rates := next_rates(recipe_rate, tried, 1, factor=FACTOR, rungs=RUNGS):
        (rate,) = rates
        short = replace(options, learning_rate=rate, epochs=epochs, target=None, patience=None)
        run = PlannedRun(
            folder=f"range/rate-{rate:.6g}", label=f"range test, rate {rate:.3g}", options=short
        )
        train([run])
        content = RunFolder(study / run.folder).read()
        loss = content["result"]["valid_loss"]
        finite = content["status"] == "finished" and isinstance(loss, float)
        ends[rate] = (content["result"]["message"], loss if finite else math.inf)
        tried = _judged(ends)
    largest, _ = bracket(tried)
    if largest is None:
        raise UserError(
            f"--learning-rate largest: no rate from {recipe_rate:.3g} down to "
            f"{tried[0].learning_rate:.3g} converges in {epochs} epochs; give a rate"
        )
    return Rate(value=largest, how="largest", tried=tuple(tried))


def _judged(ends: dict[float, tuple[str, float]]) -> list[Tried]:
    """Every rate in order, from how its run ended and its validation loss."""
    bar = LOSS_FACTOR * min(loss for _, loss in ends.values())
    return [
        Tried(
            learning_rate=rate,
            converged=math.isfinite(loss) and loss <= bar,
            loss=loss,
            why=why or ("" if loss <= bar else "its loss stays high"),
        )
        for rate, (why, loss) in sorted(ends.items())
    ]
