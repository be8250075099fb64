"""The paper's law of strong scaling: found again where it holds, and held against its Table I."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samepath.insight.advise.advice import Law
from samepath.insight.advise.advise import law

TABLE_I = {1: 1.0, 2: 1.0517, 4: 0.8681, 8: 0.9009, 16: 0.5808, 32: 0.4625}
"""Cunha et al. 2018: strong scaling efficiency, T1 / (n Tn), by number of GPUs."""


def parts_of(found: Law | None) -> tuple[float, float, float]:
    assert found is not None
    return found.serial_seconds, found.parallel_seconds, found.doubling_seconds


def test_table_i() -> None:
    """In units of T1: 3% serial, 94% shared, 0.2% a doubling; no time is off by more than 10.4%.
    The law cannot follow two workers better than perfect, and eight better than four."""
    found = law(list(TABLE_I), [1.0 / (n * part) for n, part in TABLE_I.items()])
    assert parts_of(found) == pytest.approx((0.0290, 0.9362, 0.00224), rel=5e-3)
    assert found is not None
    assert found.largest_error == pytest.approx(0.104, abs=1e-3)


parts = st.floats(0.01, 10.0)


@settings(deadline=None)
@given(serial=parts, parallel=parts, doubling=parts)
def test_the_law_is_found_again(serial: float, parallel: float, doubling: float) -> None:
    workers = (1, 2, 3, 8, 32, 100)
    found = law(workers, [serial + parallel / n + doubling * math.log2(n) for n in workers])
    assert parts_of(found) == pytest.approx((serial, parallel, doubling), rel=1e-6)
    assert found is not None
    assert found.largest_error == pytest.approx(0.0, abs=1e-9)


@settings(deadline=None)
@given(times=st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
def test_no_part_is_negative(times: list[float]) -> None:
    assert min(parts_of(law((1, 2, 4, 8), times))) >= 0.0


def test_three_parts_need_three_numbers_of_workers() -> None:
    assert law((1, 2, 2), (3.0, 2.0, 2.1)) is None
