"""Settings for tests of faults."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest


@pytest.fixture(autouse=True)
def never_hang(request: pytest.FixtureRequest) -> Iterator[None]:
    """A hang is a failure of the test, not of the person who waits for it: where a module says
    LIMIT_SECONDS, none of its tests takes longer."""
    limit: int = getattr(request.module, "LIMIT_SECONDS", 0)

    def out_of_time(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {limit} s")

    before = signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(limit)  # 0: no limit
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
