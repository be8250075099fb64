"""Which trials strategies get, which is chosen, and medians in which not reached is infinite."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from samepath.strategies import find_strategy
from samepath.study.race import cells_of
from samepath.study.results import Ended, Epoch, Interval, RunRecord, TuningTrial
from samepath.study.tuning import (
    OWN,
    RATE,
    Setting,
    best_trial,
    ranges_of,
    settings_to_try,
    trial_points,
    with_parameter,
)


def test_points_are_seeded_nested_and_of_their_study() -> None:
    assert trial_points(0, 5) == trial_points(0, 9)[:4], "more trials begin with the same ones"
    assert trial_points(0, 5) != trial_points(1, 5)
    rates = sorted(rate for rate, _ in trial_points(0, 9))
    assert [int(8 * rate) for rate in rates] == list(range(8)), "one in each eighth"


def test_what_is_prescribed_comes_first_and_the_rest_lies_in_the_ranges() -> None:
    points = trial_points(0, 30)
    for text in ("strong", "linear", "warmup", "sqrt-warmup:epochs=3", "lamb", "stale"):
        first, *others = settings_to_try(text, 0.02, points, None)
        assert first == Setting(text, None)
        own = find_strategy(text).function
        for setting in others:
            assert setting.learning_rate is not None
            assert RATE.low <= setting.learning_rate / 0.02 <= RATE.high
            drawn = find_strategy(setting.strategy).function
            assert type(drawn) is type(own)
            if hasattr(own, "epochs"):
                assert OWN["epochs"].low <= drawn.epochs / own.epochs <= OWN["epochs"].high  # type: ignore[attr-defined]
            if hasattr(own, "lag"):
                assert drawn.lag in (1, 2, 3, 4)  # type: ignore[attr-defined]
        assert len(set(others)) == len(others)
    lower = [s.learning_rate for s in settings_to_try("strong", 0.02, points, None)[1:]]
    assert min(lower) < 0.2 * 0.02, "the whole range is used"  # type: ignore[type-var, operator]
    assert max(lower) > 5 * 0.02  # type: ignore[type-var, operator]


def test_an_optimizers_own_rate_is_tuned_in_place_of_the_recipes() -> None:
    first, other = settings_to_try("lars:rate=5", 0.02, [(0.5, 0.5)], 0.02)
    assert first == Setting("lars:rate=5", 0.02)
    assert other == Setting("lars:epochs=5:rate=5", 0.02), "the middle of both ranges"
    _, high = settings_to_try("lars:rate=5", 0.02, [(1.0, 1.0)], 0.02)
    assert high == Setting("lars:epochs=20:rate=50", 0.02)
    assert with_parameter("warmup:epochs=5", "epochs", 2.5) == "warmup:epochs=2.5"


def test_ranges_are_those_of_the_strategies() -> None:
    assert ranges_of(["strong", "weak"]) == (RATE,)
    assert ranges_of(["strong", "lamb", "stale"]) == (RATE, OWN["epochs"], OWN["lag"])


def trial(seconds: float, loss: float) -> TuningTrial:
    return TuningTrial(strategy="strong", learning_rate=0.1, reached=1, seconds=seconds, loss=loss)


def test_soonest_is_chosen_else_the_lowest_loss() -> None:
    late, soon = trial(9.0, 0.1), trial(4.0, 0.3)
    never, lower, lost = trial(math.inf, 0.2), trial(math.inf, 0.15), trial(math.inf, math.nan)
    assert best_trial([late, soon, never]) == 1
    assert best_trial([never, late]) == 1, "however low the loss of the other"
    assert best_trial([lost, never, lower]) == 2
    assert best_trial([soon, replace(soon, loss=0.0)]) == 0, "what is prescribed, of equal ones"
    assert best_trial([lost, lost]) == 0


def test_intervals_cope_with_what_was_not_reached() -> None:
    assert Interval.bootstrapped([3.0]) == Interval(median=3.0, low=3.0, high=3.0)
    found = Interval.bootstrapped([1.0, 2.0, 3.0, math.inf, math.inf])
    assert (found.median, found.low, found.high) == (3.0, 1.0, math.inf)
    never = Interval.bootstrapped([math.inf] * 4)
    assert (never.median, never.low, never.high) == (math.inf,) * 3
    assert Interval.bootstrapped([1.0, 2.0, math.inf, math.inf]).median == math.inf
    many = Interval.bootstrapped([float(x) for x in range(101)])
    assert many == Interval.bootstrapped([float(x) for x in range(101)]), "the same every time"
    assert many.median == 50.0
    # the binomial interval of a median of 101 values is that of their ranks 41 to 61
    assert many.low == pytest.approx(40.0, abs=2.0)
    assert many.high == pytest.approx(60.0, abs=2.0)


def record(
    strategy: str, workers: int, study: int, seed: int, seconds: float | None, *, tuned: bool
) -> RunRecord:
    epoch = Epoch(
        epoch=1,
        steps=1,
        examples=1,
        seconds=seconds or 9.0,
        batch_size=1,
        learning_rate=0.1,
        train_loss=1.0,
        valid_loss=1.0,
    )
    ended: Ended = "stuck" if seconds is None else "target"
    return RunRecord(
        strategy=strategy,
        workers=workers,
        seed=seed,
        folder="",
        batch_size=1,
        learning_rate=0.1,
        lag=0,
        ended=ended,
        why="",
        how="measured",
        step_seconds=1.0,
        curve=(epoch,),
        study=study,
        tuned=tuned,
    )


def test_cells_are_medians_over_studies_of_medians_over_seeds() -> None:
    times: dict[tuple[str, bool], list[tuple[float | None, ...]]] = {
        ("strong", False): [(8.0, 8.0), (8.0, 8.0), (16.0, 16.0)],
        ("weak", False): [(4.0, None), (None, None), (8.0, 8.0)],
        ("strong", True): [(4.0, 4.0), (4.0, 4.0), (4.0, 4.0)],
        ("weak", True): [(4.0, 4.0), (2.0, 2.0), (None, None)],
    }
    records = [
        record(name, k, study, 2 * study + place, seconds and seconds / k, tuned=tuned)
        for (name, tuned), studies in times.items()
        for study, seeds in enumerate(studies)
        for place, seconds in enumerate(seeds)
        for k in (1, 2)
    ]
    cells = cells_of(records, ["strong", "weak"], [1, 2], fair=True)
    found = {(c.strategy, c.workers, c.tuned): c for c in cells}
    assert len(found) == len(cells) == 8
    weak = found["weak", 2, False]
    assert (weak.reached, weak.seeds, weak.seconds) == (1, 3, None), "two of three are infinite"
    assert weak.ended == {"target": 3, "stuck": 3}
    tuned = found["weak", 2, True]
    assert (tuned.reached, tuned.seeds) == (2, 3)
    assert tuned.seconds == Interval(median=2.0, low=1.0, high=math.inf)
    assert tuned.efficiency is not None
    assert tuned.efficiency.median == 4.0 / (2 * 2.0), "of the tuned sequential run"
    assert tuned.efficiency.low == 0.0, "what is not reached has no efficiency"
    assert found["strong", 2, False].efficiency == Interval(median=1.0, low=1.0, high=1.0)


def test_seeds_of_one_study_are_counted_alone() -> None:
    records = [
        record("strong", 1, 0, seed, seconds, tuned=False)
        for seed, seconds in enumerate((1.0, None, 3.0))
    ]
    (cell,) = cells_of(records, ["strong"], [1], fair=True)
    assert cell.seconds is not None
    assert (cell.reached, cell.seeds, cell.seconds.median) == (2, 3, 3.0)
    (before,) = cells_of(records, ["strong"], [1])
    assert before.seconds == Interval(median=2.0, low=1.0, high=3.0), "as ever without the flags"
