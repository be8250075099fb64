"""Two sentences on a race: always two, always true."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from samepath.report.study_verdict import verdict
from samepath.report.words import duration
from samepath.study.results import Cell, Ended, Interval, Prediction
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
SLOWER = {1: 100.0, 2: 60.0, 4: 50.0, 8: 49.0}
EVERYWHERE = "reached at every worker count that was run"


def test_one_leads_everywhere() -> None:
    slower = times("weak", SLOWER) + times("sqrt", SLOWER)
    warmup = times("warmup", {1: 100.0, 2: 60.0, 4: None, 8: None}, "stuck")
    linear = times("linear", {1: 100.0, 2: None, 4: None, 8: None})
    assert judged(STRONG + slower + warmup + linear) == (
        "A loss of 0.004 is reached soonest by strong with 8 workers: 15 s (modelled, not "
        "checked), 6.7 times as fast "
        "as one worker; soonest by worker count: strong (2, 4 and 8 workers). Strong, weak "
        f"and sqrt: {EVERYWHERE}; warmup: not reached with 4 and 8 workers (stuck); linear: not "
        "reached with 2, 4 and 8 workers (diverged)."
    )


def test_what_failing_at_the_largest_rate_means() -> None:
    linear = times("linear", {1: 100.0, 2: 80.0, 4: 70.0, 8: None})
    assert judged(STRONG + linear, "largest").endswith(
        "linear: not reached with 8 workers (diverged); the base rate is already the largest at "
        "which one worker converges."
    )
    slow = times("linear", {1: 100.0, 2: 80.0, 4: 70.0, 8: None}, "epochs")
    assert "base rate" not in judged(STRONG + slow, "largest")


def test_different_leaders_and_ties() -> None:
    lars = times("lars", {1: 100.0, 2: 52.1, 4: 25.0, 8: 10.0})
    late = times("weak", {1: 100.0, 2: 70.0, 4: 60.0, 8: 50.0})
    assert judged(STRONG + lars + late) == (
        "A loss of 0.004 is reached soonest by lars with 8 workers: 10 s (modelled, not "
        "checked), 10 times as fast "
        "as one worker; soonest by worker count: strong and lars (2 workers), lars (4 and 8 "
        f"workers). Strong, lars and weak: {EVERYWHERE}."
    )


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ({1: 100.0, 2: 140.0}, "strong with 2 workers: 2.3 min (measured), slower than one worker"),
        (
            {1: 100.0, 2: 99.0},
            "strong with 2 workers: 99 s (measured), about as fast as one worker",
        ),
        ({1: 100.0}, "strong with 1 worker: 100 s (measured); no larger worker count was tried"),
        ({1: 100.0, 2: None}, "strong with 1 worker: 100 s (measured)"),
    ],
)
def test_workers_that_do_not_pay(found: dict[int, float | None], first: str) -> None:
    text = judged(times("strong", found))
    assert text.startswith(f"A loss of 0.004 is reached soonest by {first}. Strong: ")


def test_nothing_reached() -> None:
    none = {1: None, 2: None}
    assert judged(times("strong", none, "epochs") + times("linear", none)) == (
        "A loss of 0.004 is not reached with 1 and 2 workers. Strong: never reached (epoch limit); "
        "linear: never reached (diverged)."
    )
    assert judged(times("strong", none, "unfinished")) == (
        "A loss of 0.004 is not reached yet with 1 and 2 workers. Strong: not reached with 1 and 2 "
        "workers (not finished)."
    )
    half = judged([cell("strong", 2, None, seeds=2, reached=1)])
    assert "is not reached by more than half of the seeds with 2 workers" in half
    assert "Strong: not reached with 2 workers (diverged)" in half, "one seed did reach it"
    assert judged([]).startswith("Nothing was raced")


def test_without_one_worker() -> None:
    cells = [cell("strong", 2, 52.0, one=None), cell("strong", 4, 27.0, one=None)]
    assert "27 s (measured), with no time of one worker to compare it with" in judged(cells)


def checked(measured: float, modelled: float) -> list[Prediction]:
    """The model's own check with two workers."""
    return [
        Prediction(
            strategy="strong",
            workers=2,
            measured_efficiency=measured,
            modelled_efficiency=modelled,
        )
    ]


def test_the_models_error_stands_beside_a_modelled_time() -> None:
    said = verdict(STRONG, 0.004, "recipe", predictions=checked(0.8, 0.84))
    assert "strong with 8 workers: 15 s (modelled, the model 5% off with 2 workers), 6.7" in said
    measured = verdict(STRONG[:2], 0.004, "recipe", predictions=checked(0.8, 0.84))
    assert "with 2 workers: 52 s (measured), 1.9 times" in measured


def test_a_model_that_fails_its_check_is_not_quoted() -> None:
    """Only what was measured is; who reached the target does not depend on the model."""
    off = checked(0.4, 0.892)
    said = verdict(STRONG, 0.004, "recipe", predictions=off)
    assert said == (
        "A loss of 0.004 is reached soonest by strong with 2 workers: 52 s (measured), 1.9 times "
        "as fast as one worker; modelled times are not quoted, the model 123% off with 2 workers. "
        f"Strong: {EVERYWHERE}."
    )
    none = verdict(STRONG[2:], 0.004, "recipe", predictions=off)
    assert none.startswith("A loss of 0.004 is reached; modelled times are not quoted, the model")
    assert "times as fast" not in none
    alone = verdict([STRONG[0], *STRONG[2:]], 0.004, "recipe", predictions=off)
    assert "with 1 worker: 100 s (measured); modelled times" in alone, "others were tried"


def test_what_reached_means_if_seeds_differ() -> None:
    some = [cell("weak", 1, 100.0), cell("weak", 2, 90.0, seeds=3, reached=2)]
    assert judged(STRONG[:2] + some).endswith(
        "; a count is taken as reached where more than half of its seeds reached it."
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
        assert "not reached" in text or text.startswith("Nothing")
        return
    more = {key: seconds for key, seconds in found.items() if key[1] > 1} or found
    best = min(more.values())
    hows = {c.how for c in cells if more.get((c.strategy, c.workers), math.inf) <= 1.01 * best}
    assert duration(best) in first
    assert any(f"({how}" in first for how in hows)
    for name in {c.strategy for c in cells}:
        (fate,) = (part for part in second.split("; ") if name in part.lower())
        reached = [(name, c.workers) in found for c in cells if c.strategy == name]
        assert (": reached at" in fate) == all(reached), text
        assert ": never" not in fate or not any(reached), text
