"""Which learning rates are tried, and which of them converge; what noise scales say of batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from samepath.insight.advise.advice import NoisePoint, example_efficiency
from samepath.insight.advise.runs import (
    MOST_POINTS,
    critical_batch,
    judge,
    next_rates,
    noise_points,
    planned_rounds,
    range_test,
    thinned,
    weak_workers,
)
from samepath.study.rates import CLOSE

STEPS = 20


def run(curvature: float, start: float = 2.0) -> Callable[[float], list[float]]:
    """Gradient descent on a parabola: it converges below a rate of 2 / curvature."""

    def losses(rate: float) -> list[float]:
        return [start * (1.0 - rate * curvature) ** (2 * step) for step in range(STEPS)]

    return losses


def search(
    losses: Callable[[float], list[float]], rate: float, workers: int
) -> tuple[dict[float, list[float]], int]:
    """As the workers do it; all that was tried, and in how many rounds."""
    found: dict[float, list[float]] = {}
    for rounds in range(50):
        rates = next_rates(rate, found, STEPS, workers)
        assert len(rates) <= workers
        if not rates:
            return found, rounds
        assert not set(rates) & set(found), "nothing is tried twice"
        found |= {each: losses(each) for each in rates}
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9, 30.0])
def test_the_largest_rate_is_found_from_wherever(workers: int, rate: float) -> None:
    limit = 1.0  # 2 / curvature: above it the loss grows
    found, rounds = search(run(curvature=2.0), rate, workers)
    test = range_test(rate, found, STEPS)
    assert test.largest is not None
    assert test.failing is not None
    assert test.largest < limit <= test.failing * 1.02
    assert test.failing / test.largest <= CLOSE
    assert rounds <= 3 * planned_rounds(workers)
    assert test.linear_workers == max(int(test.largest / rate), 1)
    assert test.note == ""


def test_a_rate_that_does_nothing_is_too_low_not_too_high() -> None:
    found, _ = search(run(curvature=2e-4), 1.0, 2)
    test = range_test(1.0, found, STEPS)
    assert test.largest is not None
    assert test.largest > 64.0


def test_all_rates_converge() -> None:
    found, _ = search(lambda rate: [2.0 * 0.8**step for step in range(STEPS)], 0.1, 2)
    test = range_test(0.1, found, STEPS)
    assert test.largest == pytest.approx(0.1 * 4**5)
    assert test.failing is None
    assert "larger ones may" in test.note


def test_no_rate_converges() -> None:
    found, _ = search(lambda rate: [2.0] * STEPS, 0.1, 2)
    test = range_test(0.1, found, STEPS)
    assert test.largest is None
    assert test.linear_workers is None
    assert "no rate lowered the loss by 2% within 20 steps" in test.note
    found, _ = search(lambda rate: [2.0, math.nan], 0.1, 2)
    test = range_test(0.1, found, STEPS)
    assert test.note == "every rate that was tried diverged"
    assert min(found) < 0.1 / 64
    assert range_test(0.1, {0.1: [], 0.4: []}, STEPS).start_loss is None
    assert {trial.why for trial in test.trials} == {"it diverged"}


def test_why_a_rate_does_not_converge() -> None:
    good, stuck, lost = ([2.0] * 10 + [end] * 10 for end in (0.5, 1.9, math.inf))
    trials = judge({0.1: good, 0.4: stuck, 1.6: lost, 0.01: stuck}, STEPS)
    assert [(trial.learning_rate, trial.converged) for trial in trials] == [
        (0.01, True),  # slow
        (0.1, True),
        (0.4, False),
        (1.6, False),
    ]
    assert [trial.why for trial in trials[2:]] == ["its loss stays high", "it diverged"]
    assert trials[1].loss == 0.5


def test_luck_above_a_failure_does_not_count() -> None:
    good, bad = ([2.0] * 10 + [end] * 10 for end in (0.5, 1.9))
    test = range_test(0.1, {0.1: good, 0.2: bad, 0.4: [*good[:-1], 0.6]}, STEPS)
    assert (test.largest, test.failing) == (0.1, 0.2)


# ---- the critical batch


def point(scale: float, low: float, high: float) -> NoisePoint:
    return NoisePoint(step=100, scale=scale, low=low, high=high)


HOW: dict[str, Any] = {"batch_size": 64, "floor": 0.8, "steps": 100, "grain_size": 8}


def test_lines_with_an_interval() -> None:
    nothing: dict[str, Any] = {"noise_scale": 5.0, "noise_low": None, "noise_high": None}
    lines = [
        {"step": 1, "train_loss": 1.0},
        {"step": 2, "train_loss": 1.0, **nothing},
        {"step": 3, "noise_scale": 50.0, "noise_low": 20.0, "noise_high": 90.0},
        {"step": 4, "noise_scale": None, "noise_low": 30.0, "noise_high": None},
        {"step": 4, "epoch": 0, "epoch_train_loss": 1.0},
    ]
    assert noise_points(lines) == [
        NoisePoint(step=3, scale=50.0, low=20.0, high=90.0),
        NoisePoint(step=4, scale=math.inf, low=30.0, high=math.inf),
    ]


def test_efficiency_of_examples() -> None:
    # McCandlish: at the critical batch twice the least examples are needed
    assert example_efficiency(1000.0, 1000, 2) == pytest.approx(2 / 3)
    assert example_efficiency(0.0, 1000, 4) == pytest.approx(1 / 4)
    assert example_efficiency(math.inf, 1000, 4) == 1.0
    for critical in (0.0, 10.0, 64.0, 500.0, 1e5):
        most = weak_workers(critical, 64, 0.8)
        assert most is not None
        assert most == 1 or example_efficiency(critical, 64, most) >= 0.8 - 1e-9
        assert example_efficiency(critical, 64, most + 1) < 0.8
    assert weak_workers(math.inf, 64, 0.8) is None


def test_room_is_there_not_there_or_unknown() -> None:
    three = 3 * 64  # of the critical batch, at which two workers keep 80%
    yes = critical_batch([point(9e9, 8.01 * three, 9e9)], part=1.0, **HOW)
    assert yes.room == "yes"
    assert yes.weak_workers_low == 2
    no = critical_batch([point(1.0, 1.0, 2.2 * three)], part=1.0, **HOW)
    assert no.room == "no"
    assert no.weak_workers_high == 1
    early = critical_batch([point(1.0, 1.0, 2.2 * three)], part=0.2, **HOW)
    assert early.room == "unknown"  # it may still come
    assert critical_batch([point(9e9, 8.01 * three, 9e9)], part=0.0, **HOW).room == "yes"
    between = critical_batch([point(9e9, 7.9 * three, 9e9)], part=1.0, **HOW)
    assert between.room == "unknown"
    endless = critical_batch([point(math.inf, 1.0, math.inf)], part=1.0, **HOW)
    assert endless.room == "unknown"
    assert endless.weak_workers_high is None
    nothing = critical_batch([], part=1.0, note="too few", **HOW)
    assert (nothing.room, nothing.critical_low, nothing.note) == ("unknown", None, "too few")


def test_the_last_point_counts_and_an_early_end_is_said() -> None:
    points = [point(10.0, 5.0, 20.0), point(100.0, 50.0, 200.0)]
    found = critical_batch(points, part=0.07, note="in grains of 8", **HOW)
    assert found.noise_scale == 100.0
    assert found.note == "in grains of 8; after 7% of the training; it grows as the loss falls"
    assert critical_batch(points, part=0.6, **HOW).note == ""
    assert "after less than 1% of" in critical_batch(points, part=0.003, **HOW).note


def test_points_are_thinned_and_the_last_is_kept() -> None:
    points = [NoisePoint(step=i, scale=1.0, low=1.0, high=1.0) for i in range(1000)]
    kept = thinned(points)
    assert len(kept) <= MOST_POINTS
    assert kept[-1] == points[-1]
    assert thinned(points[:5]) == tuple(points[:5])
    assert thinned([]) == ()
