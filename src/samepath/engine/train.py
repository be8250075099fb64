"""Training a recipe from start to end: check, make the folder, start workers, report.

In: what a person asked for. Out: a RunResult, and a run folder. Every command that trains calls
`train`. Guaranteed: bad input raises before anything is written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from samepath.engine.course import Course
from samepath.engine.environment import read_place
from samepath.engine.launch import Interrupted, launch
from samepath.engine.loop import Run
from samepath.engine.options import Asked, Options, recipe_of, refuse_recipe, resolve, versions
from samepath.engine.progress import Display, RunResult
from samepath.engine.rundir import RunFolder, next_free
from samepath.engine.server import ServerSession
from samepath.engine.server_worker import work
from samepath.engine.session import start
from samepath.engine.tensorboard import FOLDER, require_tensorboard
from samepath.errors import UserError
from samepath.recipe import FoundRecipe, find_recipe
from samepath.strategies import find_strategy
from samepath.strategies.asynchronous import Asynchronous


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked for."""

    recipe: str
    data: str | None = None
    """Data for a recipe that takes some."""
    keep: str | None = None
    """A keep-list: the examples to train on."""
    num_workers: int | Literal["auto"] = "auto"
    asked: Asked = field(default_factory=Asked)
    out: Path | None = None
    """The run's folder; runs/<recipe>-<number> when not given."""
    resume: bool = False
    checkpoint_steps: int | None = None
    """Save every so many steps, instead of every minute."""
    tensorboard: bool = False
    """Write event files too. A run that has some goes on with them when it is resumed."""
    command: tuple[str, ...] = ()
    """The command line, for run.json."""
    display: Callable[[Options, int], Display] | None = None
    """Makes what worker 0 shows; must pickle."""


def available_workers() -> int:
    """GPUs, or the cores this process may use."""
    return torch.cuda.device_count() or len(os.sched_getaffinity(0))


def train(request: Request) -> tuple[RunResult, Path]:
    """Run a request; the result and the run's folder."""
    found = find_recipe(request.recipe, *_files_of(request))
    place = read_place(os.environ)
    if place.launcher != "alone":  # torchrun, mpirun or srun started us: we are one worker of many
        request = replace(request, num_workers=_given_workers(request, place.num_workers))
    request, options, folder = _prepare(request, found, writes=place.worker == 0)
    try:
        if place.launcher != "alone" or (request.num_workers == 1 and not options.server):
            return _work(request, options, folder.path, found), folder.path
        return _launch(request, options, folder), folder.path
    except BaseException as error:
        if place.worker == 0:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            folder.write_status("interrupted" if stopped else "failed")
        raise
    finally:
        folder.unlock()


def _files_of(request: Request) -> tuple[str | None, str | None]:
    """The data and the keep-list that were named, or, on resume, that the run had."""
    before: dict[str, Any] = {}
    if request.resume and request.out is not None:
        before = RunFolder(request.out).read()["config"]
    return request.data or before.get("data"), request.keep or before.get("keep")


def _launch(request: Request, options: Options, folder: RunFolder) -> RunResult:
    """Run it on workers of our own."""
    assert isinstance(request.num_workers, int)
    number = None
    try:
        processes = request.num_workers + options.server
        launch(_launched, (request, options, folder.path), processes)
    except Interrupted as error:
        number = error.number
        if folder.read()["status"] != "interrupted":
            raise  # they had not come to a step they could stop after
    return replace(RunResult(**_unfinite(folder.read()["result"])), signal=number)


def _uses_server(request: Request) -> bool:
    """Asynchronous updates are real ones, unless they are those of so many virtual workers."""
    if request.resume and request.out is not None:
        return bool(RunFolder(request.out).read()["config"].get("server", False))
    strategy, virtual = request.asked.strategy, request.asked.virtual_workers
    if strategy is None or virtual is not None:
        return False
    return isinstance(find_strategy(strategy).function, Asynchronous)


