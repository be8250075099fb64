"""Lines at the end of a file, on a disk that may be full or read-only for a while.

In: lines, one by one. Out: the file. Guaranteed: the kernel has each line at once (the end of this
process does not lose it), or it waits in memory until it can be had; their order is kept; never
half of one is left behind; what is synced is on disk. If `eager`, each is brought to the disk soon,
by a thread: the end of this machine loses only the last ones.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from samepath.faults import fault_point

MOST_UNSYNCED = 1 << 20
"""Bytes that are kept in case the disk does not have them."""


class Lines:
    """The end of a file of lines."""

    def __init__(self, path: Path, end: int, *, eager: bool = False) -> None:
        """What the file holds beyond its first `end` bytes goes."""
        self._path = path
        self._end = end
        self._beyond = True
        """There is something to cut off."""
        self._waiting = bytearray()
        self._unsynced = bytearray()
        """The kernel has it; whether the disk has, it has not said."""
        self._file: int | None = None
        self._soon = Soon(path) if eager else None

    def add(self, line: str) -> None:
        self._waiting += line.encode() + b"\n"

    def flush(self) -> None:
        """Hand what waits to the kernel; now and then, before too much is kept, to the disk too."""
        self._write()
        if self._soon is not None:
            self._soon.wanted.set()
        if len(self._unsynced) > MOST_UNSYNCED:
            self._sync_written()

    def _write(self) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o666)
        self._cut()
        fault_point("metrics", file=self._file, waiting=self._waiting)
        written = 0
        try:
            while written < len(self._waiting):
                written += os.write(self._file, self._waiting[written:])
        finally:
            whole = self._waiting.rfind(b"\n", 0, written) + 1
            self._unsynced += self._waiting[:whole]
            del self._waiting[:whole]
            self._end += whole
            self._beyond = written > whole
            self._cut()

    def _cut(self) -> None:
        if self._beyond:
            assert self._file is not None
            os.ftruncate(self._file, self._end)
            self._beyond = False

    def sync(self) -> None:
        """Bring everything to the disk."""
        self._write()
        self._sync_written()

    def _sync_written(self) -> None:
        assert self._file is not None
        try:
            os.fsync(self._file)
        except OSError:  # whatever became of it, it is written once more
            self._waiting[:0] = self._unsynced
            self._end -= len(self._unsynced)
            self._beyond = True
            raise
        finally:
            self._unsynced.clear()

    def close(self) -> bool:
        """Close the file; False if something has not reached the disk."""
        if self._soon is not None:
            self._soon.end()
            self._soon = None
        try:
            self.sync()
        except OSError:
            return False  # whoever must have it syncs again, and hears why not
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None
        return True


class Soon:
    """A thread that brings a file to the disk whenever that is `wanted`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = False
        self.wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samepath-sync", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended = True
        self.wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while self.wanted.wait() and not self._ended:
            self.wanted.clear()
            # Each who has opened a file is told of an error: whoever must have it hears it too
            with suppress(OSError), self._path.open("rb") as file:
                os.fdatasync(file.fileno())
