"""The owner of what outlives its process: a file in shared memory, a folder, a semaphore.

In: nothing; or a mark that was left in a name. Out: a mark of this process (its number, when it was
born, and where that number means something); or whether the process of a mark lives. Guaranteed:
another process that has the same number by now is not taken for it, and of one that cannot be seen
from here (in a container, say, that shares the memory) it is not said that it is dead.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

MARK = r"\d+-\d+-[0-9a-f]{8}"


def mark() -> str:
    """The mark of this process."""
    process = os.getpid()
    born = _born(process)
    return f"{process}-{born or 0}-{_world()}"


def lives(mark: str) -> bool:
    """Whether the process that left a mark lives. A number alone is of an older samepath."""
    if mark.isdecimal():
        return _answers(int(mark))
    if re.fullmatch(MARK, mark) is None:
        return True  # not ours to judge
    process, born, world = mark.split("-")
    if world != _world():
        return True
    if born == "0":  # a system that does not tell
        return _answers(int(process))
    return _born(int(process)) == int(born)


def owned_folder(kind: str = "") -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that shows its owner, should no process be left to remove it."""
    return tempfile.TemporaryDirectory(prefix=f"samepath-{mark()}-{kind}")


def _answers(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):  # another user's has nothing to do here
        return False
    return True


def _born(process: int) -> int | None:
    """When a process was born, in ticks since the machine was started; None for one that is not, or
    is dead and has not been waited for."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *others = facts.rpartition(")")[2].split()  # its name may hold anything
    return None if state in "ZX" else int(others[18])


def _world() -> str:
    """Where process numbers are these: one boot of one machine, and one PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = numbers = ""
    return hashlib.sha256(f"{boot} {numbers}".encode()).hexdigest()[:8]
