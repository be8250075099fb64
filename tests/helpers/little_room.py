"""Little memory and little time for tests of readers."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TooSlow(BaseException):
    """A reader took too long; no reader catches this."""


@contextmanager
def little_room(num_bytes: int = 2 << 30, seconds: int = 20) -> Iterator[None]:
    """So much more memory than there is now, and so much time: beyond, MemoryError or TooSlow."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + num_bytes, most))
    earlier = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
