"""Numbers and names in words, the same in tables, figures and sentences.

In: values. Out: short text. Guaranteed: NaN, infinity and None are words too; nothing heavy is
imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from samepath.study.results import Interval

ENDED = {
    "target": "target reached",
    "diverged": "diverged",
    "stuck": "stuck",
    "epochs": "epoch limit",
    "impossible": "batch larger than the data",
    "unfinished": "not finished",
}
"""How a run ended, in words."""

Rows = list[list[str]]
"""A table: the first row is the header."""

MODELLED = "†"
"""Marks a number that rests on a modelled time."""

_SHORT = {"seconds": "s", "minutes": "min", "hours": "h", "days": "days"}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def base_name(strategy: str) -> str:
    """A strategy's name without its parameters: "warmup" of "warmup:epochs=10"."""
    return strategy.partition(":")[0]


def number(value: float | None, digits: int = 4) -> str:
    """0.0016384 as "0.001638"; nothing for None."""
    if value is None:
        return ""
    return "NaN" if math.isnan(value) else f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """Two digits at least, in the unit a person would choose."""
    if not math.isfinite(seconds):
        return f"{seconds:g} s"
    unit, length = time_unit(seconds)
    return f"{two_digits(seconds / length)} {_SHORT[unit]}"


def time_unit(longest: float) -> tuple[str, float]:
    """The unit for times up to this many seconds, and its length in seconds."""
    if longest < 2.0 * _MINUTE:
        return "seconds", 1.0
    if longest < 2.0 * _HOUR:
        return "minutes", _MINUTE
    return ("hours", _HOUR) if longest < 2.0 * _DAY else ("days", _DAY)


def two_digits(value: float) -> str:
    """312, 31, 3.1, 0.31: two digits, but none of the whole part is dropped."""
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def percent(fraction: float) -> str:
    return f"{100.0 * fraction:.1f}" if math.isfinite(fraction) else "NaN"


def percent_interval(interval: Interval) -> str:
    """ "86.8", or "86.8 (80.1 to 90.2)" where seeds differ."""
    low, middle, high = (percent(x) for x in (interval.low, interval.median, interval.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def duration_interval(interval: Interval) -> str:
    """ "3.14 min", or "3.14 min (2.92 to 3.31)" where seeds differ."""
    unit, length = time_unit(interval.median)
    low, middle, high = (
        f"{seconds / length:.1f}" if seconds >= 99.95 * length else f"{seconds / length:#.3g}"
        for seconds in (interval.low, interval.median, interval.high)
    )
    text = f"{middle} {_SHORT[unit]}"
    return text if low == high else f"{text} ({low} to {high})"


def listed(words: Iterable[str]) -> str:
    """ "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def workers_named(counts: Sequence[int]) -> str:
    """ "1 worker", "2, 4 and 8 workers"."""
    noun = "worker" if tuple(counts) == (1,) else "workers"
    return f"{listed(map(str, counts))} {noun}"


def endings(ended: dict[str, int]) -> str:
    """ "diverged", or "diverged (2 of 3 seeds), stuck (1 of 3 seeds)"."""
    total = sum(ended.values())
    there = {ENDED.get(name, name): count for name, count in ended.items() if count}
    if len(there) == 1:
        return next(iter(there))
    return ", ".join(f"{name} ({count} of {total} seeds)" for name, count in there.items())


def noise_words(value: float, low: float | None, high: float | None) -> str:
    """Such as "320 examples (95%: 250 to 410)"."""
    if low is None:
        return f"{value:.3g} examples"
    if high is None:
        return f"{value:.3g} examples (95%: at least {low:.3g})"
    return f"{value:.3g} examples (95%: {low:.3g} to {high:.3g})"


def noise_meaning(value: float, batch_size: int) -> str:
    """What the scale says of the batch size."""
    ratio = value / batch_size
    if ratio >= 4.0:
        what = "a larger batch would save steps nearly in proportion"
    elif ratio >= 1.0:
        what = "a larger batch would still save steps, but less than in proportion"
    else:
        what = "a larger batch would hardly save steps"
    return (
        f"With a batch of {value:.3g} the gradient is half signal, half noise. "
        f"The batch has {batch_size}: {what}. The scale usually grows while a model learns."
    )
