"""A Dask scheduler and workers, as processes of their own on the loopback interface, and studies
that use them: forked from a process that has imported everything, which takes seconds."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
_ALL_NEED = ("samepath.engine.train", "samepath.study.places.dask", "samepath.study.batches")


def fork(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a function in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_ALL_NEED, "samepath.report.study"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


class DaskProcesses:
    """A scheduler, and workers that a test may start and hurt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / "address"
        self.processes = [fork(_schedule, file)]
        began = time.monotonic()
        while not file.exists():
            assert time.monotonic() - began < START_SECONDS, "no scheduler"
            assert self.processes[0].is_alive()
            time.sleep(0.02)
        self.address = file.read_text(encoding="utf-8")

    def worker(self, name: str, version: str | None = None) -> BaseProcess:
        """Start a worker of one thread, perhaps with another version of samepath."""
        self.processes.append(fork(_work, self.address, name, self._folder / name, version))
        return self.processes[-1]


def _schedule(file: Path) -> None:
    from distributed import Scheduler

    async def serve() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address=None) as scheduler:
            (file.parent / "new").write_text(scheduler.address, encoding="utf-8")
            (file.parent / "new").rename(file)
            await scheduler.finished()

    asyncio.run(serve())


def _work(address: str, name: str, folder: Path, version: str | None) -> None:
    from distributed import Worker

    from samepath.engine.checks import fingerprints

    if version is not None:
        fingerprints.__version__ = version  # type: ignore[attr-defined]

    async def serve() -> None:
        where = {"host": "127.0.0.1", "local_directory": str(folder)}
        async with Worker(address, nthreads=1, name=name, **where) as worker:
            await worker.finished()

    asyncio.run(serve())


@contextmanager
def dask_processes(folder: Path) -> Iterator[DaskProcesses]:
    """Start a scheduler; it and its workers end with the block."""
    folder.mkdir(parents=True)
    cluster = DaskProcesses(folder)
    try:
        yield cluster
    finally:
        for process in cluster.processes:
            process.kill()
        for process in cluster.processes:
            process.join()


class StudyProcess:
    """`samepath study` as a person starts it from a folder; what it prints to them is kept."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        """`CONNECT_SECONDS`: how long a lost scheduler is looked for; other variables are the
        environment's."""
        self._said = folder / f"said-{time.monotonic_ns()}"
        command = ["study", *map(str, arguments)]
        self.process = fork(_run, folder, command, self._said, variables)

    def poll(self) -> int | None:
        return self.process.exitcode

    def communicate(self, timeout: float = 150.0) -> tuple[str, str]:
        """Wait for its end; its output is not kept."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired("samepath study", timeout)
        return "", self._said.read_text(encoding="utf-8")


def _run(folder: Path, arguments: list[str], said: Path, variables: dict[str, str]) -> None:
    os.chdir(folder)
    if seconds := variables.pop("CONNECT_SECONDS", ""):
        from samepath.study.places import dask

        dask.CONNECT_SECONDS = float(seconds)  # type: ignore[assignment]
    os.environ.update(variables)
    with said.open("wb") as file, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from samepath.cli import main

    sys.argv = ["samepath", *arguments]
    main()
