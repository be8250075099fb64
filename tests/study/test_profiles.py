"""Performance profiles over recipes, against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samepath.report.study_profile import draw_profile, profile_verdict, score_table
from samepath.study.profiles import profile_height, profile_score, profiles_of
from samepath.study.results import Cell, Interval


def test_height_and_score() -> None:
    ratios = (1.0, 2.5, math.inf)
    assert [profile_height(ratios, tau) for tau in (1.0, 2.4, 2.5, 4.0)] == pytest.approx(
        [1 / 3, 1 / 3, 2 / 3, 2 / 3]
    )
    # the area from 1 to 4 is 1.5 at a third and 1.5 at two thirds, over 3
    assert profile_score(ratios) == pytest.approx((1.5 / 3 + 1.5 * 2 / 3) / 3)
    taus = [1 + 3 * (n + 0.5) / 3000 for n in range(3000)]
    mean = sum(profile_height(ratios, tau) for tau in taus) / len(taus)
    assert profile_score(ratios) == pytest.approx(mean, abs=1e-3)
    assert profile_score((1.0, 1.0)) == 1.0
    assert profile_score((math.inf, 4.0)) == 0.0


def study(recipe: str, times: dict[tuple[str, int, bool], float | None]) -> Any:
    cells = [
        Cell(
            strategy=strategy,
            workers=workers,
            reached=int(time is not None),
            seeds=1,
            how="measured",
            seconds=None if time is None else Interval.of([time]),
            epochs=None,
            efficiency=None,
            ended={},
            tuned=tuned,
        )
        for (strategy, workers, tuned), time in times.items()
    ]
    return SimpleNamespace(recipe=recipe, workers=(1, 2), versions={}, cells=cells)


STUDIES = [
    study("a", {
        ("strong", 1, False): 8.0, ("strong", 2, False): 4.0,
        ("weak", 1, False): 8.0, ("weak", 2, False): None,
        ("strong", 1, True): 8.0, ("strong", 2, True): 4.0,
        ("weak", 1, True): 8.0, ("weak", 2, True): 2.0,
    }),
    study("b", {
        ("strong", 1, False): 3.0, ("strong", 2, False): 2.0,
        ("weak", 1, False): 3.0, ("weak", 2, False): 5.0,
        ("strong", 1, True): None, ("strong", 2, True): None,
        ("weak", 1, True): None, ("weak", 2, True): None,
    }),
]  # fmt: skip


def test_strategies_are_compared_at_their_number_and_at_their_best() -> None:
    found = profiles_of(STUDIES, ("samepath",))
    ratios = {(p.strategy, p.workers, p.tuned): p.ratios for p in found.profiles}
    assert ratios["weak", 2, True] == (1.0, math.inf)
    assert ratios["strong", 2, False] == (2.0, 1.0)
    assert ratios["weak", 2, False] == (math.inf, 2.5)
    assert ratios["weak", None, False] == (4.0, 1.5), "with one worker on both"
    assert ratios["strong", None, True] == (2.0, math.inf)
    rows = score_table(found)
    assert rows[0] == ["strategy", "own best number", "1 worker", "2 workers"]
    assert rows[2] == ["strong, as prescribed", "0.83", "1.00", "0.83"]
    assert [row[0] for row in rows[3:]] == ["weak, tuned", "weak, as prescribed"]
    assert profile_verdict(found) == (
        "Over 2 recipes, strong, as prescribed has the highest score: 0.833 of 1."
    )


def test_where_none_reaches_it_none_is_the_best(tmp_path: Path) -> None:
    never = study("c", {("strong", 1, False): None, ("strong", 2, False): None})
    found = profiles_of([never, never], ())
    assert {p.score for p in found.profiles} == {0.0}
    assert profile_verdict(found) == "No strategy reached the target of any recipe."
    assert draw_profile(found, tmp_path / "profile.png").stat().st_size > 10_000
