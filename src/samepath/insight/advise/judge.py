"""What short runs say of learning rates and batch sizes. Pure.

In: training losses of short runs, step by step, by their rate; the noise scale along a run, with
its interval. Out: which rates to try next, a RangeTest, a CriticalBatch.

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

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from samepath.insight.advise.advice import (
    CriticalBatch,
    NoisePoint,
    RangeTest,
    RateTrial,
    Room,
    example_efficiency,
)
from samepath.study.rates import bracket
from samepath.study.rates import next_rates as rates_after
from samepath.study.results import Tried

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


# ---- learning rates


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
    return rates_after(recipe_rate, tried, number, factor=FACTOR, rungs=RUNGS, too_low=flat)


def range_test(recipe_rate: float, losses: Losses, steps: int, note: str = "") -> RangeTest:
    """What all runs together say."""
    tried = judge(losses, steps)
    largest, failing = bracket(tried)
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


# ---- batch sizes


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
