"""Workers measure the network's speed, or take what was typed, and agree."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from samepath.engine.comm.collective import Alone, Record
from samepath.engine.comm.environment import read_place
from samepath.engine.comm.speed import agree_on_speed, measure_speed
from samepath.engine.run.session import connect, start
from samepath.errors import UserError
from samepath.plan import LinkSpeed
from samepath.plan.link import empty_seconds


class OnALink(Alone):
    """Several workers on a link of a known speed, with a clock of its own; all do the same."""

    def __init__(self, num_workers: int, speed: LinkSpeed, disturbed: int = 0) -> None:
        super().__init__(torch.device("cpu"))
        self.num_workers = num_workers
        self.true = speed
        self.now = 0.0
        self._disturbed, self._count = disturbed, 0

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        self._count += 1
        if self._disturbed and self._count % self._disturbed == 0:
            self.now += 5e-3  # another process had the core
        sent = len(record) * (self.num_workers - 1)
        self.now += empty_seconds(self.num_workers, self.true.latency_seconds)
        self.now += sent / self.true.bytes_per_second
        return lambda: [record] * self.num_workers


@pytest.mark.parametrize("num_workers", [2, 3, 8, 100])
@pytest.mark.parametrize("disturbed", [0, 3])
@pytest.mark.parametrize(
    "speed", [LinkSpeed(50e-6, 117e6), LinkSpeed(25e-6, 1.17e9), LinkSpeed(1e-3, 1e6)]
)
def test_the_links_own_speed_is_found(
    num_workers: int, disturbed: int, speed: LinkSpeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = OnALink(num_workers, speed, disturbed)
    monkeypatch.setattr(time, "perf_counter", lambda: workers.now)
    found = measure_speed(workers)
    assert found.latency_seconds == pytest.approx(speed.latency_seconds, rel=0.05)
    assert found.bytes_per_second == pytest.approx(speed.bytes_per_second, rel=0.05)
    if num_workers <= 8 and speed.bytes_per_second > 1e8 and not disturbed:
        assert workers.now < 0.05


class Telling(Alone):
    """A worker among others that tell what they have."""

    def __init__(self, rows: list[tuple[float, float]]) -> None:
        super().__init__(torch.device("cpu"))
        self.rows = rows

    def gather_rows(self, mine: NDArray) -> NDArray:  # type: ignore[type-arg]
        return np.array([mine, *self.rows])


def test_what_some_have_typed_holds_for_all() -> None:
    nothing = (np.nan, np.nan)
    typed = LinkSpeed(1e-4, 2e8)
    assert agree_on_speed(Telling([nothing, nothing]), typed) == typed
    assert agree_on_speed(Telling([(1e-4, 2e8), nothing]), None) == typed
    assert agree_on_speed(Telling([(1e-3, 1e9)]), typed) == LinkSpeed(1e-3, 2e8)  # the slowest


def test_what_is_no_link_is_refused() -> None:
    with pytest.raises(UserError, match="link is 'fast'; use 'auto', 'network' or the network's"):
        start(link="fast")
    with pytest.raises(UserError, match="the link 1Gbit/s: the latency is missing; write it like"):
        connect(read_place({}), torch.device("cpu"), link="1Gbit/s")
