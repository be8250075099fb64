"""Dask as the engine of a study: a scheduler that is running, or jobs of a batch system.

In: a Destination. Out: a ClusterEngine whose members are Dask's workers. A run's task is tied to
one worker, which runs it as soon as a thread is free; where it goes when that worker is lost is for
the study to say.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Future

from samepath.errors import UserError, WorkerFailed
from samepath.files import brief
from samepath.study.places.cluster import ClusterEngine, Member
from samepath.study.places.destination import Destination, host_and_port
from samepath.study.places.task import Facts, Outcome, Ticket, examine, train_there

CONNECT_SECONDS = 10
MOST_GREETING = 1 << 20
"""Bytes; it has a few hundred."""


def open_dask(destination: Destination, on: str) -> ClusterEngine:
    """Connect to a scheduler, or start one whose workers are jobs of a batch system."""
    for name in ("distributed", "distributed.client"):  # the study says what is lost
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if destination.is_queue:
        cluster = _jobs(destination, on)
        return DaskEngine(Client(cluster, set_as_default=False), on, destination, cluster)
    _refuse_others(destination.address, on)
    try:
        client = Client(destination.address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(
            f"--on {on}: the scheduler there cannot be connected to ({brief(error)})"
        ) from None
    return DaskEngine(client, on, destination)


def _refuse_others(address: str, on: str) -> None:
    """Raise unless a server of Dask is there. It sends the size of its greeting at once; a client
    of Dask waits for that without a limit."""
    if not address.startswith("tcp"):
        return
    try:
        with socket.create_connection(host_and_port(address), CONNECT_SECONDS) as line:
            size = line.recv(8, socket.MSG_WAITALL)
    except OSError:
        size = b""
    if len(size) < 8 or int.from_bytes(size, "little") > MOST_GREETING:
        raise UserError(f"--on {on}: what answers there is no Dask scheduler; check the address")


def _jobs(destination: Destination, on: str) -> Any:
    """A cluster of dask-jobqueue. A job's size is that of Dask's configuration, or of one run."""
    interrupt = signal.getsignal(signal.SIGINT)
    import dask_jobqueue  # it makes a Ctrl-C end the process with exit code 0

    signal.signal(signal.SIGINT, interrupt)
    name = destination.address
    settings = dask.config.get(f"jobqueue.{name}")
    size: dict[str, Any] = {}
    if settings.get("cores") is None:
        size |= {"cores": destination.cores, "processes": 1}
    if settings.get("memory") is None:
        if not destination.memory:
            raise UserError(
                f"--on {on}: {name} must know a job's memory; add ,memory=8GB, or set "
                f"jobqueue.{name}.memory in Dask's configuration"
            )
        size["memory"] = f"{destination.memory}B"
    kind = getattr(dask_jobqueue, f"{name.upper()}Cluster")
    return kind(**size)


class DaskEngine:
    """Workers of one Dask scheduler."""

    def __init__(
        self, client: Client, on: str, destination: Destination, jobs: Any | None = None
    ) -> None:
        self._client = client
        self._on = on
        self._most_jobs = destination.jobs
        self._jobs = jobs
        self._num_jobs = 0
        self._members: dict[str, Member] = {}

    def members(self) -> dict[str, Member]:
        with self._asking():
            workers = self._client.scheduler_info(n_workers=-1).get("workers")
        if self._is_closed:
            raise self._gone("it does not answer any more")
        if workers is not None and self._is_connected:  # else the client is looking for it again
            self._members = {
                address: Member(
                    name=str(facts["name"]),
                    cores=facts["nthreads"],
                    memory=facts["memory_limit"] or 0,
                )
                for address, facts in workers.items()
                if facts["status"] != "init"
            }
        return dict(self._members)

    @property
    def _is_connected(self) -> bool:
        return bool(self._client.status == "running")

    @property
    def _is_closed(self) -> bool:
        """Whether the client has given up: it looks for a lost scheduler for so long."""
        return self._client.status in ("closing", "closed")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Say that the scheduler is gone where Dask says so, in one of its many ways."""
        try:
            yield
        except Exception as error:
            known = isinstance(error, (OSError, TimeoutError, CancelledError))
            if not known and self._is_connected:
                raise
            raise self._gone(brief(error)) from None

    def _gone(self, why: str) -> WorkerFailed:
        return WorkerFailed(
            f"--on {self._on}: the scheduler is gone ({why}); start it again, and the same command "
            "goes on from here"
        )

    def expect(self, num_runs: int) -> None:
        number = min(num_runs, self._most_jobs)
        if self._jobs is not None and number > self._num_jobs:
            self._num_jobs = number
            # between n and n: jobs that end, as at the end of their time, are submitted again
            self._jobs.adapt(minimum_jobs=number, maximum_jobs=number)

    def examine(self, members: Sequence[str], check: Path, start: Path) -> dict[str, Facts | str]:
        with self._asking():
            found = self._client.run(
                examine, check, start, workers=list(members), on_error="return"
            )
        return {
            member: brief(facts) if isinstance(facts, BaseException) else facts
            for member, facts in found.items()
        }

    def start(self, ticket: Ticket, member: str) -> Future:
        with self._asking():
            return self._client.submit(
                train_there, ticket, workers=[member], allow_other_workers=False, pure=False
            )

    def look(self, task: Future) -> Outcome | None:
        if not self._is_connected:
            return None  # Dask calls all tasks cancelled, and the members may be at them
        if task.status == "finished":
            with self._asking():
                found: Outcome = task.result()
            return found
        if task.status == "error":
            return Outcome("failed", brief(task.exception()))
        return None if task.status == "pending" else Outcome("lost")

    def drop(self, task: Future) -> None:
        if task.status == "pending":  # where the scheduler is gone, Dask calls it cancelled
            task.cancel()

    def close(self) -> None:
        self._client.close()
        if self._jobs is not None:
            self._jobs.close()
