"""The speed of a link between workers, and what it decides: how gradients are cut and exchanged.

In: a latency and a bandwidth (measured, typed, or of a model), how many workers, how many bytes.
Out: bytes. Guaranteed: no value that is added depends on it; engine and model ask the same
functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from samepath.errors import UserError

MESSAGE_LATENCIES = 0.125
"""What every further message of an all_to_all costs, in latencies: gloo hands them all to the
kernel before it waits for any (gloo/alltoallv.cc), so they travel together, but each takes the
processor some time. Measured here at 2 to 16 workers (`benchmarks/simulate.py --only messages`); on
other links it is reasoned to be the same part, as both are what a processor does for a message."""
BUCKET_BYTES = 2 << 20
CHUNK_BYTES = 24 << 10
"""Where a link's speed is not known, what a worker adds of a bucket is no smaller, for each is a
message to every other worker."""
ROUND_BYTES = 32 << 10
"""Where it is not known, what a link carries in a latency."""
WHOLE_BYTES = 512 << 10
"""A larger bucket does not go whole on any link: it would be copied for every worker."""
SLOWER = 1 / 64
"""Of the time of the bytes: what an exchange of large messages takes longer than a sum on gloo.
Measured on a quiet machine: at 1/64 a step of digits between two workers at 1 Gbit/s is a tenth
quicker than at 1/16 (`benchmarks/engine.py --only link --jobs digits`)."""


@dataclass(frozen=True)
class LinkSpeed:
    """What one worker gets of a link."""

    latency_seconds: float
    """Of one message."""
    bytes_per_second: float
    """In each direction."""


def empty_seconds(num_workers: int, latency_seconds: float) -> float:
    """Seconds of an exchange between all workers of next to nothing."""
    return latency_seconds * (1 + MESSAGE_LATENCIES * (num_workers - 2))


def bucket_bytes(num_workers: int, total_bytes: int, speed: LinkSpeed | None = None) -> int:
    """Gradients of so many bytes are reduced in buckets of at most this many (a larger gradient has
    its own).

    A bucket of b bytes takes o + b c: two exchanges' latencies o, and c a byte. All G bytes take
    (G/b) o + G c, and while the others hide behind the backward pass, the last is sent after it:
    b c. The least of G o/b + b c is at b = sqrt(G o/c). Gradients of less than o/c bytes go in one
    bucket. `speed` None: workers share memory, or the link was not measured."""
    if speed is None:
        return max(BUCKET_BYTES, CHUNK_BYTES * num_workers)
    fixed = 2.0 * empty_seconds(num_workers, speed.latency_seconds)
    per_byte = 2.0 * (num_workers - 1) / num_workers / speed.bytes_per_second
    return math.ceil(math.sqrt(total_bytes * fixed / per_byte))


def whole_bytes(num_sums: Sequence[int], speed: LinkSpeed | None = None) -> int:
    """A bucket of at most so many bytes goes whole: all sums to all workers, in one exchange, and
    every worker adds them. A larger one goes in two: each worker adds a chunk of it and sends the
    total to all. Both give the same total; the second sends less, and costs an exchange more."""
    workers, most = len(num_sums), max(num_sums)
    # of a byte: most (N - 1) are sent whole, (most + 1) (N - 1) / N in chunks
    more = (workers - 1) * (most - (most + 1) / workers)
    saved = float(ROUND_BYTES)
    if speed is not None:
        saved = empty_seconds(workers, speed.latency_seconds) * speed.bytes_per_second
    return math.floor(min(saved / (more + SLOWER), WHOLE_BYTES))


# ---- as people type it

_RATE = re.compile(r"([0-9.]+)\s*([kMGT]?)(i?)(bit|b|byte|B)(?:/s|ps)")
_TIME = re.compile(r"([0-9.]+)\s*(s|ms|us|µs|ns)")
_PREFIX = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
EXAMPLE = "940Mbit/s:60us"


def is_speed(text: str) -> bool:
    """Whether this is meant for a bandwidth and a latency, and not for a name."""
    return ":" in text or _RATE.fullmatch(text) is not None


def parse_speed(text: str, setting: str) -> LinkSpeed:
    """Read a bandwidth and a latency, such as "940Mbit/s:60us"; `setting`: where they were typed,
    with what is between it and them ("--network ")."""
    first, _, second = text.partition(":")
    rate, latency = _RATE.fullmatch(first.strip()), _TIME.fullmatch(second.strip())
    if rate is None:
        raise UserError(
            f"{setting}{text}: {first!r} is not a bandwidth; write it like 940Mbit/s or 11.6GB/s "
            f"({EXAMPLE})"
        )
    if latency is None:
        what = f"{second!r} is not a time" if second else "the latency is missing"
        raise UserError(f"{setting}{text}: {what}; write it like {first}:60us")
    base = 1024.0 if rate[3] else 1000.0
    bits = 8.0 if rate[4] in ("bit", "b") else 1.0
    bytes_per_second = _number(text, setting, rate[1]) * base ** _PREFIX[rate[2]] / bits
    if bytes_per_second == 0:
        raise UserError(f"{setting}{text}: a bandwidth of 0 carries nothing; try {EXAMPLE}")
    seconds = _number(text, setting, latency[1]) * _SECONDS[latency[2]]
    return LinkSpeed(seconds, bytes_per_second)


def _number(text: str, setting: str, digits: str) -> float:
    try:
        return float(digits)
    except ValueError:
        raise UserError(
            f"{setting}{text}: {digits!r} is not a number; write it like {EXAMPLE}"
        ) from None
