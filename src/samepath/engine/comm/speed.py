"""The speed of the network between workers, measured when they meet.

In: workers that have just met, and what a person has typed on some of them. Out: one LinkSpeed, the
same on all of them: the slowest that any has found. It takes some 30 ms at 1 Gbit/s. Only times
depend on it, never a value that is added.
"""

from __future__ import annotations

import math
import time

import numpy as np

from samepath.engine.comm.collective import Collective
from samepath.plan import LinkSpeed
from samepath.plan.link import empty_seconds

SIZES = tuple(1 << power for power in (14, 17, 20, 22))
"""Bytes that a worker sends, until they take long enough to be told from a latency."""
LONG_ENOUGH = 4e-3
EMPTY_REPEATS, REPEATS = 9, 3


def agree_on_speed(collective: Collective, typed: LinkSpeed | None) -> LinkSpeed:
    """What was typed, or else is measured. All workers together."""
    mine = (
        (math.nan, math.nan) if typed is None else (typed.latency_seconds, typed.bytes_per_second)
    )
    given = collective.gather_rows(np.array(mine, np.float64))
    if not np.isnan(given).all():
        return LinkSpeed(float(np.nanmax(given[:, 0])), float(np.nanmin(given[:, 1])))
    return measure_speed(collective)


def measure_speed(collective: Collective) -> LinkSpeed:
    """Time exchanges between all workers: small ones, then larger ones."""
    empty = _slowest(collective, 1, EMPTY_REPEATS)
    for size in SIZES:
        sent = max(size // (collective.num_workers - 1), 1)
        seconds = _slowest(collective, sent, REPEATS)
        if seconds > LONG_ENOUGH:
            break
    # what travels with a latency takes longer than it, whatever noise says
    travelling = max(seconds - empty, 0.1 * seconds)
    return LinkSpeed(empty / empty_seconds(collective.num_workers, 1.0), size / travelling)


def _slowest(collective: Collective, num_bytes: int, repeats: int) -> float:
    """Seconds of sending so many bytes from each worker to each other: what the slowest takes when
    nothing else is in its way."""
    message = np.zeros(num_bytes, np.uint8)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        collective.gather(message)
        times.append(time.perf_counter() - began)
    return float(collective.gather_rows(np.array([min(times)])).max())
