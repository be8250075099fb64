"""The owner of what outlives its process: a file in shared memory, a folder, a semaphore.

Its name holds a mark of the process: number, when it was born, and where that number means
something. Guaranteed: another process that has the same number by now is not taken for it, and one
that cannot be seen from here (in a container, say, that shares the memory) is not called dead.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import multiprocessing.forkserver
import os
import re
import signal
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = r"\d+-\d+-[0-9a-f]{8}"


def mark() -> str:
    """The mark of this process."""
    process = os.getpid()
    return f"{process}-{_born(process) or 0}-{world()}"


def lives(mark: str) -> bool:
    """Whether the process that left a mark lives."""
    if re.fullmatch(MARK, mark) is None:
        return True  # not ours to judge
    process, born, where = mark.split("-")
    if where != world():
        return True
    if born != "0":
        return _born(int(process)) == int(born)
    try:  # a system that does not tell when a process was born
        os.kill(int(process), 0)
    except (ProcessLookupError, PermissionError):  # another user's has nothing to do here
        return False
    return True


def owned_folder(kind: str = "") -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that shows its owner, should no process be left to remove it."""
    return tempfile.TemporaryDirectory(prefix=f"samepath-{mark()}-{kind}")


def _born(process: int) -> int | None:
    """When a process was born, in ticks since the machine was started; None for one that is not, or
    is dead and has not been waited for."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *others = facts.rpartition(")")[2].split()  # its name may hold anything
    return None if state in "ZX" else int(others[18])


def boot_id() -> str:
    """Name this boot of this machine; empty on a system that does not."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def world() -> str:
    """Name where process numbers are these: one boot of one machine, and one PID namespace."""
    numbers = ""
    with suppress(OSError):
        numbers = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{boot_id()}\n {numbers}".encode()).hexdigest()[:8]


# ---- a process whose parent is killed ends too

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
