"""Runs as `samepath train` makes them, recorded.

In: a Route: at which worker count a run begins, where it is stopped and saved, and at which count
it is continued. Out: what every worker of every leg saw, and what the run's folder holds at last.
Each leg is a call of `train`: one worker in a fresh process without our launcher, several under it.
A later leg knows nothing but the folder.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samepath.engine.launch.launch import interruptible
from samepath.engine.launch.reports import Interrupted, WorkerReport, read_reports
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.engine.verify.trace import TraceJob, WorkerTrace, trace_path
from samepath.orphans import die_with_parent
from samepath.owners import owned_folder


@dataclass(frozen=True)
class Leg:
    """A part of a run that one set of processes makes."""

    num_workers: int
    stop: int
    """The step it ends at."""


Route = Sequence[Leg]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run that was made."""

    route: Route
    legs: list[list[WorkerTrace]]
    """By leg and worker."""
    folders: list[Path]
    """By leg: where its traces are, and the state that was looked into."""
    log: list[dict[str, Any]]
    """Its metrics, without times."""

    @property
    def first(self) -> WorkerTrace:
        return self.legs[0][0]

    @property
    def last(self) -> list[WorkerTrace]:
        """Traces of the leg that ended the run, by worker."""
        return self.legs[-1]


class Runner:
    """Makes runs, each in a folder of its own."""

    def __init__(self, request: Request, folder: Path, tell: Callable[[str], None]) -> None:
        self._request = request
        self._folder = folder
        self._tell = tell
        self._number = 0

    def run(self, route: Route, look_into: int | None = None, keep_worker: int = 0) -> Recorded:
        """Make one; with `look_into`, look into that step of the last leg."""
        self._number += 1
        folder = self._folder / f"run-{self._number}"
        legs, folders = [], []
        for number, leg in enumerate(route):
            place = folder / f"leg-{number}"
            place.mkdir(parents=True)
            is_last = number == len(route) - 1
            self._say(leg.num_workers, look_into, continued=number > 0)
            job = TraceJob(
                folder=place,
                look_into=look_into if is_last else None,
                keep_worker=keep_worker,
            )
            self._train(leg, folder / "run", job, resume=number > 0)
            legs.append([WorkerTrace.read(trace_path(place, w)) for w in range(leg.num_workers)])
            folders.append(place)
        lines = RunFolder(folder / "run").read_metrics()
        log = [{name: v for name, v in line.items() if name != "seconds"} for line in lines]
        return Recorded(route=route, legs=legs, folders=folders, log=log)

    def _say(self, count: int, look_into: int | None, *, continued: bool) -> None:
        verb = "continuing" if continued else "training"
        if look_into is not None:
            verb = f"looking into step {look_into} of"
        workers = "1 worker" if count == 1 else f"{count} workers"
        self._tell(f"{verb} {self._request.recipe} on {workers}")

    def _train(self, leg: Leg, out: Path, job: TraceJob, *, resume: bool) -> None:
        request = replace(
            self._request,
            num_workers=leg.num_workers,
            steps=leg.stop,
            out=out,
            resume=resume,
            watch=job,
        )
        if leg.num_workers == 1:
            _train_in_fresh_process(request)
        else:
            train(request)
        result = RunFolder(out).read()["result"]
        if result["status"] == "interrupted":
            raise Interrupted(result.get("signal") or signal.SIGINT)


def _train_in_fresh_process(request: Request) -> None:
    """Train in a process of its own, as a person would start it: nothing that this process has done
    reaches it. What it raises is raised here."""
    with owned_folder() as reports:
        with interruptible():
            # -P: the folder one happens to be in is not importable under `samepath train`
            command = [sys.executable, "-P", "-m", "samepath.engine.verify.runs"]
            with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
                try:
                    process.communicate(pickle.dumps((request, Path(reports))))
                except BaseException:
                    process.kill()
                    raise
        for report in read_reports(Path(reports)).values():
            raise report.error()
        if process.returncode:
            raise WorkerReport.of_exit(0, process.returncode, process.pid).error()


def _main() -> None:
    die_with_parent()
    request, reports = pickle.load(sys.stdin.buffer)
    try:
        train(request)
    except BaseException as error:
        WorkerReport.of_error(0, error).write(reports)
        raise SystemExit(1) from None


if __name__ == "__main__":
    _main()
