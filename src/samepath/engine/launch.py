"""Starting workers, and saying what became of them.

In: a function (or a script) and a worker count. Out: it has run on that many workers, or an error
that carries the first failing worker's own words. Workers are started by torch's elastic agent.
Guaranteed: when one worker fails the others are ended within seconds; signals reach the workers,
which then have `SHUTDOWN_SECONDS` to save.
"""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from samepath.engine.environment import LOOPBACK
from samepath.errors import SamepathError, UserError, WorkerFailed, WorkerLost

SHUTDOWN_SECONDS = 30
LONGEST_TMPDIR = 60
CAUSE_SECONDS = 2.0
"""How long a worker that lost another stays, so that torch's agent, which looks at one failure and
ends the rest, sees the one that was lost first."""
_AGENTS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_TALKATIVE = (
    "torch.distributed",
    "torch.distributed.elastic.agent.server.api",  # has a level of its own
    "torch.multiprocessing.spawn",
)


class Interrupted(SamepathError):
    """The launcher was told to stop, and the workers with it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"


def launch(function: Callable[..., Any], arguments: Sequence[Any], num_workers: int) -> None:
    """Run a module-level function on so many workers of this machine."""
    # Forked from a server that has imported torch once and started no thread
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["samepath.engine.train", "torch._inductor.config"]  # use_deterministic_algorithms needs it
    )
    _make_room_for_sockets()
    with tempfile.TemporaryDirectory(prefix="samepath-") as reports:
        try:
            with _signals_given_back():
                _elastic(num_workers, _reporting, "forkserver", reports)(
                    function, tuple(arguments), reports
                )
        except ChildFailedError as error:
            raise _first_report(Path(reports), error) from None
        except SignalException as error:
            raise Interrupted(int(error.sigval)) from None


def launch_script(command: Sequence[str], num_workers: int) -> None:
    """Run a Python script with its arguments on so many workers of this machine."""
    with tempfile.TemporaryDirectory(prefix="samepath-") as logs:
        try:
            with _signals_given_back():
                _elastic(num_workers, sys.executable, "spawn", logs)("-u", *command)
        except ChildFailedError as error:
            raise _describe(error) from None
        except SignalException as error:
            raise Interrupted(int(error.sigval)) from None


def _make_room_for_sockets() -> None:
    """The fork server's socket has a path of at most 107 bytes: a long TMPDIR (clusters have them)
    leaves no room for it, so that it goes to /tmp."""
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            multiprocessing.util.get_temp_dir()  # makes it once, and removes it in the end
        finally:
            tempfile.tempdir = before


@contextmanager
def _signals_given_back() -> Iterator[None]:
    """torch's agent answers signals while it runs, and would go on to when it has ended."""
    before = {number: signal.getsignal(number) for number in _AGENTS_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # only there it answers any
            for number, handler in before.items():
                signal.signal(number, handler)


def _elastic(
    num_workers: int, entrypoint: Callable[..., Any] | str, start_method: str, logs: str
) -> elastic_launch:
    # A restart with a shared store mostly hangs (a fault of torch); ours is a store of its own
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # sessions set the plan's threads themselves
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # we report, in fewer words
    warnings.filterwarnings("ignore", module="torch.distributed.elastic")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{LOOPBACK}:0",
        local_addr=LOOPBACK,
        max_restarts=0,
        monitor_interval=0.1,
        start_method=start_method,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    return elastic_launch(config, entrypoint)


def _reporting(function: Callable[..., Any], arguments: tuple[Any, ...], reports: str) -> None:
    """Run in a worker: what it raises is left where the launcher finds it."""
    os.setpgid(0, 0)  # Ctrl-C reaches the launcher alone, which passes it on: once
    die_with_parent()
    try:
        function(*arguments)
    except BaseException as error:
        worker = int(os.environ["RANK"])
        report = {
            "worker": worker,
            "time": time.time(),
            "exit_code": getattr(error, "exit_code", 1),
            "user": isinstance(error, UserError),
            "signal": error.number if isinstance(error, Interrupted) else None,
            "secondary": isinstance(error, WorkerLost),
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
        (Path(reports) / f"worker-{worker}.json").write_text(json.dumps(report))
        if report["secondary"]:
            time.sleep(CAUSE_SECONDS)
        raise


def die_with_parent() -> None:
    """Linux: when whoever started this process is killed, so is it (nobody is left to stop it, and
    a run that is continued elsewhere must not be written to from here)."""
    on_parents_death = 1  # PR_SET_PDEATHSIG
    with suppress(OSError, AttributeError):  # another system: the run's lock has to do
        ctypes.CDLL(None).prctl(on_parents_death, signal.SIGKILL, 0, 0, 0)


def _first_report(reports: Path, error: ChildFailedError) -> SamepathError:
    """The failure that came first; that somebody else was lost is never the cause."""
    found = [json.loads(path.read_text()) for path in reports.glob("worker-*.json")]
    causes = sorted((r for r in found if not r["secondary"]), key=lambda r: float(r["time"]))
    if not causes:
        return _describe(error)
    first = causes[0]
    if first["signal"]:
        return Interrupted(first["signal"])
    if first["user"]:
        return UserError(first["message"])
    return WorkerFailed(f"worker {first['worker']} failed:\n{first['traceback'].rstrip()}")


def _describe(error: ChildFailedError) -> WorkerFailed:
    """For workers that left no report: a signal, or a script of the user's own."""
    # Those the agent ended itself carry SIGTERM; the cause does not. Times are whole seconds:
    # within one, an exit code of 1 (an exception) may be somebody who lost the one that failed.
    failures = sorted(
        error.failures.items(),
        key=lambda f: (
            f[1].exitcode == -signal.SIGTERM,
            f[1].timestamp,
            f[1].exitcode == 1,
        ),
    )
    worker, failure = failures[0]
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        return WorkerFailed(f"worker {worker} was ended by {name} (process {failure.pid})")
    return WorkerFailed(f"worker {worker} ended with exit code {failure.exitcode}")
