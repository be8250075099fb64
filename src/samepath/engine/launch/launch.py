"""Starting the worker processes of this machine, and stopping the launcher.

In: a function (or a script) and a worker count, or the variables of each worker. Out: it has run on
a fixed number of workers, or an error that carries the first failing worker's own words
(`launch`, `launch_script`, and `call_workers`, which hands on what the function returned); or
running processes, which torch's elastic multiprocessing started (`start_workers`). Guaranteed: when
one of a fixed number fails the others are ended within seconds; what a worker raises is left where
the launcher finds it; signals reach the launcher alone, which passes them on, and workers then have
`SHUTDOWN_SECONDS` to save; a worker ends with its launcher; a long TMPDIR or a full /dev/shm is no
riddle.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from samepath.console import drop_closed_outputs, not_ignored, say
from samepath.engine.comm.environment import LOOPBACK, read_place
from samepath.engine.comm.network import open_store
from samepath.engine.launch.leftovers import mark_socket_folder, marked_semaphores
from samepath.engine.launch.reports import (
    CAUSE_SECONDS,
    REPORTS,
    Interrupted,
    WorkerReport,
    has_started,
    read_reports,
)
from samepath.errors import SamepathError, WorkerFailed
from samepath.owners import die_with_launcher, owned_folder
from samepath.threads import threads_of_children

SHUTDOWN_SECONDS = 30
"""How long workers that were told to stop have to save."""
POLL_SECONDS = 0.1
"""How often a launcher looks at its workers."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What a launcher is stopped by."""
LONGEST_TMPDIR = 60
_TALKATIVE = ("torch.distributed", "torch.multiprocessing.spawn")


# ---- a fixed number of workers


def launch(function: Callable[..., Any], arguments: Sequence[Any], num_workers: int) -> None:
    """Run a module-level function on so many workers of this machine."""
    _launch(function, arguments, num_workers)


def call_workers(
    function: Callable[..., Any], arguments: Sequence[Any], num_workers: int
) -> list[Any]:
    """Run a module-level function on so many workers of this machine; what it returned on each."""
    with owned_folder("results-") as folder:
        launch(_leave_result, (Path(folder), function, arguments), num_workers)
        files = [Path(folder) / str(worker) for worker in range(num_workers)]
        return [pickle.loads(file.read_bytes()) for file in files]


