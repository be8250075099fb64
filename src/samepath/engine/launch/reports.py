"""How a worker ended, in its own words or in those of the launcher that found it dead.

In: an exception, an exit code, silence. Out: a WorkerReport, which a worker leaves to its launcher
in a file; a script of the user's own does so from when it calls `samepath.start`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from samepath.errors import (
    CheckpointDamaged,
    NotSaved,
    ReplicasDiffer,
    SamepathError,
    UserError,
    WorkerFailed,
    WorkerLost,
)

CAUSE_SECONDS = 2.0
"""A worker that raises closes its connections, and so is lost by the others, before it has said
why: so long its report is waited for."""
REPORTS = "SAMEPATH_REPORTS"
"""Names, to a script, the folder in which its launcher looks for reports."""
_STARTED = "started"


class Interrupted(SamepathError):
    """The launcher was told to stop, and the workers with it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"


class Regroup(SamepathError):
    """All workers stopped after a step because one leaves; the others begin again."""


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """How one worker ended."""

    worker: int
    message: str
    time: float
    """The time of the report on the machine's monotonic clock."""
    traceback: str = ""
    """The traceback of the exception by which it ended, if it raised one."""
    user: bool = False
    """The cause is something the user can change."""
    ours: bool = False
    """Its message says it all."""
    not_saved: bool = False
    """It came to its end, and could not write that."""
    final: bool = False
    """Another attempt would end the same."""
    signal: int | None = None
    """It stopped because it was asked to."""
    secondary: bool = False
    """It lost another worker, which is the cause."""
    regroup: bool = False
    """It stopped because another worker leaves."""

    @property
    def raised(self) -> bool:
        return bool(self.traceback)

    @classmethod
    def of_error(cls, worker: int, error: BaseException) -> WorkerReport:
        return cls(
            worker=worker,
            message=str(error),
            time=time.monotonic(),
            traceback="".join(traceback.format_exception(error)),
            user=isinstance(error, UserError),
            ours=isinstance(error, SamepathError),
            not_saved=isinstance(error, NotSaved),
            final=isinstance(error, (UserError, NotSaved, CheckpointDamaged, ReplicasDiffer)),
            signal=error.number if isinstance(error, Interrupted) else None,
            secondary=isinstance(error, WorkerLost),
            regroup=isinstance(error, Regroup),
        )

    @classmethod
    def of_exit(cls, worker: int, code: int, process: int) -> WorkerReport:
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was ended by {_name(-code)} (process {process})"
        return cls(worker=worker, message=f"worker {worker} {how}", time=time.monotonic())

    @classmethod
    def of_frozen(cls, worker: int, seconds: float) -> WorkerReport:
        message = f"worker {worker} has given no sign of life for {seconds:.0f} s"
        return cls(worker=worker, message=message, time=time.monotonic())

    def write(self, folder: Path) -> None:
        (folder / f"worker-{self.worker}.json").write_text(json.dumps(asdict(self)))

    def words(self) -> str:
        """Say in one line how the worker ended."""
        if not self.raised or self.secondary:
            return self.message
        if self.signal:
            return f"worker {self.worker} was {Interrupted(self.signal)}"
        if self.ours:
            return f"worker {self.worker}: {self.message}"
        last = self.traceback.rstrip().rpartition("\n")[2]
        return f"worker {self.worker} raised {last}"

    def error(self) -> SamepathError:
        """The error that the launcher raises."""
        if self.signal:
            return Interrupted(self.signal)
        if self.user:
            return UserError(self.message)
        if self.raised and not self.ours:
            return WorkerFailed(f"worker {self.worker} failed:\n{self.traceback.rstrip()}")
        return WorkerFailed(self.message)


def report_script(worker: int) -> None:
    """Tell the launcher of a script that it has called `samepath.start`, and from now on what of
    ours ends it: the launcher says that once, for all workers."""
    folder = os.environ.get(REPORTS)
    if folder is None:
        return
    Path(folder, _STARTED).touch()
    before = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, SamepathError):
            before(kind, error, trace)
            return
        WorkerReport.of_error(worker, error).write(Path(folder))
        if isinstance(error, WorkerLost):
            time.sleep(CAUSE_SECONDS)

    sys.excepthook = report


def has_started(folder: Path) -> bool:
    """Whether a worker of a script has called `samepath.start`."""
    return (folder / _STARTED).exists()


def _name(number: int) -> str:
    """Name of a signal; real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_reports(folder: Path) -> dict[int, WorkerReport]:
    """Reports by worker; one that was killed while it wrote has none."""
    found = {}
    for path in folder.glob("worker-*.json"):
        try:
            report = WorkerReport(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            continue
        found[report.worker] = report
    return found
