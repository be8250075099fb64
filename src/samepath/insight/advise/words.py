"""What advice says in words. Pure: facts in, sentences out.

In: curves over links, a range test, a critical batch. Out: a verdict of two sentences (how many
workers; which batch and rate), and what was measured and what modelled. Guaranteed: nothing is
claimed that was not found; "cannot be told" is an answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from samepath.insight.advise.advice import CriticalBatch, Curve, Limit, RangeTest
from samepath.insight.advise.critical_batch import example_efficiency
from samepath.timing.links import HERE

_BEYOND: dict[Limit, str] = {
    "link": "beyond that the link takes the time",
    "update": "beyond that the update, which every worker does alike, takes the time",
    "waiting": "beyond that workers wait for each other",
    "crowding": "beyond that workers of one computer slow each other down",
    "grains": "a batch has no more to share",
    "cores": "it has no more",
    "asked": "more were not asked about",
}
_WHY: dict[Limit, str] = {
    "link": "the link takes longer than is saved",
    "update": "most of a step is the update, which every worker does alike",
    "waiting": "workers wait for each other",
    "crowding": "workers of one computer slow each other down",
    "grains": "a batch is a single grain",
    "cores": "it has a single core or GPU",
    "asked": "more were not asked about",
}
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def verdict(
    curves: Sequence[Curve],
    rates: RangeTest,
    batch: CriticalBatch,
    *,
    batch_size: int,
    floor: float,
) -> str:
    """Two sentences."""
    first = "; ".join(_of_curve(curve, floor) for curve in _main(curves))
    second = f"{_of_batch(batch, batch_size, floor)}; {_of_rate(rates)}"
    return f"{_capital(first)}. {_capital(second)}."


def _main(curves: Sequence[Curve]) -> list[Curve]:
    """This machine, and the first of the others."""
    here = [curve for curve in curves if curve.network == HERE]
    others = [curve for curve in curves if curve.network != HERE]
    return here[:1] + others[:1]


def _of_curve(curve: Curve, floor: float) -> str:
    place = "on this machine" if curve.network == HERE else f"over {curve.network}"
    if curve.best == 1:
        more = [row for row in curve.rows if row.workers > 1]
        if not more:
            return f"{place} there is only one worker to be had: {_WHY[curve.limit]}"
        return (
            f"{place} stay with one worker: {more[0].workers} would keep {more[0].efficiency:.0%} "
            f"efficiency, below {floor:.0%}, because {_WHY[curve.limit]}"
        )
    row, alone = curve.row(curve.best), curve.row(1)
    nodes = f" on {row.nodes} nodes" if row.nodes not in (1, row.workers) else ""
    return (
        f"{place} take {row.workers} workers{nodes}, {row.speedup:.1f} times as fast as one at "
        f"{row.efficiency:.0%} efficiency ({span(alone.training_seconds)} of training become "
        f"{span(row.training_seconds)}; {_BEYOND[curve.limit]})"
    )


def _of_batch(batch: CriticalBatch, batch_size: int, floor: float) -> str:
    if batch.critical_low is None or batch.critical_high is None:
        return f"whether a larger batch pays cannot be told ({batch.note})"
    low, high = examples(batch.critical_low), examples(batch.critical_high)
    if batch.room == "yes":
        number = batch.weak_workers_low
        workers = "any number of" if number is None else f"up to {number:,}"
        return (
            f"a larger batch has room: the critical batch is at least {low} against {batch_size:,},"
            f" so {workers} workers with such a batch each keep {floor:.0%} of what an example "
            "teaches"
        )
    if batch.room == "no":
        return (
            f"keep the batch of {batch_size:,} and share it: the critical batch is at most {high}, "
            f"so twice the batch would keep less than {floor:.0%} of what an example teaches"
        )
    if example_efficiency(batch.critical_high, batch_size, 2) < floor:
        return (
            f"a larger batch has no room at the start, where the critical batch is at most {high} "
            f"against {batch_size:,}, and for later it cannot be told yet"
        )
    between = f"at least {low}" if math.isinf(batch.critical_high) else f"between {low} and {high}"
    return (
        f"whether a larger batch than {batch_size:,} pays cannot be told yet: the critical batch "
        f"is {between}"
    )


def _of_rate(rates: RangeTest) -> str:
    most = rates.linear_workers
    if most is None:
        return f"the largest learning rate is not known ({rates.note or 'none was tried'})"
    if rates.largest is not None and rates.largest < rates.recipe_rate:
        return (
            f"the recipe's learning rate of {rates.recipe_rate:.3g} is too high already: "
            f"{rates.largest:.3g} is the largest that converged"
        )
    if rates.failing is None:
        return f"the learning rate can be multiplied by at least {most}"
    if most < 2:
        return (
            "multiplying the learning rate by the number of workers cannot work, as already "
            f"{rates.failing:.3g} does not converge (the recipe has {rates.recipe_rate:.3g})"
        )
    return (
        f"multiplying the learning rate by the number of workers can work for up to {most} "
        f"({rates.failing:.3g} no longer converges; the recipe has {rates.recipe_rate:.3g})"
    )


def span(seconds: float) -> str:
    """ "5 d 3 h", "17 h", "4 min 10 s": two units at most, the second only beside a small first."""
    if seconds < 10.0:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for (unit, length), (finer, part) in itertools.pairwise(_UNITS):
        if whole >= 10 * length:
            return f"{round(whole / length)} {unit}"
        if whole >= length:
            first, rest = divmod(round(whole / part), length // part)
            return f"{first} {unit}" + (f" {rest} {finer}" if rest else "")
    return f"{whole} s"


def examples(number: float) -> str:
    """Two digits are as much as is known."""
    if math.isinf(number):
        return "no end"
    digits = 0 if number < 1.0 else max(0, int(math.log10(number)) - 1)
    return f"{round(number, -digits):,.0f}" if number >= 1.0 else f"{number:.2g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
