"""One look for every figure."""

from __future__ import annotations

from samepath.report.style import series_looks
from samepath.report.style import strategy_looks as looks


def test_looks_are_the_same_in_every_study_and_never_twice_in_one() -> None:
    built_in = (
        *("strong", "weak", "linear", "warmup", "sqrt", "sqrt-warmup", "lars", "lamb", "decay"),
        *("growth", "curvature", "curvature-adversarial", "noise", "stale", "asynchronous"),
    )
    everything = looks(built_in)
    assert looks(("weak", "stale"))["weak"] == everything["weak"]
    assert len({look.colour for look in everything.values()}) == len(built_in)
    assert len({look.marker for look in everything.values()}) == len(built_in)
    names = (*built_in, "warmup:epochs=10", "warmup:epochs=20", "zeta", "alpha", "alpha:x=1")
    found = looks(names)
    assert len(set(found.values())) == len(names)
    assert looks(("alpha", "zeta"))["zeta"].colour == found["zeta"].colour
    assert looks(("warmup:epochs=10",))["warmup:epochs=10"].colour == everything["warmup"].colour


def test_series_differ_as_long_as_they_can() -> None:
    names = [f"network {number}" for number in range(10)]
    found = series_looks(names)
    assert list(found) == names
    assert len(set(found.values())) == 8, "then they repeat"
