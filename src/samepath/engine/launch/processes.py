"""The worker processes of this machine: how they are started, and how the launcher is stopped.

In: a function (or a command) and the place of each worker. Out: running processes, which torch's
elastic multiprocessing started. Guaranteed: what a worker raises is left where the launcher finds
it; signals reach the launcher alone, which passes them on; a worker ends with its launcher; a long
TMPDIR or a full /dev/shm is no riddle.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    start_processes,
)

from samepath.console import drop_closed_outputs, not_ignored, say
from samepath.engine.launch.leftovers import mark_socket_folder, marked_semaphores
from samepath.engine.launch.reports import Interrupted, WorkerReport, read_reports
from samepath.errors import WorkerFailed
from samepath.orphans import die_with_launcher
from samepath.threads import threads_of_children

SHUTDOWN_SECONDS = 30
"""How long workers that were told to stop have to save."""
POLL_SECONDS = 0.1
"""How often a launcher looks at its workers."""
CAUSE_SECONDS = 2.0
"""A worker that raises closes its connections, and so is lost by the others, before it has said
why: so long its report is waited for."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What a launcher is stopped by."""
LONGEST_TMPDIR = 60
_TALKATIVE = ("torch.distributed", "torch.multiprocessing.spawn")


@dataclass(frozen=True, kw_only=True)
class WorkerPlaces:
    """The places of one machine's workers, as torchrun's variables say them."""

    num_here: int
    num_workers: int
    first: int = 0
    """Number of this machine's first worker."""
    address: str
    """Of the store through which workers find each other,"""
    port: int
    prefix: str
    """and what their names in it begin with."""
    slots: Sequence[int]
    """By worker of this machine: which GPU it takes."""
    machine: int = 0
    num_machines: int = 1

    def variables(self, here: int) -> dict[str, str]:
        """The environment variables of one worker."""
        rank, num_workers = str(self.first + here), str(self.num_workers)
        # a fork server passes on the environment that it was started with, not today's
        kept = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        return {name: os.environ[name] for name in kept if name in os.environ} | {
            "RANK": rank,
            "WORLD_SIZE": num_workers,
            "LOCAL_RANK": str(self.slots[here]),
            "LOCAL_WORLD_SIZE": str(self.num_here),
            "GROUP_RANK": str(self.machine),
            "GROUP_WORLD_SIZE": str(self.num_machines),
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": num_workers,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": self.prefix.partition("/")[0],
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "SAMEPATH_HERE": str(here),
            "SAMEPATH_STORE": self.prefix,
        }


def start_workers(
    entrypoint: Callable[..., Any] | str,
    arguments: Sequence[Any],
    variables: Sequence[dict[str, str]],
    reports: Path,
    *,
    elastic: bool = False,
) -> PContext:
    """Start a worker for each set of environment variables; within `launching`."""
    start_method = "spawn"
    if not isinstance(entrypoint, str):
        # Forked from a server that has imported torch once and started no thread
        start_method = "forkserver"
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            [
                "samepath.engine.launch.forked",
                "samepath.engine.worker",
                "torch._inductor.config",  # which use_deterministic_algorithms needs
            ]
        )
        _make_room_for_sockets()
        arguments = (entrypoint, tuple(arguments), str(reports), elastic)
        entrypoint = _reporting
    multiprocessing.util.get_temp_dir()  # made where it was to be: the fork server's
    before, tempfile.tempdir = tempfile.tempdir, str(reports)
    answers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        # torch leaves a worker's pickled exception in the temporary folder: here, in one that
        # is ours alone, and goes
        with marked_semaphores():
            return start_processes(
                name="default",
                entrypoint=entrypoint,
                args=dict.fromkeys(range(len(variables)), tuple(arguments)),
                envs=dict(enumerate(variables)),
                logs_specs=DefaultLogsSpecs(log_dir=tempfile.mkdtemp(dir=reports)),
                start_method=start_method,
            )
    finally:
        tempfile.tempdir = before
        if threading.current_thread() is threading.main_thread():
            for number, answer in answers.items():  # torch has put its own in their place
                signal.signal(number, answer)


def _make_room_for_sockets() -> None:
    """Put the fork server's socket, whose path has at most 107 bytes, into /tmp where TMPDIR is
    long (clusters have such)."""
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
        tempfile.tempdir = "/tmp"
    try:
        mark_socket_folder()  # made once, and removed in the end
    finally:
        tempfile.tempdir = before


@contextmanager
def launching(reports: Path, *, is_script: bool = False) -> Iterator[None]:
    """Around the life of workers: SignalException stops the launcher, and what ends it is raised as
    an error that a user can act on."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # we report, in fewer words
    warnings.filterwarnings("ignore", module="torch.distributed.elastic")
    try:
        # Sessions set the plan's threads themselves; a script's others are its own
        with _signals_heard(), threads_of_children(1, unless_set=is_script):
            yield
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


@contextmanager
def _signals_heard() -> Iterator[None]:
    """Signals raise SignalException in here; those that come later are answered as before."""
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
    """Signals end what is done in here, and what was made for it is cleared away."""
    try:
        with _signals_heard():
            yield
    except SignalException as error:
        raise Interrupted(int(error.sigval)) from None


def _reporting(
    function: Callable[..., Any], arguments: tuple[Any, ...], reports: str, elastic: bool
) -> None:
    """Run a worker, and leave what it raises where the launcher finds it."""
    os.setpgid(0, 0)  # Ctrl-C reaches the launcher alone, which passes it on: once
    die_with_launcher()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # until there is something to save
    if elastic:
        from samepath.engine.elastic import heartbeat

        heartbeat.begin(int(os.environ["SAMEPATH_HERE"]))
    try:
        function(*arguments)
    except BaseException as error:
        report = WorkerReport.of_error(int(os.environ["RANK"]), error)
        try:
            report.write(Path(reports))
        except OSError:  # the temporary folder is full: then a person at least can read it
            say(report.words())
        if report.secondary and not elastic:
            time.sleep(CAUSE_SECONDS)  # torch looks at the first failure, and ends the rest
        if isinstance(error, SystemExit):  # which torch takes for a good end if its code is 0
            raise WorkerFailed(f"it called sys.exit({error.code!r})") from error
        raise
    if elastic:
        # torch would have it wait for an Event, and its launcher, which sets it, wait until all
        # workers wake: forever, if one of them is frozen by then
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        multiprocessing.util._flush_std_streams()  # type: ignore[attr-defined]
        os._exit(0)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
