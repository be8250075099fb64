"""The largest learning rate at which the sequential run still converges: a short range test.

In: options and a way to train jobs. Out: a Rate with everything that was tried. The rate doubles
from the recipe's until a short run no longer converges, then the last doubling is halved twice (on
a log scale). A short run converges if it stays finite and ends with at most twice the lowest
validation loss any rate ended with. Cunha et al. 2018 chose their rate so ("further increasing it
in the sequential model causes divergence"), and their verdict on the linear rule depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from samepath.engine.run.options import Options
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.study.grid import Job
from samepath.study.results import Rate, Tried

MOST_DOUBLINGS = 12
HALVINGS = 2
LOSS_FACTOR = 2.0


def range_epochs(max_epochs: int) -> int:
    """Long enough to tell, short beside the study."""
    return max(2, math.ceil(max_epochs / 20))


def largest_rate(
    options: Options, recipe_rate: float, study: Path, run: Callable[[Sequence[Job]], None]
) -> Rate:
    """Try rates, each with a short sequential run in the study's folder."""
    tried: dict[float, tuple[str, float]] = {}
    epochs = range_epochs(options.epochs)

    def converges(rate: float) -> bool:
        if rate not in tried:
            short = replace(options, learning_rate=rate, epochs=epochs, target=None, patience=None)
            job = Job(
                folder=f"range/rate-{rate:.6g}", label=f"range test, rate {rate:.3g}", options=short
            )
            run([job])
            content = RunFolder(study / job.folder).read()
            loss = content["result"]["valid_loss"]
            finite = content["status"] == "finished" and isinstance(loss, float)
            tried[rate] = (content["result"]["message"], loss if finite else math.inf)
        lowest = min(loss for _, loss in tried.values())
        return math.isfinite(tried[rate][1]) and tried[rate][1] <= LOSS_FACTOR * lowest

    good = bad = recipe_rate
    for _ in range(MOST_DOUBLINGS):
        if converges(good):
            break
        bad, good = good, good / 2
    else:
        raise UserError(
            f"--learning-rate largest: no rate from {recipe_rate:.3g} down to {good:.3g} converges "
            f"in {epochs} epochs; give a rate"
        )
    while bad <= good and good < recipe_rate * 2**MOST_DOUBLINGS:
        if converges(2 * good):
            good *= 2
        else:
            bad = 2 * good
    for _ in range(HALVINGS if bad > good else 0):
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if converges(middle) else (good, middle)
    while not converges(good):  # a later try ended lower, and moved the bar
        good = max(rate for rate in tried if rate < good)
    lowest = min(loss for _, loss in tried.values())
    return Rate(
        value=good,
        how="largest",
        tried=tuple(
            Tried(
                learning_rate=rate,
                converged=math.isfinite(loss) and loss <= LOSS_FACTOR * lowest,
                loss=loss,
                why=why or ("" if loss <= LOSS_FACTOR * lowest else "its loss stays high"),
            )
            for rate, (why, loss) in sorted(tried.items())
        ),
    )
