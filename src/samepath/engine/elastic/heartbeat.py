"""Signs of life, from workers to whoever started them.

In: a worker's thread that writes the time, and the steps it completes. Out: who has stopped (a
frozen process writes nothing), and how far the run has come. The clock is the machine's monotonic
one, which all its processes share and nobody can set.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PULSE_SECONDS = 0.25
VARIABLE = "SAMEPATH_PULSE"
_TIME, _STEPS = 0, 1

_mine: NDArray[np.float64] | None = None


def _map(path: str | Path) -> NDArray[np.float64]:
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.float64).reshape(-1, 8)


class Pulses:
    """The pulses of one machine's workers."""

    def __init__(self, path: Path, num_workers: int) -> None:
        self.path = path
        path.write_bytes(bytes(64 * num_workers))  # a cache line each
        self._board = _map(path)
        self.begin()

    def begin(self) -> None:
        """From now on signs are expected."""
        self._board[:, _TIME] = time.monotonic()

    def silent(self, seconds: float) -> list[int]:
        """Workers that have given no sign for so long."""
        late = time.monotonic() - self._board[:, _TIME] > seconds
        return [int(worker) for worker in np.flatnonzero(late)]

    def steps(self) -> int:
        """Steps that somebody here has completed."""
        return int(self._board[:, _STEPS].max())


def begin(worker_here: int) -> None:
    """In a worker: give signs from now on, if anybody wants them."""
    global _mine
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    _mine = mine = _map(path)[worker_here]

    def beat() -> None:
        while True:
            mine[_TIME] = time.monotonic()
            time.sleep(PULSE_SECONDS)

    threading.Thread(target=beat, name="samepath-pulse", daemon=True).start()


def completed(step: int) -> None:
    """In a worker: so many steps are done."""
    if _mine is not None:
        _mine[_STEPS] = step
