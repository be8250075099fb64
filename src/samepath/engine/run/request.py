"""What a person asked for, checked against the recipe and the folder before anything is written.

In: a Request. Out: the same with everything decided, its Options, and a folder that is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from samepath.console import Watcher, count, say
from samepath.data.loaders import TIMEOUT_SECONDS
from samepath.engine.checks.fingerprints import refuse_other_hardware, refuse_others
from samepath.engine.elastic.machine import ENDPOINT_FILE, MachineOffer, WorkerRange, leader_answers
from samepath.engine.elastic.step_memory import forget
from samepath.engine.run.branch import begin, find_start
from samepath.engine.run.loggers import TENSORBOARD, loggers_of, parse_loggers, require_loggers
from samepath.engine.run.loop import Run
from samepath.engine.run.options import (
    Options,
    Overrides,
    refuse_recipe,
    resolve,
    with_fingerprints,
)
from samepath.engine.run.session import too_many_workers
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.engine.state.checkpoint import list_checkpoints
from samepath.engine.state.progress import RunResult
from samepath.engine.state.reopen import code_of, strategy_of_run
from samepath.engine.state.run_folder import RunFolder, claim_next, next_free
from samepath.errors import UserError
from samepath.recipe import Recipe
from samepath.strategies import find_strategy
from samepath.strategies.late import Asynchronous


@dataclass(frozen=True, kw_only=True)
class Request(Overrides):
    """What a person asked for: a recipe, settings in place of its own, workers, a folder."""

    recipe: str
    data: str | None = None
    """Data for a recipe that takes some."""
    keep: str | None = None
    """A keep-list: the examples to train on."""
    num_workers: int | Literal["auto"] | WorkerRange = "auto"
    """A range: the run goes on with the workers that are left, and takes in those that come."""
    machine: MachineOffer | None = None
    """What this machine brings to a run of a range; all its GPUs or cores when not given."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """A worker that does not answer for so long counts as lost."""
    out: Path | None = None
    """The run's folder; runs/<recipe>-<number> when not given."""
    resume: bool = False
    overwrite: bool = False
    """Delete the run that is in the folder, and begin anew."""
    start_from: Path | None = None
    """The folder of a run whose last state this new one begins with (see `engine/run/branch.py`).
    In a request that has been prepared, `resume` is set: it goes on from its own copy."""
    checkpoint_steps: int | None = None
    """Save every so many steps, instead of every minute."""
    tensorboard: bool = False
    """The same as `log="tensorboard"`."""
    log: str | None = None
    """Loggers, with commas between them. A run that has some goes on with them when resumed."""
    command: tuple[str, ...] = ()
    """The command line, for run.json."""
    display: Callable[[], Watcher] | None = None
    """Makes what worker 0 shows; must pickle."""
    says_gain: bool = False
    """Say in the first steps what a smaller number of workers at most would gain."""
    elastic: bool = False
    """Workers keep the last step in memory, and begin with it."""
    source: bytes | None = field(default=None, repr=False)
    """The recipe's file as it was found: a worker that begins later, in the same run, must not meet
    what was changed in it meanwhile."""
    made_of: Mapping[str, Any] | None = field(default=None, repr=False)
    """Fingerprints, for a run of a study, of the data and modules that the study began with."""
    other_hardware: bool = False
    """Go on although the machine, or its torch, is another than the run's. In a request that has
    been prepared: they are."""
    instead: Callable[[Recipe], Recipe] | None = None
    """Makes the recipe that is trained of the one that was found; must pickle."""
    listen: Callable[[Run], AbstractContextManager[None]] | None = None
    """Given the run on every worker, it looks on (by `Stepper.watch`, say) around all steps there,
    and changes nothing. Must pickle."""
    watch: Callable[[Run], Callable[[RunResult], None]] | None = None
    """Told of the run on every worker, before its first step there; what it returns is told the
    result. Must pickle. It is to find what differs, so that the run goes on where workers do."""

    @property
    def loggers(self) -> tuple[str, ...]:
        """Names of the loggers that were asked for."""
        named = () if self.log is None else parse_loggers(self.log)
        return tuple(dict.fromkeys([*([TENSORBOARD] if self.tensorboard else []), *named]))


def available_workers() -> int:
    """GPUs, or the cores this process may use."""
    return torch.cuda.device_count() or len(os.sched_getaffinity(0))


def files_of(request: Request) -> tuple[str | None, str | None]:
    """The data and the keep-list that were named, or, on resume, that the run had."""
    before: dict[str, Any] = {}
    if request.resume and request.out is not None:
        before = RunFolder(request.out).read()["config"]
    return request.data or before.get("data"), request.keep or before.get("keep")


def _uses_server(request: Request) -> bool:
    """Asynchronous updates are real ones, unless they are those of so many virtual workers."""
    if request.resume and request.out is not None:
        return bool(RunFolder(request.out).read()["config"].get("server", False))
    strategy, virtual = request.strategy, request.virtual_workers
    if strategy is None or virtual is not None:
        return False
    return isinstance(find_strategy(strategy).function, Asynchronous)


def given_workers(request: Request, num_processes: int) -> Request:
    """Take as many workers as a launcher has started. torchrun starts a range's anew when they
    fail: where the folder holds the run by then, that goes on."""
    num_workers, asked = num_processes, request.num_workers
    if isinstance(asked, WorkerRange):
        if not asked.least <= num_workers <= asked.most:
            raise UserError(f"-n {asked}, but the launcher started {num_workers} workers")
        if request.out is None:
            raise UserError("a range of workers under torchrun needs the run's folder; add --out")
        under_way = RunFolder(request.out).holds_run
        return replace(request, elastic=True, resume=request.resume or under_way)
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
    return replace(request, num_workers=num_workers)


