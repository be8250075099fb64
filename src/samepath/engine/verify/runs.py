"""Runs as `samepath train` makes them, on few examples, recorded.

In: a recipe and a number of steps; then a Route: at which worker count a run begins, where it is
stopped and saved, and at which count it is continued. Out: the same recipe on fewer examples,
evenly chosen (its epoch ends within those steps; its last batch and last validation grain are
exactly as short as on all examples; small data stay whole); what every worker of every leg saw, and
what the run's folder holds at last. Each leg is a call of `train`: one worker in a fresh process
without our launcher, several under it. A later leg knows nothing but the folder.
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

import numpy as np

from samepath.console import count
from samepath.data import as_source
from samepath.data.sources import only_rows
from samepath.engine.launch.launch import lone_process
from samepath.engine.launch.reports import Interrupted, WorkerReport, read_reports
from samepath.engine.run.options import training_source
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.engine.verify.trace import TraceJob, WorkerTrace, trace_path
from samepath.owners import die_with_parent, owned_folder
from samepath.plan import Plan
from samepath.recipe import Recipe

STEPS_OF_NEXT = 3
"""Steps of the next epoch, if there are enough: an epoch's beginning follows its end."""
VALID_GRAINS = 4
"""Full validation grains, at least; more where more is trained on."""


@dataclass(frozen=True, kw_only=True)
class Shortened:
    """How many examples a short run is trained on; a Request's `instead`."""

    num_train: int
    num_valid: int | None
    """None where the recipe has no validation data."""

    def __call__(self, recipe: Recipe) -> Recipe:
        for split, number, total in (
            ("train", self.num_train, len(training_source(recipe))),
            ("valid", self.num_valid, num_valid(recipe)),
        ):
            if number is None or total is None or number == total:
                continue
            if split == "train" and recipe.sampler is not None:
                recipe = replace(recipe, sampler=recipe.sampler.of_length(number))
                continue
            rows = np.arange(number, dtype=np.int64) * total // number
            facts = getattr(recipe, f"{split}_facts")
            changes: dict[str, Any] = {
                split: only_rows(getattr(recipe, split), rows),
                f"{split}_facts": {name: values[rows] for name, values in facts.items()},
            }
            recipe = replace(recipe, **changes)
        return recipe


def num_valid(recipe: Recipe) -> int | None:
    """Validation examples; None where there are no such data."""
    if recipe.valid is None:
        return None
    return len(as_source(recipe.valid, seed=0, collate=recipe.collate))


def shorten(plan: Plan, valid: int | None, steps: int, most_workers: int) -> Shortened:
    """What to train on for so many steps of a plan, with so many validation examples."""
    rest = plan.num_examples % plan.batch_size
    wanted = max(2 if rest else 1, steps - min(STEPS_OF_NEXT, steps // 5))
    train = plan.num_examples
    if plan.steps_per_epoch > wanted:
        train = (wanted - bool(rest)) * plan.batch_size + rest
    if valid is not None:
        grains = max(VALID_GRAINS, most_workers + 1, train // plan.grain_size)
        valid = min(valid, grains * plan.grain_size + valid % plan.grain_size)
    return Shortened(num_train=train, num_valid=valid)


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
    """Traces by leg and worker; workers of the last one ended the run."""
    folders: list[Path]
    """Folders by leg: where its traces are, and the state that was looked into."""
    log: list[dict[str, Any]]
    """Its metrics, without times."""

    @property
    def first(self) -> WorkerTrace:
        return self.legs[0][0]

    @property
    def last(self) -> list[WorkerTrace]:
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
        out = self._folder / f"run-{self._number}"
        folders = [out.with_name(f"{out.name}-leg-{number}") for number in range(len(route))]
        legs = []
        for number, (leg, folder) in enumerate(zip(route, folders, strict=True)):
            folder.mkdir()
            verb = "continuing" if number else "training"
            if look_into is not None:
                verb = f"looking into step {look_into} of"
            self._tell(f"{verb} {self._request.recipe} on {count(leg.num_workers, 'worker')}")
            step = look_into if number == len(route) - 1 else None
            job = TraceJob(folder=folder, look_into=step, keep_worker=keep_worker)
            self._train(leg, out, job, resume=number > 0)
            legs.append([WorkerTrace.read(trace_path(folder, w)) for w in range(leg.num_workers)])
        lines = RunFolder(out).read_metrics()
        log = [{name: v for name, v in line.items() if name != "seconds"} for line in lines]
        return Recorded(route=route, legs=legs, folders=folders, log=log)

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
            train_in_fresh_process(request)
        else:
            train(request)
        result = RunFolder(out).read()["result"]
        if result["status"] == "interrupted":
            raise Interrupted(result.get("signal") or signal.SIGINT)


def train_in_fresh_process(request: Request) -> None:
    """Train in a process of its own: nothing that this process has done reaches it. What it raises
    is raised here."""
    with owned_folder() as reports:
        # -P: the folder one happens to be in is not importable under `samepath train`
        command = [sys.executable, "-P", "-m", "samepath.engine.verify.runs"]
        with lone_process(command, stdin=subprocess.PIPE) as process:
            process.communicate(pickle.dumps((request, Path(reports))))
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
