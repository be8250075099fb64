"""One worker's whole life: join the others, train, leave.

In: a Request, its Options, the run's folder (they cross a process border). Out: a RunResult.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from samepath.console import drop_closed_outputs, not_ignored, say
from samepath.engine.comm.environment import read_place
from samepath.engine.elastic.step_memory import StepMemory
from samepath.engine.launch.reports import Interrupted, Regroup
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.request import Request
from samepath.engine.run.session import start
from samepath.engine.server import ServerSession, answer_server
from samepath.engine.state.progress import RunResult
from samepath.engine.state.run_folder import RunFolder
from samepath.faults import fault_point
from samepath.recipe import Recipe


def run_worker(
    request: Request, options: Options, path: Path, recipe: Recipe | None = None
) -> RunResult:
    """One worker's whole life (all arguments but `recipe` cross a process border)."""
    fault_point("begun")
    place = read_place(os.environ)
    if recipe is None:
        recipe = recipe_of(options, request.source)
        recipe = recipe if request.instead is None else request.instead(recipe)
    if options.server and place.worker != 0:
        with stop_signals():  # the server says when to stop
            return answer_server(recipe, options, request.timeout_seconds)
    session = (
        ServerSession(options, request.timeout_seconds)
        if options.server
        else start(
            seed=options.seed, threads=options.threads, timeout_seconds=request.timeout_seconds
        )
    )
    with session, stop_signals() as asked:
        others = not options.server and not session.collective.agree(not request.other_hardware)
        if others and session.is_first:
            RunFolder(path).note_other_hardware()
        display = None
        if request.display is not None and session.is_first:
            display = request.display()
        memory = _memory(RunFolder(path)) if request.elastic else None
        run = Run(
            recipe,
            options,
            session,
            RunFolder(path),
            display=display,
            stop_asked=asked,
            checkpoint_steps=request.checkpoint_steps,
            log=request.loggers,
            memory=memory,
            elastic=request.elastic,
            others_go_on=request.elastic and place.num_here < place.num_workers,
            compare_workers=request.watch is None,
            other_hardware=others,
            says_gain=_says_gain(request, options, recipe),
        )
        if request.resume or request.elastic:
            found = run.resume()
            if request.resume and found:
                run.display.note(f"continuing after step {run.trainer.step_number}")
            elif request.resume:
                run.display.note("no checkpoint found, starting over at step 1")
        tell = None if request.watch is None else request.watch(run)
        with nullcontext() if request.listen is None else request.listen(run):
            result = run.go()
        fault_point("result")
        if tell is not None:
            tell(result)
        if request.elastic and result.status != "interrupted":
            # no worker leaves before worker 0 has written everything
            session.collective.agree(True)
            if memory is not None and not place.store_prefix:
                memory.close()  # torchrun leaves no launcher to do it later
        if isinstance(session, ServerSession):
            session.dismiss(result)
        return result


def _says_gain(request: Request, options: Options, recipe: Recipe) -> bool:
    """Whether a run says what larger grains would gain: one that begins, whose grains follow from
    a number of workers, whose workers stay as many, and whose batch is the recipe's."""
    by_workers = bool(request.max_workers or (recipe.max_workers and not request.grain_size))
    stays = not (request.resume or request.elastic or options.server)
    return request.says_gain and by_workers and stays and options.strategy == "strong"


def _memory(folder: RunFolder) -> StepMemory | None:
    """Where this worker keeps its part of the last step."""
    run_id, place = folder.run_id(), read_place(os.environ)
    if run_id is None:
        return None
    return StepMemory(run_id, folder.path, say, part=place.here, parts=place.num_here)


def run_launched_worker(request: Request, options: Options, path: Path) -> None:
    """A worker's life under our launcher. One that was stopped must not return: torch's agent has
    passed the signal on and listens no more, and a worker that returns waits for it to."""
    result = run_worker(request, options, path)
    fault_point("end")
    if result.status == "interrupted":
        if request.elastic and result.signal is None:
            raise Regroup("a machine leaves")
        raise Interrupted(result.signal or signal.SIGINT)


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Ctrl-C, SIGTERM and a lost terminal ask for a stop after the step; a second Ctrl-C does not
    wait for it. Which signal asked, or 0."""
    asked = 0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP:
            drop_closed_outputs()
        if asked and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        asked = number

    before = {number: signal.signal(number, ask) for number in not_ignored(_STOPPING)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