def _given_workers(request: Request, num_processes: int) -> int:
    num_workers = num_processes
    if _uses_server(request):
        num_workers -= 1
        if not num_workers:
            raise UserError(
                "asynchronous updates need a server and at least one worker, but the launcher "
                "started 1 process; start 2 or more (3 are a server and 2 workers), or add "
                "--as-workers K for the updates that K workers of one speed would make"
            )
    if request.num_workers not in ("auto", num_workers):
        raise UserError(
            f"-n {request.num_workers}, but the launcher started {num_workers} workers"
            f"{' and a server' if num_workers < num_processes else ''}; "
            "leave -n out under torchrun, mpirun and srun"
        )
    return num_workers


def _prepare(
    request: Request, found: FoundRecipe, *, writes: bool
) -> tuple[Request, Options, RunFolder]:
    """Check everything that can be checked, then make or reopen the folder."""
    if request.resume and request.out is None:
        raise UserError("--resume needs the run's folder; add --out FOLDER")
    folder = RunFolder(request.out or next_free(request.recipe))
    if request.resume and (folder.path / FOLDER).is_dir():
        request = replace(request, tensorboard=True)
    if request.tensorboard:
        require_tensorboard()
    earlier = None
    if request.resume:
        earlier = folder.read()
        before, now = earlier["starts"][-1]["versions"]["torch"], versions()["torch"]
        if before != now:
            print(
                f"samepath: this run began with torch {before} and continues with {now}: "
                "from here on the bits may differ from a run on one version",
                file=sys.stderr,
            )
    elif writes:
        folder.refuse_if_used()
    options = resolve(found, request.asked, earlier and earlier["config"])
    options = replace(options, server=_uses_server(request))
    most = options.plan.num_grains if options.exact else options.batch_size
    asked = request.num_workers
    available = available_workers()
    workers = asked if isinstance(asked, int) else min(available, most)
    if options.server:  # each worker has whole batches
        workers = asked if isinstance(asked, int) else available
    elif earlier is None and request.asked.virtual_workers is None:
        options = replace(options, virtual_workers=workers if request.asked.strategy else 1)
    plan = Course(options).plan(0, ())
    refuse_recipe(found.recipe, options, min(workers, 1) if options.server else workers, plan)
    if writes:
        folder.write(options, list(request.command), earlier, workers)
    return replace(request, num_workers=workers), options, folder


def _work(
    request: Request, options: Options, path: Path, found: FoundRecipe | None = None
) -> RunResult:
    """One worker's whole life (all arguments but `found` cross a process border)."""
    found = found or recipe_of(options)
    if options.server and read_place(os.environ).worker != 0:
        with stop_signals():  # the server says when to stop
            return work(found.recipe, options)
    session = (
        ServerSession(options)
        if options.server
        else start(seed=options.seed, threads=options.threads)
    )
    with session, stop_signals() as asked:
        display = None
        if request.display is not None and session.is_first:
            display = request.display(options, session.num_workers)
        run = Run(
            found.recipe,
            options,
            session,
            RunFolder(path),
            display=display,
            stop_asked=asked,
            checkpoint_steps=request.checkpoint_steps,
            events=request.tensorboard,
        )
        if request.resume:
            run.resume()
        result = run.go()
        if isinstance(session, ServerSession):
            session.dismiss(result)
        return result


def _launched(request: Request, options: Options, path: Path) -> None:
    """A worker's life under our launcher. One that was stopped must not return: torch's agent has
    passed the signal on and listens no more, and a worker that returns waits for it to."""
    result = _work(request, options, path)
    if result.status == "interrupted":
        raise Interrupted(result.signal or signal.SIGINT)


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Ctrl-C, SIGTERM and a lost terminal ask for a stop after the step; a second Ctrl-C does not
    wait for it. Which signal asked, or 0."""
    asked = 0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        asked = number

    before = {number: signal.signal(number, ask) for number in _STOPPING}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unfinite(result: dict[str, Any]) -> dict[str, Any]:
    """run.json writes NaN and infinities as text; read them back as numbers."""
    words = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
    return {k: words.get(v, v) if isinstance(v, str) else v for k, v in result.items()}
