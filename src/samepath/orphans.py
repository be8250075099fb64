"""A process whose parent is killed ends too."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
from typing import Any

_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # None on other systems
_ON_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def die_with_parent() -> None:
    """Linux: end this process when its parent is killed (a run that is continued elsewhere must
    not be written to from here). On other systems the run's lock has to do."""
    if _prctl is not None:
        _prctl(_ON_PARENTS_DEATH, signal.SIGKILL, 0, 0, 0)


def die_with_launcher() -> None:
    """End this process with the launcher for which a fork server started it."""
    die_with_parent()
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def watch() -> None:
        # The fork server, whose death ends this process, takes a second or two to die when the
        # launcher is killed: long enough for another machine to lead the run, and two to write it
        launcher.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="samepath-launcher", daemon=True).start()
    # The fork server ends when no process holds the other end of its pipe. Python hands that to
    # every child too: the server of a launcher that was killed would live as long as its workers,
    # and they with it. Let go only now: it must not end before its end reaches this process.
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
