"""Two sentences on a race: always two, always true."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from samepath.report.study_verdict import verdict
from samepath.report.words import duration
from samepath.study.results import Cell, Ended, Interval
from samepath.timing.measured import How


def cell(
    strategy: str,
    workers: int,
    seconds: float | None,
    *,
    ended: Ended = "diverged",
    how: How = "measured",
    one: float | None = 100.0,
    seeds: int = 1,
    reached: int | None = None,
) -> Cell:
    """With a time it was reached, else it ended so. `one` is the sequential run's time."""
    reached = (seeds if seconds is not None else 0) if reached is None else reached
    ends = {"target": reached, ended: seeds - reached}
    share = None if seconds is None or one is None else one / workers / seconds
    return Cell(
        strategy=strategy,
        workers=workers,
        reached=reached,
        seeds=seeds,
        how=how,
        seconds=None if seconds is None else Interval(median=seconds, low=seconds, high=seconds),
        epochs=None,
        efficiency=None if share is None else Interval(median=share, low=share, high=share),
        ended={name: count for name, count in ends.items() if count},
    )


def times(
    strategy: str, found: Mapping[int, float | None], ended: Ended = "diverged"
) -> list[Cell]:
    """Measured up to two workers, modelled above."""
    return [
        cell(strategy, k, seconds, ended=ended, how="measured" if k <= 2 else "modelled")
        for k, seconds in found.items()
    ]


def judged(cells: Sequence[Cell], rate_how: str = "recipe") -> str:
    text = verdict(cells, 0.004, rate_how)
    assert re.fullmatch(r"[A-Z].*[^.]\. [A-Z].*[^.]\.", text), text
    assert len(re.findall(r"\.(?= |$)", text)) == 2, text
    assert "  " not in text
    return text


STRONG = times("strong", {1: 100.0, 2: 52.0, 4: 27.0, 8: 15.0})


def test_one_leads_everywhere() -> None:
    weak = times("weak", {1: 100.0, 2: 60.0, 4: 50.0, 8: 49.0})
    warmup = times("warmup", {1: 100.0, 2: 60.0, 4: None, 8: None}, "stuck")
    linear = times("linear", {1: 100.0, 2: None, 4: None, 8: None})
    assert judged(STRONG + weak + warmup + linear) == (
        "Strong scaling reaches 0.004 soonest at every worker count tried from 2 on: 15 s with 8 "
        "workers (modelled), 6.7 times as fast as one worker. Of the others, weak reaches it at "
        "every count but never sooner; warmup fails from 4 workers on (stuck); linear fails with "
        "more than one worker (diverged)."
    )


def test_what_failing_at_the_largest_rate_means() -> None:
    linear = times("linear", {1: 100.0, 2: 80.0, 4: 70.0, 8: None})
    assert judged(STRONG + linear, "largest").endswith(
        "linear fails with 8 workers (diverged); the base rate is already the largest at which one "
        "worker converges."
    )
    slow = times("linear", {1: 100.0, 2: 80.0, 4: 70.0, 8: None}, "epochs")
    assert "base rate" not in judged(STRONG + slow, "largest")


def test_those_of_whom_the_same_is_true_are_named_together() -> None:
    others = [c for name in ("weak", "sqrt") for c in times(name, {1: 100.0, 2: 60.0, 4: 55.0})]
    assert judged(STRONG[:3] + others).endswith(
        "Of the others, weak and sqrt reach it at every count but never sooner."
    )


def test_different_leaders() -> None:
    lars = times("lars", {1: 100.0, 2: 60.0, 4: 25.0, 8: 10.0})
    late = times("weak", {1: 100.0, 2: 70.0, 4: 60.0, 8: 50.0})
    assert judged(STRONG + lars + late) == (
        "No strategy reaches 0.004 soonest at every worker count: strong does with 2 workers; lars "
        "does with 4 and 8 workers; the best time is 10 s by lars with 8 workers (modelled), 10 "
        "times as fast as one worker. Weak reaches it at every count but is never soonest."
    )
    assert judged(STRONG + lars).endswith("All strategies reach it at every worker count tried.")


def test_ties() -> None:
    noise = times("noise", {1: 100.0, 2: 52.0, 4: 27.0, 8: 15.0})
    weak = times("weak", {1: 100.0, 2: 70.0, 4: 60.0, 8: 50.0})
    assert judged(STRONG + noise) == (
        "Both strategies reach 0.004 equally soon at every worker count tried from 2 on, soonest "
        "with 8, in 15 s (modelled), 6.7 times as fast as one worker. The efficiency of each, "
        "T1 / (n Tn), is 96.2 % with 2 workers and 83.3 % with 8 workers."
    )
    assert judged(STRONG + noise + weak).startswith(
        "Strong scaling and noise reach 0.004 soonest, in a tie, at every worker count"
    )
    partly = times("sqrt", {1: 100.0, 2: 52.1, 4: 60.0, 8: 50.0})
    assert "sqrt reaches it at every count, as soon with 2 workers, but never sooner" in judged(
        STRONG + partly
    )


def test_a_single_strategy() -> None:
    assert judged(STRONG) == (
        "Strong scaling reaches 0.004 at every worker count tried from 2 on, soonest with 8, in "
        "15 s (modelled), 6.7 times as fast as one worker. Its efficiency, T1 / (n Tn), is 96.2 % "
        "with 2 workers and 83.3 % with 8 workers."
    )
    assert judged(times("lamb", {1: 100.0, 2: 60.0, 4: None, 8: None})) == (
        "Lamb reaches 0.004 with 2 workers in 60 s (measured), 1.7 times as fast as one worker. "
        "Lamb fails from 4 workers on (diverged)."
    )


