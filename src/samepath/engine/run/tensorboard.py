"""A run's metrics as TensorBoard event files, for those who use TensorBoard.

In: a run's folder, then the lines of its metrics as they are logged. Out: an event file in
RUN/tensorboard, or in another folder. Guaranteed: the events are those of metrics.jsonl, each once:
what it already holds is written first, in place of what an earlier start wrote, so that a resumed
run repeats no step; a TensorBoard that is open follows; tensorflow is not needed.

Records and summaries are made by `torch.utils.tensorboard`. Not by its `SummaryWriter`, which
writes in a thread of its own: on a full disk that thread prints a traceback over the run's display,
and a file begun in the same second as an older one may sort before it, so that an open TensorBoard
never reads it.
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

from samepath.engine.state.metrics_log import TrainingClock
from samepath.engine.state.run_folder import RunFolder, Warn
from samepath.engine.state.state import MISSHAPEN, one_line
from samepath.errors import UserError

FOLDER = "tensorboard"
FLUSH_SECONDS = 1.0
_SUFFIX = ".samepath"
_GROUPS = {"batch_size": "epoch/batch_size"}
_NO_SCALAR = ("step", "epoch", "seconds")
NOT_INSTALLED = "event files need tensorboard: pip install 'samepath[tensorboard]'"


def require_tensorboard() -> None:
    """Raise unless TensorBoard is installed: before anything is trained."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise UserError(NOT_INSTALLED) from None


class EventWriter:
    """Writes the event file of one run."""

    def __init__(self, run: Path, into: Path | None = None, *, warn: Warn | None = None) -> None:
        """Begin with what run.json and metrics.jsonl say; `into` is RUN/tensorboard if not given.

        The loop makes its writer when the run's metrics have been opened, so that what an earlier
        start logged beyond the checkpoint has gone. With `warn`, a disk that takes no events ends
        them and not the run (they can be written from metrics.jsonl at any time).
        """
        require_tensorboard()
        self._run = run
        self._warn = warn
        self._ended = False
        self._clock = TrainingClock()
        self._flushed = time.monotonic()
        self._records: Any = None
        self.into = run / FOLDER if into is None else into
        self._attempt(self._begin)

    def _begin(self) -> None:
        from torch.utils.tensorboard import RecordWriter

        folder = RunFolder(self._run)
        record = folder.read()
        self.into.mkdir(parents=True, exist_ok=True)
        earlier = sorted(self.into.glob(f"events.out.tfevents.*{_SUFFIX}"))
        self.path = self.into / _name(earlier)
        self._records = RecordWriter(self.path.open("wb"))
        try:
            self._starts = [float(start["time"]) for start in record["starts"]]
            self._head(record)
            for fields in folder.read_metrics():
                self._line(fields)
            if record.get("result"):  # a run that is under way has none
                self._end(record["status"], record["result"]["digest"])
            self._records.flush()
        except BaseException as error:
            self._shut()
            with suppress(OSError):
                self.path.unlink()
            if isinstance(error, MISSHAPEN):
                raise UserError(
                    f"{self._run}: run.json or metrics.jsonl is damaged ({one_line(error)})"
                ) from None
            raise
        for path in earlier:
            _retire(path)

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write one line of metrics.jsonl."""
        self._attempt(lambda: self._line(fields))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def _line(self, fields: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        seconds = float(fields.get("seconds", self._clock.last))
        self._clock.advance(seconds)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(fields)]
        if values:
            start = self._starts[min(self._clock.num_restarts, len(self._starts) - 1)]
            self._event(start + seconds, step=int(fields["step"]), summary=Summary(value=values))

    def flush(self) -> None:
        self._flushed = time.monotonic()
        self._attempt(lambda: self._records.flush())

    def end(self, status: str, digest: str) -> None:
        """Write how the run ended; TensorBoard shows it under Text."""
        self._attempt(lambda: self._end(status, digest))

    def close(self) -> None:
        self._attempt(lambda: self._records.close())

    def _end(self, status: str, digest: str) -> None:
        from torch.utils.tensorboard import summary

        text = summary.text("result", f"{status}, digest {digest}")
        self._event(self._starts[-1] + self._clock.last, summary=text)

    def _attempt(self, write: Callable[[], None]) -> None:
        """Write, unless the disk has refused before; if it refuses now, warn and write no more, or
        raise where there is no `warn`."""
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
        """Begin a file; TensorBoard shows the command and the configuration under Text."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from torch.utils.tensorboard import summary

        began = self._starts[0]
        self._event(began, file_version="brain.Event:2")
        # tells a TensorBoard that is open that all steps come anew
        self._event(began, step=0, session_log=SessionLog(status=SessionLog.START))
        rows = [f"| {name} | {json.dumps(value)} |" for name, value in record["config"].items()]
        command = " ".join(record["starts"][-1]["command"])
        text = "\n".join([f"    {command}", "", "| option | value |", "| --- | --- |", *rows])
        self._event(began, step=0, summary=summary.text("run", text))

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
    return f"{group}/{rest}" if group in ("train", "valid", "epoch") and rest else f"train/{name}"


def _retire(path: Path) -> None:
    """Empty an older file: a TensorBoard that has it open would fail if it were gone. The next
    writer removes it."""
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
