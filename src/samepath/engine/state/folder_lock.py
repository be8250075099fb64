"""Who may write to a folder.

In: a folder. Out: its lock, for as long as its descriptor is open, or the process lives.
Guaranteed: one process at a time has it, whatever machine it is on, if the file system has locks.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from samepath.errors import UserError

LOCK = ".lock"
LOCK_SECONDS = 5.0
"""How long somebody who is just ending is waited for."""


def lock_folder(folder: Path, busy: str) -> int:
    """Lock a folder until the result is closed or this process ends; an error if somebody else has
    it and keeps it."""
    until = time.monotonic() + LOCK_SECONDS
    while (lock := take_lock(folder)) is None:
        if time.monotonic() > until:
            raise UserError(f"{busy} by another process; wait for it, or stop it")
        time.sleep(0.05)
    return lock


def take_lock(folder: Path) -> int | None:
    """None if somebody else has it."""
    descriptor = _open(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a file system without locks
    return descriptor


def _open(folder: Path) -> int:
    """What is locked is a file: of a lock on a folder network file systems tell no other machine,
    and of an exclusive one only if the file can be written to. Where none can be made (a folder
    that is only looked at, a full disk), it is the folder."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    for how in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):  # a disk may have become read-only
        with suppress(OSError):
            return os.open(folder / LOCK, how | flags, 0o666)
    return os.open(folder, os.O_RDONLY | flags)


def is_locked(folder: Path) -> bool:
    """Somebody writes there. Asked with a shared lock that is let go of at once: others who ask do
    not see it, and whoever begins in the same instant tries again for seconds."""
    for place in (folder / LOCK, folder):
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        finally:
            os.close(descriptor)
    return False


def is_empty(folder: Path) -> bool:
    return all(path.name == LOCK for path in folder.iterdir())
