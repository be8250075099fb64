"""metrics.jsonl: the only writer of its lines, and the only readers.

Writing, on a disk that may be full or read-only for a while, guarantees: the kernel has each line
at once (the end of this process does not lose it), or it waits in memory until it can be had; lines
keep their order and are never left half; what is synced is on disk. If `eager`, a thread brings
each to the disk soon: the end of this machine loses only the last ones.

Reading, also while the run writes, guarantees: a last line that is half written is not read before
its other half is there; damaged lines are left out, and `MetricColumns` counts them; a file that a
resumed run rewrote is read anew. No torch: the dashboard reads with this.
"""

from __future__ import annotations

import json
import math
import os
import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.faults import fault_point
from samepath.files import NOT_FINITE, open_plain, parse_json

MOST_UNSYNCED = 1 << 20
"""Bytes that are kept in case the disk does not have them."""
_MOST = 2**1000
"""Above any number in a line."""
_PLACE = ("step", "epoch", "seconds")
"""What says where a line stands, beside what it measures."""
_REMEMBERED = 512
"""Bytes before the place reached: if they have changed, the file is another one."""
_TAIL = 16 * 2**10
_SAMPLED_WHOLE = 64 * 2**10
Floats = NDArray[np.float64]


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
        self._sync_wanted, self._ended = threading.Event(), False
        self._thread: threading.Thread | None = None
        if eager:
            name = "samepath-sync"
            self._thread = threading.Thread(target=self._sync_soon, name=name, daemon=True)
            self._thread.start()

    def add(self, line: str) -> None:
        self._waiting += line.encode() + b"\n"

    def flush(self) -> None:
        """Hand what waits to the kernel; now and then, before too much is kept, to the disk too."""
        self._write()
        self._sync_wanted.set()
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
        if self._thread is not None:
            self._ended = True
            self._sync_wanted.set()
            self._thread.join()
            self._thread = None
        try:
            self.sync()
        except OSError:
            return False  # a caller that must have it syncs again, and hears why not
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None
        return True

    def _sync_soon(self) -> None:
        """Bring lines to the disk as they come, in a thread."""
        while self._sync_wanted.wait() and not self._ended:
            self._sync_wanted.clear()
            # Each descriptor of a file is told of an error: a caller that must have it hears it too
            with suppress(OSError), self._path.open("rb") as file:
                os.fdatasync(file.fileno())


# ---- reading


class TrainingClock:
    """Counts the seconds of training of a run over all its starts.

    `seconds` in a line is that already; in runs of an older samepath it begins anew at every start:
    where it falls, a start began, and what went before is added. (A start is overlooked only if its
    first step took longer than all of the start before it.)
    """

    def __init__(self) -> None:
        self.num_restarts = 0
        self.last = 0.0
        """`seconds` of the last line."""
        self._earlier = 0.0

    @property
    def total(self) -> float:
        """Seconds of training up to the last line."""
        return self._earlier + self.last

    def advance(self, seconds: float) -> float:
        """Seconds of training up to a line that says `seconds`; lines come in order."""
        if seconds < self.last:
            self.num_restarts += 1
            self._earlier += self.last
        self.last = seconds
        return self.total


