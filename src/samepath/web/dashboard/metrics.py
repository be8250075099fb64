"""A run's metrics.jsonl while it is being written.

In: the file, opened, as often as one likes. Out: its columns, read on from where the last look
ended; or only its last lines; or a few lines from all over it. Guaranteed: a last line that is half
written waits for its other half; a file that a resumed run rewrote is read anew; lines that cannot
be read are counted, never fatal.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from samepath.web.dashboard.thin import Floats

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_NO_COLUMN = ("step", "epoch", "seconds")
_REMEMBERED = 512
"""Bytes before the place reached: if they have changed, the file is another one."""
_TAIL = 16 * 2**10
_SAMPLED_WHOLE = 64 * 2**10


class Column:
    """The values of one name, with their steps and times."""

    def __init__(self) -> None:
        self.steps, self.times, self.values = array("d"), array("d"), array("d")

    def arrays(self) -> tuple[Floats, Floats, Floats]:
        return np.array(self.steps), np.array(self.times), np.array(self.values)


class Metrics:
    """All that a file has said so far."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.columns: dict[str, Column] = {}
        self.num_unreadable = 0
        self._place = 0
        self._before = b""
        self._earlier = self._last = 0.0

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
        if not _is_line(fields):
            self.num_unreadable += 1
            return
        step, seconds = fields["step"], number(fields.get("seconds"))
        if seconds == seconds:  # no NaN
            if seconds < self._last:  # it begins anew at every start of the run
                self._earlier += self._last
            self._last = seconds
        for name, value in flat(fields):
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = Column()
            column.steps.append(step)
            column.times.append(self._earlier + self._last)
            column.values.append(value)


def flat(fields: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line by name; what is not known is NaN, what is no number is left out."""
    for name, value in fields.items():
        if type(value) is float and name != "seconds":
            yield name, value
        elif isinstance(value, dict):
            for inner, each in value.items():
                yield f"{name}_{inner}", number(each)
        elif name not in _NO_COLUMN and (value is None or isinstance(value, (int, float, str))):
            yield name, number(value)


def number(value: Any) -> float:
    """A number of JSON; NaN for what is none."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < 10**300 else math.nan
    return _WORDS.get(value, math.nan) if type(value) is str else math.nan


def last_lines(file: IO[bytes]) -> dict[str, Any]:
    """The newest value of every name, from the end of the file, and `epochs_done`."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    lines = file.read().split(b"\n")[0 if size <= _TAIL else 1 : -1]
    newest: dict[str, Any] = {}
    for fields in filter(None, map(_fields, lines)):
        newest |= fields
        epoch = fields.get("epoch")
        newest["epochs_done"] = epoch + ("epoch_train_loss" in fields) if type(epoch) is int else 0
    return newest


def sample(file: IO[bytes], name: str, most: int = 48) -> list[float]:
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
    values = [number(fields[name]) for line in lines if name in (fields := _fields(line) or {})]
    values = [value for value in values if math.isfinite(value)]
    if len(values) > most:
        values = [values[i] for i in np.linspace(0, len(values) - 1, most).astype(int)]
    return [float(f"{value:.4g}") for value in values]


def _fields(line: bytes) -> dict[str, Any] | None:
    fields = _parsed(line)
    return fields if _is_line(fields) else None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_line(fields: Any) -> bool:
    return isinstance(fields, dict) and math.isfinite(number(fields.get("step")))