def prepare(
    request: Request, recipe: Recipe, *, writes: bool
) -> tuple[Request, Options, RunFolder]:
    """Check everything that can be checked, then make or reopen the folder."""
    if request.resume and request.out is None:
        raise UserError("--resume needs the run's folder; add --out FOLDER")
    if request.overwrite and (request.resume or request.out is None):
        raise UserError(
            "--overwrite deletes the run in --out and begins anew; "
            + ("leave out --overwrite or --resume" if request.resume else "add --out FOLDER")
        )
    if request.resume and request.start_from is not None:
        raise UserError("a run that is resumed has begun already; leave start_from out")
    folder = RunFolder(request.out or next_free(request.recipe))
    if request.resume:
        names = dict.fromkeys([*request.loggers, *loggers_of(folder.path)])
        request = replace(request, log=",".join(names) or None)
    require_loggers(request.loggers)
    earlier, moved = None, False
    if request.resume:
        earlier = folder.read()
        moved = refuse_other_hardware(
            earlier["starts"][-1]["versions"], allowed=request.other_hardware
        )
    elif writes:
        folder.refuse_if_used(overwrite=request.overwrite)
    if writes and leader_answers(folder):
        raise UserError(
            f"the run in {folder.path} is being trained by another process; wait for it, or stop it"
        )
    before = earlier and earlier["config"]
    if earlier is not None and request.strategy is None:  # it may have been typed elsewhere
        before = earlier["config"] | {"strategy": strategy_of_run(earlier, folder.path)}
    options = resolve(recipe, request, before)
    options = replace(options, server=_uses_server(request))
    most = options.plan.num_grains if options.exact else options.batch_size
    asked = request.num_workers
    available = available_workers()
    if isinstance(asked, WorkerRange):
        _refuse_range(request, options)
        if asked.least > most:
            raise too_many_workers(asked.least, options.batch_size, options.grain_size)
        wanted, asked = asked.most, WorkerRange(least=asked.least, most=min(asked.most, most))
        request = replace(request, elastic=True)
        workers = asked.most
    else:
        wanted = asked if isinstance(asked, int) else available
        workers = asked if isinstance(asked, int) else min(available, most)
    if options.server:  # each worker has whole batches
        wanted = workers = asked if isinstance(asked, int) else available
    elif earlier is None and request.virtual_workers is None:
        options = replace(options, virtual_workers=workers if request.strategy else 1)
    if request.start_from is not None:
        options = replace(options, start_from=find_start(request.start_from, recipe, options))
    plan = StrategySchedule(options).plan(0, ())
    if request.made_of is not None:
        refuse_others(recipe, request.made_of, began="study")
    refuse_recipe(recipe, options, min(workers, 1) if options.server else workers, plan)
    if request.watch is None:
        options = with_fingerprints(options, recipe)
    if writes:
        if workers < wanted and request.display is not None:
            say(_idle_words(options, wanted, is_new=earlier is None))
        if request.out is None:
            folder = RunFolder(claim_next(request.recipe))
        replaced = folder.run_id() if earlier is None and folder.holds_run else None
        for_others = _for_others(request, asked) | ({"other_hardware": True} if moved else {})
        code = code_of(recipe, options.strategy)
        for_others["batch_size"] = plan.batch_size
        began = (list(request.command), earlier, workers, code)
        folder.write(asdict(options), *began, overwrite=request.overwrite, **for_others)
        if request.display is not None and (request.out is None or request.num_workers == "auto"):
            up_to = "up to " if isinstance(asked, WorkerRange) else ""
            say(f"the run is in {folder.path}, on {up_to}{count(workers, 'worker')}")
        folder.write_config(options.flags | {"n": str(request.num_workers)})
        if replaced is not None:
            forget(replaced)
        (folder.path / ENDPOINT_FILE).unlink(missing_ok=True)  # of a leader that was killed
        if options.start_from is not None and not list_checkpoints(folder.checkpoints):
            begin(folder, options.start_from)
    number = asked if isinstance(asked, WorkerRange) else workers
    goes_on = request.resume or options.start_from is not None
    return replace(request, num_workers=number, resume=goes_on), options, folder


def _idle_words(options: Options, wanted: int, *, is_new: bool) -> str:
    """How many of the workers that could be there can take part, and how more could."""
    batch, grain = options.batch_size, options.grain_size
    if not options.exact:
        return f"{batch} of {wanted} workers can take part: a batch has {batch} examples"
    most, more = options.plan.num_grains, min(wanted, batch)
    words = (
        f"{most} of {wanted} workers can take part: a batch of {batch} in grains of {grain} has "
        f"{count(most, 'grain')}, and others would be idle"
    )
    if is_new and more > most:
        words += f" (--max-workers {more} makes room for {more}; it changes the last digits)"
    return words


def _for_others(request: Request, asked: int | str | WorkerRange) -> dict[str, Any]:
    """What those who join must know."""
    if not isinstance(asked, WorkerRange):
        return {}
    return {
        "crew": (asked.least, asked.most),
        "timeout_seconds": request.timeout_seconds,
        "checkpoint_steps": request.checkpoint_steps,
    }


def _refuse_range(request: Request, options: Options) -> None:
    if options.server:
        raise UserError(
            f"-n {request.num_workers}: asynchronous updates go through one server and have no "
            "path to keep; give a number of workers"
        )
    if request.strategy and request.virtual_workers is None and not request.resume:
        raise UserError(
            f"-n {request.num_workers}: --strategy {request.strategy} goes by a number of "
            "workers; add --as-workers K"
        )
