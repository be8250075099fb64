"""A fixed number of workers on this machine, and what became of them.

In: a function (or a script) and a worker count. Out: it has run on that many workers, or an error
that carries the first failing worker's own words. Guaranteed: when one worker fails the others are
ended within seconds; signals reach the workers, which then have `SHUTDOWN_SECONDS` to save. The
launcher opens one store, through which the workers find each other, and starts no thread.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.comm.store import open_store
from samepath.engine.launch.processes import (
    POLL_SECONDS,
    SHUTDOWN_SECONDS,
    WorkerPlaces,
    launching,
    start_workers,
)
from samepath.engine.launch.reports import WorkerReport, read_reports
from samepath.errors import SamepathError, WorkerFailed
from samepath.owners import owned_folder


def launch(function: Callable[..., Any], arguments: Sequence[Any], num_workers: int) -> None:
    """Run a module-level function on so many workers of this machine."""
    _launch(function, arguments, num_workers)


def launch_script(command: Sequence[str], num_workers: int) -> None:
    """Run a Python script with its arguments on so many workers of this machine."""
    _launch(sys.executable, ("-u", *command), num_workers)


def _launch(
    entrypoint: Callable[..., Any] | str, arguments: Sequence[Any], num_workers: int
) -> None:
    is_script = isinstance(entrypoint, str)
    with owned_folder() as folder, launching(reports := Path(folder), is_script=is_script):
        _store, port = open_store(LOOPBACK)
        places = WorkerPlaces(
            num_here=num_workers,
            num_workers=num_workers,
            address=LOOPBACK,
            port=port,
            prefix=secrets.token_hex(16),
            slots=range(num_workers),
        )
        variables = [places.variables(worker) for worker in range(num_workers)]
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