def read_lines(file: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Lines, and where in the file each ends; none where there is no file. What is no line is left
    out: the last one of a run that is writing it, or was killed while it was."""
    place = 0
    for line in _content(file).split(b"\n")[:-1]:
        place += len(line) + 1
        with suppress(ValueError):
            if _is_line(fields := parse_json(line)):
                yield fields, place


def count_lines(file: Path) -> int:
    """How many whole lines there are, damaged ones too."""
    return _content(file).count(b"\n")


def _content(file: Path) -> bytes:
    try:
        with open_plain(file) as opened:
            return opened.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); move it away") from None


def _is_line(fields: Any) -> bool:
    """Whether it has the form of what `RunFolder.log` writes: readers of `read_lines` count on
    that."""
    if not isinstance(fields, dict) or not all(_fits(*item) for item in fields.items()):
        return False
    return "epoch_train_loss" not in fields or fields.keys() >= {*_PLACE}


def _fits(name: str, value: Any) -> bool:
    named = name in _PLACE
    if isinstance(value, dict):
        flat = not any(isinstance(each, dict) for each in value.values())
        return not named and flat and all(_fits("", each) for each in value.values())
    if type(value) is int or (type(value) is float and name not in ("step", "epoch")):
        return bool(-_MOST < value < _MOST)
    return not named and (value is None or (type(value) is str and value in NOT_FINITE))


class MetricColumn:
    """The values of one name, with their steps and times."""

    def __init__(self) -> None:
        self.steps, self.times, self.values = array("d"), array("d"), array("d")

    def arrays(self) -> tuple[Floats, Floats, Floats]:
        return np.array(self.steps), np.array(self.times), np.array(self.values)


class MetricColumns:
    """All that a file has said so far, by name.

    Takes what `read_lines` would leave out, as far as it can be drawn: a page shows a damaged file
    too, and says how many lines are unreadable.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.columns: dict[str, MetricColumn] = {}
        self.num_unreadable = 0
        self._place = 0
        self._before = b""
        self._clock = TrainingClock()

    def read_on(self, file: IO[bytes]) -> None:
        """Read what has been written since."""
        start = self._place - len(self._before)
        file.seek(start)
        if file.read(len(self._before)) != self._before:
            self._begin()
            file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = [line for line in whole.split(b"\n") if line.strip()]
        try:  # at once is several times as quick as one by one
            for fields in json.loads(b"[" + b",".join(lines) + b"]"):
                self._add(fields)
        except (ValueError, RecursionError):
            for line in lines:
                self._add(_parsed(line))
        self._place += len(whole)
        self._before = (self._before + whole)[-_REMEMBERED:]

    def _add(self, fields: Any) -> None:
        if not _has_step(fields):
            self.num_unreadable += 1
            return
        step, seconds = fields["step"], number(fields.get("seconds"))
        if seconds == seconds:  # no NaN
            self._clock.advance(seconds)
        for name, value in _numbers(fields):
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = MetricColumn()
            column.steps.append(step)
            column.times.append(self._clock.total)
            column.values.append(value)


def _numbers(fields: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line by name; what is not known is NaN, what is no number is left out."""
    for name, value in fields.items():
        if type(value) is float and name != "seconds":
            yield name, value
        elif isinstance(value, dict):
            for inner, each in value.items():
                yield f"{name}_{inner}", number(each)
        elif name not in _PLACE and (value is None or isinstance(value, (int, float, str))):
            yield name, number(value)


def number(value: Any) -> float:
    """A number of JSON; NaN for what is none."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < 10**300 else math.nan
    return NOT_FINITE.get(value, math.nan) if type(value) is str else math.nan


def newest_values(file: IO[bytes]) -> dict[str, Any]:
    """The newest value of every name, from the end of the file, and `epochs_done`."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    lines = file.read().split(b"\n")[0 if size <= _TAIL else 1 : -1]
    newest: dict[str, Any] = {}
    for fields in filter(_has_step, map(_parsed, lines)):
        newest |= fields
        epoch = fields.get("epoch")
        newest["epochs_done"] = epoch + ("epoch_train_loss" in fields) if type(epoch) is int else 0
    return newest


def sample_values(file: IO[bytes], name: str, most: int = 48) -> list[float]:
    """Some values of a name, evenly over the file: enough for a picture of a centimetre."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    lines = []
    if size <= _SAMPLED_WHOLE:
        lines = file.read().split(b"\n")[:-1]
    else:
        for k in range(2 * most):
            file.seek(int(size * k / (2 * most)))
            lines.append(file.read(4096).partition(b"\n")[2].partition(b"\n")[0])
    found = filter(_has_step, map(_parsed, lines))
    values = [number(fields[name]) for fields in found if name in fields]
    values = [value for value in values if math.isfinite(value)]
    if len(values) > most:
        values = [values[i] for i in np.linspace(0, len(values) - 1, most).astype(int)]
    return [float(f"{value:.4g}") for value in values]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _has_step(fields: Any) -> bool:
    return isinstance(fields, dict) and math.isfinite(number(fields.get("step")))