def test_workers_that_do_not_pay() -> None:
    assert judged(times("strong", {1: 100.0, 2: 140.0})).startswith(
        "Strong scaling reaches 0.004 with 2 workers in 2.3 min (measured), slower than one worker."
    )
    assert "about as fast as one worker" in judged(times("strong", {1: 100.0, 2: 99.0}))


def test_one_worker_only() -> None:
    one = [cell("strong", 1, 100.0), cell("weak", 1, 100.0)]
    assert judged(one) == (
        "With one worker, both strategies reach 0.004: 100 s (measured). No larger worker count "
        "was tried, so nothing is known about scaling."
    )
    lars = [cell("lars", 1, 90.0), cell("lamb", 1, None)]
    assert judged(one + lars) == (
        "With one worker, lars reaches 0.004 soonest: 90 s (measured). No larger worker count was "
        "tried, so nothing is known about scaling; lamb never reaches it (diverged); strong and "
        "weak reach it later."
    )
    assert judged(times("linear", {1: 100.0, 2: None, 4: None})) == (
        "Only one worker reaches 0.004: 100 s (measured). Linear fails with more than one worker "
        "(diverged)."
    )


def test_nothing_reached() -> None:
    none = {1: None, 2: None}
    assert judged(times("strong", none, "epochs") + times("linear", none)) == (
        "No strategy reaches 0.004 at any worker count tried (1 and 2). Strong never reaches it "
        "(epoch limit); linear never reaches it (diverged)."
    )
    assert judged(times("strong", none, "unfinished")) == (
        "No strategy reaches 0.004 yet at any worker count tried (1 and 2). Strong has not reached "
        "it yet (not finished)."
    )
    half = judged([cell("strong", 2, None, seeds=2, reached=1)])
    assert "reaches 0.004 on more than half of the seeds at any" in half
    assert judged([]).startswith("Nothing was raced")


def test_without_one_worker() -> None:
    cells = [cell("strong", 2, 52.0, one=None), cell("strong", 4, 27.0, one=None)]
    assert judged(cells) == (
        "Strong scaling reaches 0.004 at every worker count tried from 2 on, soonest with 4, in "
        "27 s (measured). How efficient that is cannot be said, as no run with one worker reached "
        "it."
    )


def test_what_reached_means_if_seeds_differ() -> None:
    some = [cell("weak", 1, 100.0), cell("weak", 2, 90.0, seeds=3, reached=2)]
    assert judged(STRONG[:2] + some).endswith(
        "; a count is taken as reached where more than half of its seeds reached it."
    )


def test_sooner_with_one_worker_only() -> None:
    lars = times("lars", {1: 80.0, 2: 70.0, 4: 60.0, 8: 50.0})
    assert "lars reaches it at every count but sooner only with one worker" in judged(STRONG + lars)


def test_a_leader_that_fails_where_all_fail() -> None:
    strong = times("strong", {1: 100.0, 2: 52.0, 4: 27.0, 8: None}, "impossible")
    linear = times("linear", {1: 100.0, 2: None, 4: None, 8: None})
    assert judged(strong + linear) == (
        "Strong scaling reaches 0.004 soonest with 2 and 4 workers: 27 s with 4 workers "
        "(modelled), 3.7 times as fast as one worker. Strong fails with 8 workers (batch larger "
        "than the data); of the others, linear fails with more than one worker (diverged)."
    )


@pytest.mark.parametrize("seed", range(60))
def test_two_true_sentences_of_anything(seed: int) -> None:
    """The best time, how it is known and who never gets there, recomputed."""
    random = np.random.default_rng(seed)
    names = ["strong", "weak", "linear", "warmup:epochs=10"][: random.integers(1, 5)]
    counts = [1, 2, 4, 8][random.integers(0, 2) : random.integers(2, 5)]
    ways: list[Ended] = ["diverged", "stuck", "epochs", "impossible", "unfinished"]
    cells = [
        cell(
            name,
            k,
            None if random.random() < 0.4 else float(random.integers(10, 90)),
            ended=ways[random.integers(0, 5)],
            how="measured" if random.random() < 0.5 else "modelled",
            one=None if random.random() < 0.3 else 100.0,
        )
        for name in names
        for k in counts
        if random.random() < 0.9
    ]
    text = judged(cells, "largest")
    first, _, second = text.partition(". ")
    found = {(c.strategy, c.workers): c.seconds.median for c in cells if c.seconds is not None}
    if not found:
        assert text.startswith("No")
        return
    more = {key: seconds for key, seconds in found.items() if key[1] > 1} or found
    best = min(more.values())
    hows = {c.how for c in cells if more.get((c.strategy, c.workers), math.inf) <= 1.01 * best}
    assert duration(best) in first
    assert any(f"({how})" in first for how in hows)
    for name in {c.strategy for c in cells}:
        if not any(key[0] == name for key in found):
            assert name.lower() in second.lower()
            assert "reach" in second
        if all((name, c.workers) in found for c in cells if c.strategy == name):
            assert not re.search(rf"{name}[^;]*\bfails?\b", second, re.IGNORECASE), text
