"""Which learning rates to try, and which of them still converge. Pure.

In: training losses of short runs, step by step, by their rate. Out: the rates to try next, and in
the end a RangeTest. All runs begin with the same weights and see the same batches in the same
order, so that their losses differ by the rate alone. A run converges if it lowers the loss, and
not by less than half of what the best run did where its rate is above that one's (below it is only
slow). Rates go up in fours from the recipe's until one does not; then what lies between is divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from samepath.insight.advise.advice import RangeTest, Trial

FACTOR = 4.0
RUNGS = 6
"""Rates above the recipe's, up to 4^5 of it; and as many below."""
CLOSE = 1.3
"""The ratio at which the largest rate is known well enough."""
LEAST_DECREASE = 0.02
"""Of the first loss: less is no decrease."""
KEPT = 0.5
"""Of the best decrease."""
LEAST_STEPS, MOST_STEPS = 10, 200
"""Of a short run."""

Losses = Mapping[float, Sequence[float]]


def planned_rounds(workers: int) -> int:
    """So many times as many rates as there are workers are usually enough."""
    return 1 + math.ceil(4 / workers)


def judge(losses: Losses, steps: int) -> list[Trial]:
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
        found.append(Trial(learning_rate=rate, converged=not why, end_loss=end, why=why))
    return found


def next_rates(recipe_rate: float, losses: Losses, steps: int, number: int) -> list[float]:
    """At most so many rates to try next; none: it is known, or cannot be."""
    trials = judge(losses, steps)
    ladder = [recipe_rate * FACTOR**rung for rung in range(RUNGS)]
    if not trials:
        return ladder[:number]
    largest, failing = _bracket(trials)
    if largest is not None and failing is not None:
        if failing / largest <= CLOSE:
            return []
        step = (failing / largest) ** (1.0 / (number + 1))
        return [largest * step**place for place in range(1, number + 1)]
    highest, lowest = trials[-1], trials[0]
    # where nothing has fallen yet, rates that leave the loss as it is are too low, not too high
    start = _start(losses)
    flat = highest.end_loss <= start + LEAST_DECREASE * abs(start)
    if largest is not None or flat:
        above = [rate for rate in ladder if rate > highest.learning_rate * CLOSE]
        return above[:number]
    lower = [lowest.learning_rate / FACTOR ** (rung + 1) for rung in range(RUNGS)]
    return [rate for rate in lower if rate > recipe_rate / FACTOR**RUNGS][:number]


def range_test(recipe_rate: float, losses: Losses, steps: int, note: str = "") -> RangeTest:
    """What all runs together say."""
    trials = judge(losses, steps)
    largest, failing = _bracket(trials)
    if trials and largest is None and not note:
        if any(math.isfinite(trial.end_loss) for trial in trials):
            note = f"no rate lowered the loss by {LEAST_DECREASE:.0%} within {steps} steps"
        else:
            note = "every rate that was tried diverged"
    elif largest is not None and failing is None and not note:
        note = "every rate that was tried converged; larger ones may"
    return RangeTest(
        recipe_rate=recipe_rate,
        steps=steps,
        start_loss=_start(losses) if any(losses.values()) else None,
        trials=tuple(trials),
        largest=largest,
        failing=failing,
        note=note,
    )


def _bracket(trials: Sequence[Trial]) -> tuple[float | None, float | None]:
    """The largest rate that converges, below all that do not, and the next that does not.

    A rate that converges above one that does not is luck, and not to be recommended."""
    best = min(trials, key=lambda trial: trial.end_loss, default=None)
    if best is None or not best.converged:
        return None, None
    above = [trial for trial in trials if trial.learning_rate >= best.learning_rate]
    failing = next((trial.learning_rate for trial in above if not trial.converged), None)
    good = [t.learning_rate for t in above if failing is None or t.learning_rate < failing]
    return max(good), failing


def _start(losses: Losses) -> float:
    return next((seen[0] for seen in losses.values() if seen), math.nan)


def _end(seen: Sequence[float], steps: int) -> float:
    """The mean of the last fifth, at least three; infinite where the run did not get there."""
    if len(seen) < steps or not all(map(math.isfinite, seen)):
        return math.inf
    last = seen[:steps][-max(3, steps // 5) :]
    return math.fsum(last) / len(last)
