"""Training a recipe from start to end: check, make the folder, start workers, report.

In: what a person asked for. Out: a RunResult, and a run folder. Every command that trains calls
`train`. Guaranteed: bad input raises before anything is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from samepath.console import Patience, Watcher, count, say
from samepath.data.loaders import TIMEOUT_SECONDS
from samepath.engine.checks.fingerprints import refuse_other_hardware
from samepath.engine.comm.environment import Place, read_place
from samepath.engine.elastic.machine import MachineOffer, WorkerRange, address_towards, is_led
from samepath.engine.elastic.step_memory import forget
from samepath.engine.launch.launch import launch
from samepath.engine.launch.leftovers import find, remove
from samepath.engine.launch.reports import Interrupted
from samepath.engine.run.loggers import loggers_of
from samepath.engine.run.options import Options, resolve
from samepath.engine.run.request import Request, available_workers, files_of, given_workers, prepare
from samepath.engine.state.checkpoint import list_checkpoints, step_of
from samepath.engine.state.progress import RunResult
from samepath.engine.state.reopen import recipe_of_run, strategy_of_run
from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.engine.worker import run_launched_worker, run_worker
from samepath.errors import UserError, WorkerFailed
from samepath.recipe import Recipe, find_recipe
from samepath.threads import limited_threads

__all__ = ["Request", "join", "train"]

LEADER_SECONDS = 600.0
"""How long launchers that srun or mpirun started wait for the one of them that leads."""
LATE_SECONDS = 60.0
"""A run that has ended, and was not continued by then, needs this machine no more."""


class NotUnderWay(UserError):
    """A run that cannot be joined: no machine trains it now."""


def train(request: Request) -> tuple[RunResult, Path]:
    """Run a request; the result and the run's folder."""
    threads = _threads_of(request)
    with limited_threads(threads):  # what the recipe computes here, and a worker that is here too
        return _train(request, threads)


def _threads_of(request: Request) -> int:
    """Per worker: as many as were named, or, on resume, as the run had."""
    before: dict[str, Any] = {}
    if request.resume and request.out is not None:
        before = RunFolder(request.out).read()["config"]
    return request.threads or before.get("threads", 1)


def _train(request: Request, threads: int) -> tuple[RunResult, Path]:
    recipe = find_recipe(request.recipe, *files_of(request), request.source, threads=threads)
    recipe = recipe if request.instead is None else request.instead(recipe)
    request = replace(request, source=recipe.origin.source)
    place = read_place(os.environ)
    is_range = isinstance(request.num_workers, WorkerRange)
    if is_range and place.launcher in (
        "mpirun",
        "srun",
    ):  # a launcher on every machine
        return _train_with_others(request, place, recipe)
    if place.launcher != "alone":  # torchrun, mpirun or srun started us: we are one worker of many
        request = given_workers(request, place.num_workers)
    elif is_range:
        return _lead(request, request.machine or MachineOffer(workers=available_workers()), recipe)
    request, options, folder = prepare(request, recipe, writes=place.worker == 0)
    with _status_of(folder, writes=place.worker == 0):
        if place.worker == 0:
            remove(find(folder.run_id()))
        if place.launcher != "alone" or (request.num_workers == 1 and not options.server):
            return run_worker(request, options, folder.path, recipe), folder.path
        assert isinstance(request.num_workers, int)
        processes = request.num_workers + options.server
        arguments = (request, options, folder.path)
        run = partial(launch, run_launched_worker, arguments, processes)
        del recipe  # its data may be large, and workers make their own
        return _result(folder, run), folder.path


@contextmanager
def _status_of(folder: RunFolder, *, writes: bool = True) -> Iterator[None]:
    """What ends the run without a result is said in its folder; then it is others' again."""
    try:
        yield
    except BaseException as error:
        if writes:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            folder.write_status("interrupted" if stopped else "failed")
        raise
    else:
        if writes:  # others may not even know the folder, where it was not named
            _forget(folder)
    finally:
        folder.unlock()


def _forget(folder: RunFolder) -> None:
    """What was kept in memory, if it is on disk."""
    run_id, saved = folder.run_id(), list_checkpoints(folder.checkpoints)
    result = folder.read()["result"]
    if run_id is not None and result and saved and step_of(saved[-1]) >= result["steps"]:
        forget(run_id)


def _result(folder: RunFolder, run: Callable[[], None]) -> RunResult:
    """What workers of our own left in the folder."""
    number = None
    try:
        run()
    except Interrupted as error:
        status = folder.read()["status"]
        if status in ENDED:
            return _read_result(folder)  # there was nothing left to stop
        number = error.number
        if not folder.holds_lock or status != "interrupted":
            raise  # they had not come to a step they could stop after
    return replace(_read_result(folder), signal=number)


