"""Heartbeats of workers, for the launcher of their machine.

In: a worker's thread that writes the time, and the steps it completes. Out: which workers have
stopped (a frozen process writes nothing), and how far the run has come. The clock is the machine's
monotonic one, which all its processes share and no user can set.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BEAT_SECONDS = 0.25
VARIABLE = "SAMEPATH_PULSE"
_TIME, _STEPS = 0, 1

_mine: NDArray[np.float64] | None = None


def _map(path: str | Path) -> NDArray[np.float64]:
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.float64).reshape(-1, 8)


class Heartbeats:
    """The heartbeats of one machine's workers, as its launcher sees them."""

    def __init__(self, path: Path, num_workers: int) -> None:
        self.path = path
        path.write_bytes(bytes(64 * num_workers))  # a cache line each
        self._board = _map(path)
        self.expect()

    def expect(self) -> None:
        """Expect heartbeats from now on."""
        self._board[:, _TIME] = time.monotonic()

    def silent(self, seconds: float) -> list[int]:
        """Workers whose last heartbeat is longer ago than that."""
        late = time.monotonic() - self._board[:, _TIME] > seconds
        return [int(worker) for worker in np.flatnonzero(late)]

    def steps(self) -> int:
        """Most steps that a worker of this machine has completed."""
        return int(self._board[:, _STEPS].max())


def begin(worker_here: int) -> None:
    """Start a worker's heartbeats, if its launcher asked for them."""
    global _mine
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    _mine = mine = _map(path)[worker_here]

    def beat() -> None:
        while True:
            mine[_TIME] = time.monotonic()
            time.sleep(BEAT_SECONDS)

    threading.Thread(target=beat, name="samepath-heartbeat", daemon=True).start()


def completed(step: int) -> None:
    """Say in a worker's heartbeat how many steps it has completed."""
    if _mine is not None:
        _mine[_STEPS] = step
