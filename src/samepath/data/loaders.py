"""Processes that load examples ahead.

In: how many, and how long to wait for one. Out: what a DataLoader with them delivers.
Guaranteed: no loader is waited for without a limit, at its start, at its work or at its end; none
keeps its worker from ending, or stays when that is gone.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import util
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from samepath.errors import SamepathError
from samepath.faults import fault_point
from samepath.owners import die_with_parent

TIMEOUT_SECONDS = 600.0
"""How long a process waits for an answer from another one of the run, by default."""
START_SECONDS = 20.0
_TRIES = 3
_LOOK_SECONDS = 5.0
"""How often a DataLoader that waits looks whether its loaders live."""


@dataclass(frozen=True)
class Loaders:
    """The loader processes of one worker."""

    number: int = 0
    threads: int = 1
    timeout_seconds: float = TIMEOUT_SECONDS
    pin_memory: bool = False

    def load(self, dataset: Any, **how: Any) -> Iterator[Any]:
        """What a DataLoader gives, in time."""
        if self.number:
            how |= {
                "num_workers": self.number,
                "worker_init_fn": partial(_begin, self.threads),
                "timeout": min(_LOOK_SECONDS, self.timeout_seconds),
                # torch's own default on Linux; a worker's is forkserver, which imports torch anew
                "multiprocessing_context": _Forking(self) if sys.platform == "linux" else None,
            }
        grains = iter(DataLoader(dataset, pin_memory=self.pin_memory, **how))
        asked = time.monotonic()
        while True:
            try:
                grain = next(grains)
            except StopIteration:
                return
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
                if time.monotonic() - asked > self.timeout_seconds:
                    raise SamepathError(
                        f"no loader process has delivered a grain for {self.timeout_seconds:.0f} "
                        "s; give --timeout more seconds if one takes so long, or "
                        "--loader-workers 0 to see where it stops"
                    ) from None
                continue
            yield grain
            asked = time.monotonic()


BY_ITSELF = Loaders()
"""A worker without any."""


def _begin(threads: int, _worker: int) -> None:
    """Prepare a loader process."""
    torch.set_num_threads(threads)
    # Ctrl-C and Slurm's preemption reach every process; the worker stops after its step, and
    # until then it needs its loaders. They end when it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Forking(ForkContext):
    """Makes loaders of the processes that a DataLoader asks for."""

    def __init__(self, loaders: Loaders) -> None:
        super().__init__()
        self._loaders = loaders

    def Process(self, *arguments: Any, **more: Any) -> _Loader:  # type: ignore[override]  # noqa: N802
        made = _Loader(*arguments, **more)
        made.start_seconds = min(START_SECONDS, self._loaders.timeout_seconds / 4)
        return made


class _Loader(ForkProcess):
    """A process forked from one with threads: a lock that one of them held stays locked in it,
    now and then one that it needs to begin."""

    start_seconds: float

    def start(self) -> None:
        _end_loaders_at_exit(os.getpid())
        _end_openmp_threads()
        before = dict(vars(self))
        for _ in range(_TRIES):
            began, self._begins = multiprocessing.Pipe(duplex=False)
            with began:
                with self._begins:
                    super().start()
                if began.poll(self.start_seconds):
                    return
            self.kill()
            self.join()
            vars(self).update(before)
        raise SamepathError(
            f"a loader process did not begin within {self.start_seconds:.0f} s, {_TRIES} times; "
            "give --loader-workers 0 to load without"
        )

    def _bootstrap(self, *arguments: Any, **more: Any) -> Any:
        die_with_parent()
        if os.getppid() != self._parent_pid:  # type: ignore[attr-defined]
            return 1  # it died before
        return super()._bootstrap(*arguments, **more)  # type: ignore[misc]

    def run(self) -> None:
        fault_point("loader")
        self._begins.send_bytes(b".")
        self._begins.close()
        super().run()

    def terminate(self) -> None:
        """Kill the process, which does not hear SIGTERM."""
        self.kill()


def _end_openmp_threads() -> None:
    """End OpenMP's threads: they do not survive a fork, and a forked process waits for them in
    its first parallel operation. Here they begin anew when there is work."""
    hard = 2
    with suppress(OSError, AttributeError):  # another OpenMP than GNU's: those look after forks
        ctypes.CDLL("libgomp.so.1").omp_pause_resource_all(hard)


@cache
def _end_loaders_at_exit(_process: int) -> None:
    """Register the end of all loaders, before multiprocessing waits for them."""
    util.Finalize(None, _end_loaders, exitpriority=0)


def _end_loaders() -> None:
    left = [child for child in multiprocessing.active_children() if isinstance(child, _Loader)]
    if left:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # DataLoader's raises for killed loaders
    for loader in left:
        loader.kill()
