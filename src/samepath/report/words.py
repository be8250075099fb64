"""Numbers and names in words, the same in tables, figures and sentences.

In: values. Out: short text. Guaranteed: NaN, infinity and None are words too; nothing heavy is
imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from samepath.study.results import Interval
from samepath.timing.links import NetworkFacts

Rows = list[list[str]]
"""A table: the first row is the header."""
Tables = list[tuple[str, Rows, str]]
"""Titles, tables, and a note below each."""

ENDED = {
    "target": "target reached",
    "diverged": "diverged",
    "stuck": "stuck",
    "epochs": "epoch limit",
    "impossible": "batch larger than the data",
    "unfinished": "not finished",
}
"""How a run ended, in words."""

NOT_REACHED = "not reached"
MODELLED = "†"
"""Marks a number that rests on a modelled time."""

_UNITS = {"s": ("seconds", 1.0), "min": ("minutes", 60.0), "h": ("hours", 3600.0)}
_UNITS["days"] = ("days", 86400.0)


def rows_of(lines: Sequence[Mapping[str, str]]) -> Rows:
    """A table of lines that have the same columns."""
    return [list(lines[0]), *(list(line.values()) for line in lines)]


def facts_rows(facts: Mapping[str, object]) -> Rows:
    """A table of names and values, without a header; values that are None are left out."""
    known = {name: value for name, value in facts.items() if value is not None}
    return [["", ""], *([name, str(value)] for name, value in known.items())]


def base_name(strategy: str) -> str:
    """A strategy's name without its parameters: "warmup" of "warmup:epochs=10"."""
    return strategy.partition(":")[0]


def number(value: float | None, digits: int = 4) -> str:
    """0.0016384 as "0.001638"; nothing for None."""
    if value is None:
        return ""
    return "NaN" if math.isnan(value) else f"{value:.{digits}g}"


def two_digits(value: float) -> str:
    """312, 31, 3.1, 0.31: two digits, but none of the whole part is dropped."""
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def percent(fraction: float) -> str:
    """ "86.8"."""
    return f"{100.0 * fraction:.1f}" if math.isfinite(fraction) else "NaN"


def percent_interval(interval: Interval) -> str:
    """ "86.8", or "86.8 (80.1 to 90.2)" where seeds differ."""
    return spread(*(percent(x) for x in (interval.low, interval.median, interval.high)))


def spread(low: str, middle: str, high: str) -> str:
    """ "3.1", or "3.1 (2.9 to 3.3)" where they differ."""
    return middle if low == high else f"{middle} ({low} to {high})"


def _short_unit(longest: float) -> str:
    """The largest unit of which there are at least two, else seconds."""
    fitting = [unit for unit, (_, length) in _UNITS.items() if longest >= 2.0 * length]
    return fitting[-1] if fitting else "s"


def time_unit(longest: float) -> tuple[str, float]:
    """The unit for times up to this many seconds, and its length in seconds."""
    return _UNITS[_short_unit(longest)]


def duration(seconds: float) -> str:
    """Two digits at least, in the unit a person would choose."""
    if not math.isfinite(seconds):
        return f"{seconds:g} s"
    unit = _short_unit(seconds)
    return f"{two_digits(seconds / _UNITS[unit][1])} {unit}"


def duration_interval(interval: Interval) -> str:
    """ "3.14 min", or "3.14 min (2.92 to 3.31)" where seeds differ."""
    unit = _short_unit(interval.median)
    values = [x / _UNITS[unit][1] for x in (interval.low, interval.median, interval.high)]
    low, middle, high = (f"{x:.1f}" if x >= 99.95 else f"{x:#.3g}" for x in values)
    high = high if math.isfinite(interval.high) else NOT_REACHED
    return spread(low, f"{middle} {unit}", high)


def step_time(seconds: float) -> str:
    """Three digits, in the unit a step needs: "5.30 ms"."""
    if seconds == 0.0:
        return "0"
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= length:
            value = seconds / length
            return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:#.3g} {unit}"
    return f"{seconds / 1e-9:.2g} ns"


def price_words(value: float) -> str:
    """ "1,204.50", and two digits of what is less than one: "0.0031"."""
    return f"{value:,.2f}" if value >= 0.995 or value == 0.0 else f"{value:.2g}"


def milliseconds(seconds: float) -> str:
    """Three digits, for a table whose unit is milliseconds."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else "0"


def link_words(link: NetworkFacts) -> str:
    """ "125 MB/s, 50 µs latency"."""
    rate = link.bytes_per_second
    speed = f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"
    return f"{speed}, {1e6 * link.latency_seconds:.3g} µs latency"


def listed(words: Iterable[str]) -> str:
    """ "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def workers_named(counts: Sequence[int]) -> str:
    """ "1 worker", "2, 4 and 8 workers"."""
    noun = "worker" if tuple(counts) == (1,) else "workers"
    return f"{listed(map(str, counts))} {noun}"


def endings(ended: dict[str, int], counted: str = "seeds") -> str:
    """ "diverged", or "diverged (2 of 3 seeds), stuck (1 of 3 seeds)"."""
    total = sum(ended.values())
    there = {ENDED.get(name, name): count for name, count in ended.items() if count}
    if len(there) == 1:
        return next(iter(there))
    return ", ".join(f"{name} ({count} of {total} {counted})" for name, count in there.items())


def noise_words(value: float, low: float | None, high: float | None) -> str:
    """A noise scale and its interval: "320 examples (95%: 250 to 410)"."""
    if low is None:
        return f"{value:.3g} examples"
    between = f"at least {low:.3g}" if high is None else f"{low:.3g} to {high:.3g}"
    return f"{value:.3g} examples (95%: {between})"


def noise_meaning(value: float, batch_size: int) -> str:
    """What a noise scale says of the batch size."""
    ratio = value / batch_size
    if ratio >= 4.0:
        what = "a larger batch would save steps nearly in proportion"
    elif ratio >= 1.0:
        what = "a larger batch would still save steps, but less than in proportion"
    else:
        what = "a larger batch would hardly save steps"
    return (
        f"With a batch of {value:.3g} examples the gradient is half signal, half noise. "
        f"This run's batch has {batch_size}: {what}. The scale usually grows during training."
    )