def _read_result(folder: RunFolder) -> RunResult:
    result = folder.read()["result"]
    if result is None:
        raise WorkerFailed(f"the run in {folder.path} has left no result; it can be resumed")
    return RunResult(**_unfinite(result))


# ---- a range of workers


def _lead(request: Request, machine: MachineOffer, recipe: Recipe) -> tuple[RunResult, Path]:
    """Begin or continue a run that others may join."""
    request, options, folder = prepare(request, recipe, writes=True)
    with _status_of(folder):
        return _take_part(request, options, folder, machine), folder.path


def join(
    path: Path,
    machine: MachineOffer,
    *,
    display: Callable[[], Watcher] | None = None,
    other_hardware: bool = False,
) -> tuple[RunResult, Path]:
    """Bring this machine's workers to a run that is under way."""
    folder = RunFolder(path)
    content = folder.read()
    start_ = content["starts"][-1]
    if not start_.get("crew"):
        raise UserError(
            f"the run in {path} cannot be joined: it has a fixed number of workers (start it with "
            "-n MIN:MAX, such as -n 1:8)"
        )
    if content["status"] != "running" and folder.try_lock():  # else they only regroup
        folder.unlock()
        raise NotUnderWay(f"the run in {path} is not under way ({content['status']})")
    moved = refuse_other_hardware(start_["versions"], allowed=other_hardware)
    if display is not None:
        workers = count(machine.workers, "worker")
        say(f"joining the run of {content['config']['recipe']} in {path} with up to {workers}")
    recipe = recipe_of_run(content, path)
    config = content["config"] | {"strategy": strategy_of_run(content, path)}
    least, most = start_["crew"]
    request = Request(
        recipe=recipe.origin.name,
        num_workers=WorkerRange(least=least, most=most),
        out=path,
        resume=True,
        checkpoint_steps=start_.get("checkpoint_steps"),
        log=",".join(loggers_of(path)) or None,
        timeout_seconds=start_.get("timeout_seconds", TIMEOUT_SECONDS),
        display=display,
        elastic=True,
        source=recipe.origin.source,
        other_hardware=moved,
    )
    try:
        result = _take_part(request, resolve(recipe, earlier=config), folder, machine)
        _forget(folder)
        return result, path
    except Interrupted:
        if folder.holds_lock:  # we came to lead it
            folder.write_status("interrupted")
        else:
            say(f"this machine has left the run in {path}; the others go on")
        raise
    except BaseException:
        if folder.holds_lock:
            folder.write_status("failed")
        raise
    finally:
        folder.unlock()


def _train_with_others(request: Request, place: Place, recipe: Recipe) -> tuple[RunResult, Path]:
    """One launcher of many, each on a machine of its own: the first leads, the others join."""
    if request.out is None:
        raise UserError(
            "a range of workers on several machines needs a folder that all of them see; add --out"
        )
    machine = request.machine or MachineOffer(workers=available_workers())
    machine = replace(machine, expected=place.num_workers)
    if not place.one_machine and machine.interface is None:
        machine = replace(machine, address=address_towards(place.address))
    if place.worker == 0:
        return _lead(request, machine, recipe)
    folder, patience = RunFolder(request.out), Patience(LEADER_SECONDS)
    came = time.monotonic()
    while True:
        if is_led(folder):
            with suppress(NotUnderWay):  # it has just ended
                return join(
                    request.out,
                    machine,
                    display=request.display,
                    other_hardware=request.other_hardware,
                )
        late = time.monotonic() - came > LATE_SECONDS
        if late and folder.holds_run and folder.read()["status"] in ENDED:
            return _read_result(folder), request.out
        patience.pause(f"the launcher that leads the run in {request.out}")


def _take_part(
    request: Request, options: Options, folder: RunFolder, machine: MachineOffer
) -> RunResult:
    from samepath.engine.launch.elastic import take_part  # not for a fixed number

    arguments, worker_range = (request, options, folder.path), request.num_workers
    assert isinstance(worker_range, WorkerRange)
    run = partial(take_part, folder, run_launched_worker, arguments, worker_range, machine)
    return _result(folder, partial(run, request.timeout_seconds))


def _unfinite(result: dict[str, Any]) -> dict[str, Any]:
    """run.json writes NaN and infinities as text; read them back as numbers."""
    words = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
    return {k: words.get(v, v) if isinstance(v, str) else v for k, v in result.items()}
