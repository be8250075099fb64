"""A process whose parent is killed ends too."""

from __future__ import annotations

import ctypes
import signal

_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # None on other systems
_ON_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def die_with_parent() -> None:
    """Linux: when whoever started this process is killed, so is it (nobody is left to stop it, and
    a run that is continued elsewhere must not be written to from here). On other systems the run's
    lock has to do."""
    if _prctl is not None:
        _prctl(_ON_PARENTS_DEATH, signal.SIGKILL, 0, 0, 0)
