"""Fault points: named places at which a test can hurt a process.

In: the environment variable SAMEPATH_FAULT ("NAME=SIGKILL", "NAME=raise" or "NAME=sleep 3"), or a
handler that a test's recipe sets. Out: what it says happens where the engine calls
`fault_point(NAME)`. Guaranteed: without either, a fault point does nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

Handler = Callable[..., None]
"""Called with a fault point's name and, by keyword, what is being worked on there."""


def fault_point(name: str, **facts: Any) -> None:
    """Let a test hurt this process here."""
    if _handler is not None:
        _handler(name, **facts)


def set_fault_handler(handler: Handler | None) -> None:
    """Have a handler (None: none) called at every fault point of this process."""
    global _handler
    _handler = handler


def handler_of(told: str) -> Handler | None:
    """The handler that SAMEPATH_FAULT describes."""
    chosen, _, how = told.partition("=")

    def hurt(name: str, **_facts: Any) -> None:
        if name != chosen:
            return
        if how == "raise":
            raise RuntimeError(f"fault at {name}")
        if how.startswith("sleep"):
            time.sleep(float(how.removeprefix("sleep")))
        else:
            os.kill(os.getpid(), signal.Signals[how])

    return hurt if told else None


_handler: Handler | None = handler_of(os.environ.get("SAMEPATH_FAULT", ""))
