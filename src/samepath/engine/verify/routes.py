"""Runs as `samepath train` makes them, recorded.

In: a Route: at which worker count a run begins, where it is stopped and saved, and at which count
it is continued. Out: what every worker of every leg saw, and what the run's folder holds at last.
Each leg is a call of `train`: one worker in a fresh process without our launcher, several under it.
A later leg knows nothing but the folder.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from samepath.engine.launch.reports import Interrupted
from samepath.engine.run.train import Request, train
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.verify.compare import Parting, first_parting
from samepath.engine.verify.fresh_process import train_in_fresh_process
from samepath.engine.verify.trace import Job, Trace, trace_path


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
    legs: list[list[Trace]]
    """By leg and worker."""
    folders: list[Path]
    """By leg: where its traces are, and the state that was looked into."""
    log: list[dict[str, Any]]
    """Its metrics, without times."""

    @property
    def first(self) -> Trace:
        return self.legs[0][0]

    @property
    def last(self) -> list[Trace]:
        """Of the leg that ended it, by worker."""
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
            job = Job(
                folder=place,
                look_into=look_into if is_last else None,
                keep_worker=keep_worker,
            )
            self._train(leg, folder / "run", job, resume=number > 0)
            legs.append([Trace.read(trace_path(place, w)) for w in range(leg.num_workers)])
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

    def _train(self, leg: Leg, out: Path, job: Job, *, resume: bool) -> None:
        request = replace(
            self._request,
            num_workers=leg.num_workers,
            asked=replace(self._request.asked, steps=leg.stop),
            out=out,
            resume=resume,
            watch=job,
        )
        if leg.num_workers == 1:
            train_in_fresh_process(request)
        else:
            train(request)
        result = RunFolder(out).read()["result"]
        if result["status"] == "interrupted":
            raise Interrupted(result.get("signal") or signal.SIGINT)


class Found(NamedTuple):
    """Where a run parts from another, and on which of its workers."""

    leg: int
    worker: int
    parting: Parting


def first_difference(reference: Recorded, run: Recorded) -> Found | None:
    """Where a run leaves another one. All workers of a run hold the whole state."""
    found = []
    for number, (leg, workers) in enumerate(zip(run.route, run.legs, strict=True)):
        stop = None if number == len(run.route) - 1 else leg.stop
        for worker, trace in enumerate(workers):
            parting = first_parting(reference.first, trace, stop)
            if parting is not None:
                found.append(Found(number, worker, parting))
    if found:
        return min(found, key=lambda f: (f.parting.step, f.leg, f.worker))
    at_end = _at_end(reference, run)
    return None if at_end is None else Found(len(run.legs) - 1, *at_end)


def _at_end(reference: Recorded, run: Recorded) -> tuple[int, Parting] | None:
    """What no step showed: how the run ended, its log, its digest."""
    result = reference.first.result
    for worker, trace in enumerate(run.last):
        for name in ("status", "message", "digest"):
            if trace.result[name] != result[name]:
                return worker, Parting(trace.last_step, name)
    for line, other in zip(reference.log, run.log, strict=False):
        for name in (*line, *(n for n in other if n not in line)):
            if line.get(name) != other.get(name):
                return 0, Parting(line["step"], f"logged {name}")
    if len(reference.log) != len(run.log):
        return 0, Parting(run.last[0].last_step, "logged lines")
    return None
