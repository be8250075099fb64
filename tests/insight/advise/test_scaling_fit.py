"""The paper's law of strong scaling: found again where it holds, and held against its Table I."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samepath.errors import UserError
from samepath.insight.advise.scaling_fit import ScalingFit, fit_scaling, seconds_of_efficiencies

TABLE_I = {1: 1.0, 2: 1.0517, 4: 0.8681, 8: 0.9009, 16: 0.5808, 32: 0.4625}
"""Cunha et al. 2018: strong scaling efficiency by number of GPUs."""


def law(serial: float, parallel: float, doubling: float) -> ScalingFit:
    return ScalingFit(
        serial_seconds=serial,
        parallel_seconds=parallel,
        doubling_seconds=doubling,
        workers=(),
        seconds=(),
    )


def fit_to_table_i() -> ScalingFit:
    workers = list(TABLE_I)
    return fit_scaling(workers, seconds_of_efficiencies(workers, list(TABLE_I.values())))


def test_table_i() -> None:
    """In units of T1: 3% serial, 94% shared, 0.2% a doubling; no time is off by more than 10.4%."""
    fit = fit_to_table_i()
    parts = (fit.serial_seconds, fit.parallel_seconds, fit.doubling_seconds)
    assert parts == pytest.approx((0.0290, 0.9362, 0.00224), rel=5e-3)
    errors = dict(zip(fit.workers, fit.errors, strict=True))
    assert errors == pytest.approx(
        {1: -0.035, 2: 0.050, 4: -0.071, 8: 0.101, 16: -0.104, 32: 0.028}, abs=1e-3
    )
    assert fit.knee(0.2) == 28
    assert fit.largest_above(0.8) == 7
    assert fit.largest_above(0.5) == 25


def test_what_the_law_cannot_follow_in_table_i() -> None:
    """Two workers better than perfect, and eight better than four."""
    fit = fit_to_table_i()
    assert TABLE_I[2] > 1.0 > fit.efficiency(2)
    assert TABLE_I[8] > TABLE_I[4]
    assert fit.efficiency(8) < fit.efficiency(4)


parts = st.floats(0.01, 10.0)


@settings(deadline=None)
@given(serial=parts, parallel=parts, doubling=parts)
def test_the_law_is_found_again(serial: float, parallel: float, doubling: float) -> None:
    truth = law(serial, parallel, doubling)
    workers = (1, 2, 3, 8, 32, 100)
    fit = fit_scaling(workers, [truth.predict(n) for n in workers])
    found = (fit.serial_seconds, fit.parallel_seconds, fit.doubling_seconds)
    assert found == pytest.approx((serial, parallel, doubling), rel=1e-6)
    assert fit.errors == pytest.approx([0.0] * 6, abs=1e-9)


@settings(deadline=None)
@given(
    times=st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4),
)
def test_no_part_is_negative(times: list[float]) -> None:
    fit = fit_scaling((1, 2, 4, 8), times)
    assert min(fit.serial_seconds, fit.parallel_seconds, fit.doubling_seconds) >= 0.0


@settings(deadline=None)
@given(
    serial=parts,
    parallel=st.floats(0.01, 1000.0),
    doubling=parts,
    gain=st.floats(0.05, 0.45),
    floor=st.floats(0.05, 0.99),
)
def test_the_knee_and_the_floor_are_where_they_say(
    serial: float, parallel: float, doubling: float, gain: float, floor: float
) -> None:
    fit = law(serial, parallel, doubling)
    knee = fit.knee(gain)
    assert knee is not None
    saved = [1.0 - fit.predict(2 * n) / fit.predict(n) for n in range(1, min(knee, 500) + 1)]
    if knee <= 500:
        assert saved.pop() < gain
    assert all(part >= gain - 1e-12 for part in saved)
    largest = fit.largest_above(floor)
    assert largest is not None
    assert fit.efficiency(largest) >= floor - 1e-9
    assert fit.efficiency(largest + 1) < floor


def test_perfect_scaling_has_no_end() -> None:
    fit = law(0.0, 1.0, 0.0)
    assert fit.knee() is None
    assert fit.largest_above(0.9) is None


def test_bad_input() -> None:
    with pytest.raises(UserError, match="2 different numbers of workers"):
        fit_scaling((1, 2, 2), (3.0, 2.0, 2.1))
    with pytest.raises(UserError, match="above 0"):
        fit_scaling((1, 2, 4), (3.0, 0.0, 1.0))
    with pytest.raises(UserError, match=r"between 0 and 0\.5"):
        law(1.0, 1.0, 1.0).knee(0.5)
    with pytest.raises(UserError, match=r"such as 0\.8"):
        law(1.0, 1.0, 1.0).largest_above(80.0)