def _leave_result(folder: Path, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    found = function(*arguments)
    (folder / str(read_place(os.environ).worker)).write_bytes(pickle.dumps(found))


def launch_script(command: Sequence[str], num_workers: int) -> None:
    """Run a Python script with its arguments on so many workers of this machine."""
    _launch(sys.executable, ("-u", *command), num_workers)


def _launch(
    entrypoint: Callable[..., Any] | str, arguments: Sequence[Any], num_workers: int
) -> None:
    is_script = isinstance(entrypoint, str)
    with owned_folder() as folder, launching(reports := Path(folder), is_script=is_script):
        _store, port = open_store(LOOPBACK)
        variables = worker_variables(
            range(num_workers), num_workers, LOOPBACK, port, secrets.token_hex(16)
        )
        if is_script:
            variables = [mine | {REPORTS: folder} for mine in variables]
        workers = start_workers(entrypoint, arguments, variables, reports)
        try:
            result = workers.wait(period=POLL_SECONDS)
        except SignalException as error:
            workers.close(error.sigval, SHUTDOWN_SECONDS)  # they are told, and have time to save
            raise
        except BaseException:
            workers.close(timeout=SHUTDOWN_SECONDS)
            raise
        if result is not None and result.is_failed():
            raise _first_failure(reports, result.failures)
        if is_script and num_workers > 1 and not has_started(reports):
            say(
                f"{arguments[1]} never called samepath.start(): it ran {num_workers} times, each "
                "alone; call it, or leave out `samepath run`"
            )


def _first_failure(reports: Path, failures: dict[int, ProcessFailure]) -> SamepathError:
    """The failure that came first; one that says another worker was lost only where none has
    another reason."""
    found = read_reports(reports)
    ended_by_us = (-signal.SIGTERM, 128 + signal.SIGTERM)
    killed = [w for w, f in failures.items() if w not in found and f.exitcode not in ended_by_us]
    own = [report for report in found.values() if not report.secondary]
    if own or (found and not killed):
        return min(own or found.values(), key=lambda report: report.time).error()
    # No report: a signal, or a script of the user's own. Workers that the launcher ended carry
    # SIGTERM; the cause does not. Times are whole seconds: within one, an exit code of 1 (an
    # exception) may be a worker that lost the one that failed.
    worker, failure = min(
        failures.items(),
        key=lambda f: (f[1].exitcode == -signal.SIGTERM, f[1].timestamp, f[1].exitcode == 1),
    )
    return WorkerFailed(WorkerReport.of_exit(worker, failure.exitcode, failure.pid).message)


# ---- workers of any launcher


def worker_variables(
    slots: Sequence[int],
    num_workers: int,
    address: str,
    port: int,
    prefix: str,
    *,
    first: int = 0,
    machine: int = 0,
    num_machines: int = 1,
) -> list[dict[str, str]]:
    """Make the environment variables, torchrun's, of one machine's workers: each takes the GPU of
    its slot, the first has number `first`; they find each other in the store at `address` under
    names that begin with `prefix`."""
    # a fork server passes on the environment that it was started with, not today's
    kept = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    common = {name: os.environ[name] for name in kept if name in os.environ} | {
        "WORLD_SIZE": str(num_workers),
        "LOCAL_WORLD_SIZE": str(len(slots)),
        "GROUP_RANK": str(machine),
        "GROUP_WORLD_SIZE": str(num_machines),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(num_workers),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": prefix.partition("/")[0],
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "SAMEPATH_STORE": prefix,
    }
    return [
        common
        | dict.fromkeys(("RANK", "ROLE_RANK"), str(first + here))
        | {"LOCAL_RANK": str(slot), "SAMEPATH_HERE": str(here)}
        for here, slot in enumerate(slots)
    ]


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
    if start_method == "forkserver":
        _start_fork_server()
    answers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        # torch leaves a worker's pickled exception in the temporary folder: here, in one that
        # is ours alone, and goes
        with _temporary_folder(str(reports)), marked_semaphores():
            return start_processes(
                name="default",
                entrypoint=entrypoint,
                args=dict.fromkeys(range(len(variables)), tuple(arguments)),
                envs=dict(enumerate(variables)),
                logs_specs=DefaultLogsSpecs(log_dir=tempfile.mkdtemp(dir=reports)),
                start_method=start_method,
            )
    except (SignalException, KeyboardInterrupt):
        if start_method == "forkserver":
            _end_fork_server()
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, answer in answers.items():  # torch has put its own in their place
                signal.signal(number, answer)


def _start_fork_server() -> None:
    """Start the server deaf to Ctrl-C, which reaches all processes of a terminal: until it has
    imported torch it would answer with a traceback. Blocked, not ignored: the launcher answers, in
    the end, to one that comes meanwhile; the server unblocks it once it ignores it (`forked`)."""
    if threading.current_thread() is not threading.main_thread():
        multiprocessing.forkserver.ensure_running()
        return
    multiprocessing.resource_tracker.ensure_running()  # which would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_fork_server() -> None:
    """End the server that may still be importing torch: it would then start a worker that was
    asked for before the launcher was stopped, and which finds nothing any more. (Python has no
    public name for it.)"""
    server: int | None = getattr(
        multiprocessing.forkserver._forkserver,
        "_forkserver_pid",
        None,
    )
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


@contextmanager
def _temporary_folder(folder: str | None) -> Iterator[None]:
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


def _make_room_for_sockets() -> None:
    """Put the fork server's socket, whose path has at most 107 bytes, into /tmp where TMPDIR is
    long (clusters have such)."""
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR
    with _temporary_folder("/tmp" if is_long else tempfile.tempdir):
        mark_socket_folder()  # made once, and removed in the end


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
    in_main_thread = threading.current_thread() is threading.main_thread()  # only there any are
    before = {n: signal.getsignal(n) for n in (not_ignored(SIGNALS) if in_main_thread else ())}
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
        for number in before:
            signal.signal(number, hear)
        yield
    finally:
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


@contextmanager
def lone_process(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own. Ctrl-C does not reach it there (it would answer with
    a traceback, in the midst of an import perhaps): what is raised in here ends it, and all that
    it started."""
    how["start_new_session"] = True
    with interruptible(), subprocess.Popen(command, **how) as process:
        try:
            yield process
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _reporting(
    function: Callable[..., Any], arguments: tuple[Any, ...], reports: str, elastic: bool
) -> None:
    """Run a worker, and leave what it raises where the launcher finds it."""
    os.setpgid(0, 0)  # Ctrl-C reaches the launcher alone, which passes it on: once
    die_with_launcher()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # until there is something to save
        signal.signal(number, lambda number, frame: os._exit(128 + number))
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
