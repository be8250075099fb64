"""A limit to waiting, and a word about it now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from samepath.errors import SamepathError
from samepath.say import say

POLL_SECONDS = 0.02
QUIET_SECONDS, REMIND_SECONDS = 2.0, 60.0
"""Somebody who waits says so after a moment, and then every minute."""


class WaitedTooLong(SamepathError):
    """For somebody who did not come."""


class Patience:
    """For one wait."""

    def __init__(self, seconds: float, tell: Callable[[str], None] = say) -> None:
        self._seconds = seconds
        self._tell = tell
        self._began = time.monotonic()
        self._told = self._began + QUIET_SECONDS - REMIND_SECONDS

    def pause(self, missing: str) -> None:
        """A moment, if there is time left; then `missing` can be looked for again."""
        now = time.monotonic()
        if now - self._began > self._seconds:
            raise WaitedTooLong(f"waited {self._seconds:.0f} s for {missing}")
        if now - self._told > REMIND_SECONDS:
            self._told = now
            self._tell(f"waiting for {missing}")
        time.sleep(POLL_SECONDS)
