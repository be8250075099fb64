"""A run's metrics as TensorBoard event files, for those who live there.

In: a run's folder, then the lines of its metrics as they are logged. Out: an event file in
RUN/tensorboard, or wherever it is wanted. Guaranteed: the events are those of metrics.jsonl, each
once: what it already holds is written first, in place of what an earlier start wrote, so that a
resumed run repeats no step; a TensorBoard that is open follows. Neither tensorflow nor a thread is
needed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from samepath.engine.state.run_folder import RunFolder, Warn
from samepath.engine.state.state import MISSHAPEN, one_line
from samepath.errors import UserError

FOLDER = "tensorboard"
FLUSH_SECONDS = 1.0
_SUFFIX = ".samepath"
_GROUPS = {"epoch_train_loss": "epoch/train_loss", "batch_size": "epoch/batch_size"}
_NO_SCALAR = ("step", "epoch", "seconds")
NOT_INSTALLED = "event files need tensorboard: pip install 'samepath[tensorboard]'"


def require_tensorboard() -> None:
    """Raise unless it is installed: before anything is trained."""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError:
        raise UserError(NOT_INSTALLED) from None


class EventWriter:
    """Writes the event file of one run."""

    def __init__(self, run: Path, into: Path | None = None, *, warn: Warn | None = None) -> None:
        """Begin with what run.json and metrics.jsonl say; `into` is RUN/tensorboard if not given.

        The run's own writer is made when its metrics have been opened, so that what an earlier
        start logged beyond the checkpoint has gone. It has somebody to `warn`: a disk that takes no
        events ends them, not the run (they can be written from metrics.jsonl any time).
        """
        require_tensorboard()
        self._run = run
        self._warn = warn
        self._ended = False
        self._seconds = 0.0
        self._flushed = time.monotonic()
        self._records: Any = None
        self.into = run / FOLDER if into is None else into
        self._attempt(self._begin)

    def _begin(self) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = RunFolder(self._run)
        record = folder.read()
        self.into.mkdir(parents=True, exist_ok=True)
        earlier = sorted(self.into.glob(f"events.out.tfevents.*{_SUFFIX}"))
        self.path = self.into / _name(earlier)
        self._records = RecordWriter(self.path.open("wb"))
        try:
            self._starts = [float(start["time"]) for start in record["starts"]]
            self._start = 0
            self._head(record)
            for fields in folder.read_metrics():
                self._line(fields)
            self._records.flush()
        except MISSHAPEN as error:
            self._give_up()
            raise UserError(
                f"{self._run}: run.json or metrics.jsonl is damaged ({one_line(error)})"
            ) from None
        except BaseException:
            self._give_up()
            raise
        self._start = len(self._starts) - 1  # what comes now is of the last start
        self._seconds = 0.0
        for path in earlier:
            _retire(path)

    def write(self, fields: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self._attempt(lambda: self._line(fields))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def _line(self, fields: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        seconds = float(fields.get("seconds", self._seconds))
        if seconds < self._seconds:  # it begins anew at every start of the run
            self._start = min(self._start + 1, len(self._starts) - 1)
        self._seconds = seconds
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(fields)]
        if values:
            when = self._starts[self._start] + seconds
            self._event(when, step=int(fields["step"]), summary=Summary(value=values))

    def flush(self) -> None:
        self._flushed = time.monotonic()
        self._attempt(lambda: self._records.flush())

    def close(self) -> None:
        self._attempt(lambda: self._records.close())

    def _attempt(self, write: Callable[[], None]) -> None:
        """Write, unless the disk has refused before; if it does now, and somebody can be told, that
        is the end of it."""
        if self._ended:
            return
        try:
            write()
        except OSError as error:
            if self._warn is None:
                raise
            self._ended = True
            self._shut()
            self._warn(
                f"TensorBoard's event files cannot be written ({error.strerror}) and end here; to "
                f"have them from metrics.jsonl later: samepath tensorboard {self._run}"
            )

    def _event(self, when: float, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=when, **content).SerializeToString())

    def _head(self, record: Mapping[str, Any]) -> None:
        """What a file begins with; the command and the configuration are found under Text."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        began = self._starts[0]
        self._event(began, file_version="brain.Event:2")
        # tells a TensorBoard that is open that all steps come anew
        self._event(began, step=0, session_log=SessionLog(status=SessionLog.START))
        rows = [f"| {name} | {json.dumps(value)} |" for name, value in record["config"].items()]
        command = " ".join(record["starts"][-1]["command"])
        text = "\n".join([f"    {command}", "", "| option | value |", "| --- | --- |", *rows])
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        value = Summary.Value(
            tag="run",
            metadata=SummaryMetadata(plugin_data=plugin),
            tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()]),
        )
        self._event(began, step=0, summary=Summary(value=[value]))

    def _give_up(self) -> None:
        self._shut()
        with suppress(OSError):
            self.path.unlink()

    def _shut(self) -> None:
        """Close the file whatever the disk says."""
        if self._records is not None:
            with suppress(OSError):
                self._records.close()


def scalars(fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """A line's numbers by tag: train/loss, valid/accuracy, epoch/train_loss, measured/..."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", float(each)) for inner, each in value.items())
        elif name not in _NO_SCALAR and value is not None:
            yield _tag(name), float(value)  # NaN and infinities are text in metrics.jsonl


def _tag(name: str) -> str:
    if name in _GROUPS:
        return _GROUPS[name]
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in ("train", "valid") and rest else f"train/{name}"


def _retire(path: Path) -> None:
    """Empty an older file: a TensorBoard that is open would stumble over one that is gone. It goes
    the next time, when nobody is in it any more."""
    if path.stat().st_size:
        os.truncate(path, 0)
    else:
        path.unlink()


def _name(earlier: list[Path]) -> str:
    """A name that sorts after those of earlier files: TensorBoard reads them in that order."""
    found = [re.match(r"events\.out\.tfevents\.(\d+)\.", path.name) for path in earlier]
    newest = max((int(match[1]) for match in found if match), default=0)
    when = max(int(time.time()), newest + 1)
    return f"events.out.tfevents.{when:010d}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}"
