"""Starting workers, and saying what became of them.

In: a function (or a script) and a worker count. Out: it has run on that many workers, or an error
that carries the first failing worker's own words. Workers are started by torch's elastic agent.
Guaranteed: when one worker fails the others are ended within seconds; signals reach the workers,
which then have `SHUTDOWN_SECONDS` to save.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from samepath.console import drop_closed_outputs, not_ignored, say
from samepath.engine.elastic import heartbeat as pulse
from samepath.engine.elastic.rendezvous import FINISHED, Crew, Meeting
from samepath.engine.launch.agent import CAUSE_SECONDS, SIGNALS, Agent, Elastic
from samepath.engine.launch.leftovers import mark_socket_folder
from samepath.engine.launch.owners import owned_folder
from samepath.engine.launch.reports import Interrupted, Report, read_reports
from samepath.errors import SamepathError, WorkerFailed
from samepath.orphans import die_with_launcher
from samepath.threads import threads_of_children

SHUTDOWN_SECONDS = 30
LONGEST_TMPDIR = 60
_TALKATIVE = (
    "torch.distributed",
    "torch.distributed.elastic.agent.server.api",  # has a level of its own
    "torch.multiprocessing.spawn",
)


def launch(function: Callable[..., Any], arguments: Sequence[Any], num_workers: int) -> None:
    """Run a module-level function on so many workers of this machine."""
    with owned_folder() as reports:
        meeting = Meeting(Crew(least=num_workers, most=num_workers), num_workers)
        run_agent(meeting, function, arguments, Path(reports))


def launch_script(command: Sequence[str], num_workers: int) -> None:
    """Run a Python script with its arguments on so many workers of this machine."""
    with owned_folder() as reports:
        meeting = Meeting(Crew(least=num_workers, most=num_workers), num_workers)
        run_agent(meeting, sys.executable, ("-u", *command), Path(reports))


def run_agent(
    meeting: Meeting,
    entrypoint: Callable[..., Any] | str,
    arguments: Sequence[Any],
    reports: Path,
    elastic: Elastic | None = None,
) -> None:
    """This machine's part of a run, from its first worker to its last."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # we report, in fewer words
    warnings.filterwarnings("ignore", module="torch.distributed.elastic")
    start_method = "spawn"
    is_script = isinstance(entrypoint, str)
    if not isinstance(entrypoint, str):
        # Forked from a server that has imported torch once and started no thread
        start_method = "forkserver"
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            # use_deterministic_algorithms needs the last
            [
                "samepath.engine.launch.forked",
                "samepath.engine.run.worker",
                "torch._inductor.config",
            ]
        )
        _make_room_for_sockets()
        arguments = (entrypoint, tuple(arguments), str(reports), elastic is not None)
        entrypoint = _reporting
    agent = Agent(
        meeting,
        entrypoint,
        tuple(arguments),
        start_method=start_method,
        reports=reports,
        shutdown_seconds=SHUTDOWN_SECONDS,
        elastic=elastic,
    )
    try:
        # Sessions set the plan's threads themselves; a script's others are its own
        with _signals_heard(), threads_of_children(1, unless_set=is_script):
            result = agent.run()
        failure = None
        if result.is_failed():
            failure = agent.failure or _first_failure(reports, result.failures)
        if meeting.leads or (failure is not None and not meeting.goes_on_without_us()):
            meeting.close(FINISHED if failure is None else str(failure))
        if failure is not None:
            raise failure
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise WorkerFailed(
            f"workers cannot be started ({error.strerror}: /dev/shm or the temporary folder takes "
            "nothing more); free space there, then continue with --resume"
        ) from None
    except SignalException as error:
        failed = [report for report in read_reports(reports).values() if report.not_saved]
        raise failed[0].error() if failed else Interrupted(int(error.sigval)) from None
    finally:
        meeting.leave()


def _make_room_for_sockets() -> None:
    """The fork server's socket has a path of at most 107 bytes: a long TMPDIR (clusters have them)
    leaves no room for it, so that it goes to /tmp."""
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
        tempfile.tempdir = "/tmp"
    try:
        mark_socket_folder()  # made once, and removed in the end
    finally:
        tempfile.tempdir = before


@contextmanager
def _signals_heard() -> Iterator[None]:
    """Signals stop what is done here (workers are told, and have time to save); those that come
    later are answered as before."""
    before = {number: signal.getsignal(number) for number in not_ignored(SIGNALS)}
    in_main_thread = threading.current_thread() is threading.main_thread()  # only there any are
    hung_up = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal hung_up
        if number == signal.SIGHUP:
            drop_closed_outputs()
            if hung_up:  # a shell and the kernel both tell; workers are saving by now
                return
            hung_up = True
        raise SignalException(signal.Signals(number).name, sigval=signal.Signals(number))

    try:
        if in_main_thread:
            for number in before:
                signal.signal(number, hear)
        yield
    finally:
        if in_main_thread:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Signals end what is done here, and what was made for it is cleared away."""
    try:
        with _signals_heard():
            yield
    except SignalException as error:
        raise Interrupted(int(error.sigval)) from None


def _reporting(
    function: Callable[..., Any], arguments: tuple[Any, ...], reports: str, elastic: bool
) -> None:
    """Run in a worker: what it raises is left where the launcher finds it."""
    os.setpgid(0, 0)  # Ctrl-C reaches the launcher alone, which passes it on: once
    die_with_launcher()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # until there is something to save
    pulse.begin(int(os.environ["SAMEPATH_HERE"]))
    try:
        function(*arguments)
    except BaseException as error:
        report = Report.of_error(int(os.environ["RANK"]), error)
        try:
            report.write(Path(reports))
        except OSError:  # the temporary folder is full: then a person at least can read it
            say(report.words())
        if report.secondary and not elastic:
            time.sleep(CAUSE_SECONDS)  # torch's agent looks at one failure, and ends the rest
        if isinstance(error, SystemExit):  # which torch takes for a good end if its code is 0
            raise WorkerFailed(f"it called sys.exit({error.code!r})") from error
        raise
    if elastic:
        # torch would have it wait for an Event, and its launcher, which sets it, wait for everybody
        # to wake: forever, if one of them is frozen by then
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        multiprocessing.util._flush_std_streams()  # type: ignore[attr-defined]
        os._exit(0)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _first_failure(reports: Path, failures: dict[int, ProcessFailure]) -> SamepathError:
    """The failure that came first; that somebody else was lost is only a cause if nobody was."""
    found = read_reports(reports)
    ended_by_us = (-signal.SIGTERM, 128 + signal.SIGTERM)
    killed = [w for w, f in failures.items() if w not in found and f.exitcode not in ended_by_us]
    own = [report for report in found.values() if not report.secondary]
    if own or (found and not killed):
        return min(own or found.values(), key=lambda report: report.time).error()
    return _describe(failures)


def _describe(failures: dict[int, ProcessFailure]) -> WorkerFailed:
    """For workers that left no report: a signal, or a script of the user's own."""
    # Those the agent ended itself carry SIGTERM; the cause does not. Times are whole seconds:
    # within one, an exit code of 1 (an exception) may be somebody who lost the one that failed.
    worker, failure = min(
        failures.items(),
        key=lambda f: (
            f[1].exitcode == -signal.SIGTERM,
            f[1].timestamp,
            f[1].exitcode == 1,
        ),
    )
    return WorkerFailed(Report.of_exit(worker, failure.exitcode, failure.pid).message)
