"""Trains the runs of a study, side by side on the cores there are or on a cluster, and reads what
they left.

In: planned runs. Out: their run folders, each finished, or an error; their epochs. Guaranteed: a
finished run is never repeated; one that was stopped or killed goes on from its checkpoint; when the
study is stopped its runs save first; when it is killed they end with it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from samepath.console import Watcher
from samepath.engine.launch.reports import Interrupted
from samepath.engine.run.options import Options, made_of_options
from samepath.engine.run.request import available_workers
from samepath.engine.state.metrics_log import newest_values, number
from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.engine.train import Request, train
from samepath.engine.worker import stop_signals
from samepath.errors import SamepathError, UserError, WorkerFailed
from samepath.files import LOCK, take_lock
from samepath.owners import die_with_launcher
from samepath.study.opening import Opened, StudyRequest
from samepath.study.places.destination import LOCAL
from samepath.study.results import Ended, Epoch
from samepath.threads import threads_of_children

LOOK_SECONDS = 0.5
SHARING_SECONDS = 20.0
"""A shorter run is over sooner with one worker than several have started; nor is a run begun again
with more workers to save less."""
STOP_SECONDS = 30.0
ALL = "all runs"
WORDS = {
    "target": "reached the target",
    "diverged": "diverged",
    "stuck": "got stuck",
    "early": "ended early",
    "finished": "came to the epoch limit",
}


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run to be trained."""

    folder: str
    """Inside the study's folder."""
    label: str
    """The run's name for people."""
    options: Options
    start_from: str | None = None
    """The folder, inside the study's, of a finished run whose state this one begins with."""


class StudyProgress:
    """Reports to a watcher how many runs are done, each run's epochs and the time left."""

    def __init__(self, watcher: Watcher, waiting: Sequence[PlannedRun], num_done: int) -> None:
        self._watcher = watcher
        self._began = time.monotonic()
        self._num_runs, self._num_done = len(waiting) + num_done, num_done
        self._left = {run.folder: run.options.epochs for run in waiting}
        self._finished_epochs = 0.0
        self._running: dict[str, float] = {}

    def look(self, running: Iterable[tuple[PlannedRun, str]], study: Path) -> None:
        """Report every run under way, where it is (on a cluster), its epochs and its last
        validation loss."""
        found = [(run, where, *_progress(study, run)) for run, where in running]
        self._running = {run.folder: float(epochs) for run, _, epochs, _ in found}
        if self._num_runs > 1:
            self._watcher.progress(ALL, self._num_done, self._num_runs, self._how_far())
        for run, where, epochs, loss in found:
            known = "" if loss is None else f"  valid loss {loss:.5g}"
            most, place = run.options.epochs, where and f"  on {where}"
            facts = f"epoch {epochs} of {most}{known}{place}"
            self._watcher.progress(run.label, epochs, most, facts)

    def end(self, run: PlannedRun, study: Path, where: str = "") -> None:
        """Report how a run ended, and where it was then."""
        status, result = status_of(study, run), RunFolder(study / run.folder).read()["result"]
        assert status is not None
        epochs, loss = result["epochs"], result["valid_loss"]
        self._num_done += 1
        self._finished_epochs += epochs
        self._left.pop(run.folder, None)
        self._running.pop(run.folder, None)
        known = "" if loss is None else f", valid loss {loss:.5g}"
        place = where and f", on {where}"
        self._watcher.end(
            run.label,
            f"{run.label}: {WORDS[status]} after {epochs:.3g} epochs{known}{place} "
            f"({self._how_far()})",
        )

    def _how_far(self) -> str:
        """How many runs are done, and the time left if each of the others goes to its limit."""
        text = f"{self._num_done} of {self._num_runs}"
        done = self._finished_epochs + sum(self._running.values())
        if done < 1 or not self._left:
            return text
        left = max(sum(self._left.values()) - sum(self._running.values()), 0.0)
        minutes = (time.monotonic() - self._began) / done * left / 60
        if minutes < 1:
            return f"{text}, less than a minute left"
        return f"{text}, at most {minutes:.0f} min left"


@dataclass
class _Running:
    run: PlannedRun
    process: ForkServerProcess
    words: Connection
    slots: list[int]
    """Which of the machine's cores, or GPUs, it counts for."""
    epochs: int
    """Done when it was started."""
    began: float = field(default_factory=time.monotonic)
    will_go_on: bool = False
    """It was stopped to be started again with more workers."""

    def seconds_saved(self, study: Path, free: int) -> float:
        """What the rest of the run would take less with the free cores too, if they count fully; 0
        while that is not known."""
        epochs, _ = _progress(study, self.run)
        if epochs <= self.epochs:
            return 0.0
        options, own = self.run.options, len(self.slots)
        epoch_seconds = (time.monotonic() - self.began) / (epochs - self.epochs)
        more = max(own, min(own + free, options.plan.num_grains))
        return max(options.epochs - epochs, 0) * epoch_seconds * (1 - own / more)


def status_of(study: Path, run: PlannedRun) -> str | None:
    """How a run ended, or None: it has not, or only for a target or a number of epochs that
    have changed since."""
    folder = RunFolder(study / run.folder)
    if not folder.holds_run:
        return None
    content, target, hold = folder.read(), run.options.target, run.options.hold
    status: str = content["status"]
    if status == "target":
        result, before = content["result"], content["config"]
        if target is None:
            return status if result["epochs"] >= run.options.epochs else None
        if result["valid_loss"] > target:
            return None
        if hold > 1 and (before.get("hold", 1) < hold or before["target"] > target):
            return None  # its last evaluations may not all be within the target
    if status == "finished" and content["result"]["epochs"] < run.options.epochs:
        return None
    return status if status in ENDED else None


def train_runs(
    runs: Sequence[PlannedRun],
    opened: Opened,
    request: StudyRequest,
    watcher: Watcher,
    alone_seconds: Callable[[PlannedRun], float] = lambda run: math.inf,
    *,
    cores: int | None = None,
) -> None:
    """Train all runs that are not finished, on the cores or GPUs of this machine (or as if it had
    so many `cores`), or where `request.on` says; `alone_seconds` is what a run takes with one
    worker here."""
    study = opened.folder
    runs = list({run.folder: run for run in runs}.values())
    waiting = [run for run in runs if status_of(study, run) is None]
    if not waiting:
        return
    if request.on != LOCAL:
        from samepath.study.places.cluster import connected  # which needs this module

        with connected(request) as cluster:
            assert cluster is not None
            progress = StudyProgress(watcher, waiting, len(runs) - len(waiting))
            cluster.train(waiting, opened, request, progress, watcher)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["samepath.engine.train", "torch._inductor.config"])
    running: list[_Running] = []
    slots = range(cores or available_workers())
    progress = StudyProgress(watcher, waiting, len(runs) - len(waiting))
    try:
        with threads_of_children(1), stop_signals() as asked:  # runs set the plan's themselves
            while waiting or running:
                busy = {slot for each in running for slot in each.slots}
                free = [slot for slot in slots if slot not in busy]
                while waiting and free:
                    run = waiting.pop(0)
                    workers = 1
                    if alone_seconds(run) > SHARING_SECONDS:
                        # the last runs share the cores that would be idle
                        workers = max(1, len(free) // (len(waiting) + 1))
                        workers = min(workers, run.options.plan.num_grains)
                    mine, free = free[:workers], free[workers:]
                    clear_unbegun(study / run.folder)
                    asking = request_for(run, opened, request, workers)
                    epochs, _ = _progress(study, run)
                    running.append(_start(context, run, asking, mine, epochs))
                wait([each.process.sentinel for each in running], timeout=LOOK_SECONDS)
                if asked():
                    raise Interrupted(asked())
                progress.look([(each.run, "") for each in running], study)
                for each in [each for each in running if not each.process.is_alive()]:
                    running.remove(each)
                    if not _finish(each, study, progress):
                        waiting.append(each.run)
                if not waiting and not any(each.will_go_on for each in running):
                    _share_late(running, study, len(slots))
    finally:
        _stop(running)
        watcher.close()


def clear_unbegun(folder: Path) -> None:
    """Remove what a run left that was killed before it had begun, unless a process is at it."""
    if not folder.exists() or (lock := take_lock(folder)) is None:
        return
    try:
        if not (folder / "run.json").exists():
            for left in folder.iterdir():
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
    finally:
        os.close(lock)


def _share_late(running: Sequence[_Running], study: Path, num_slots: int) -> None:
    """Stop the run that gains most by free cores, if any gains enough: it then goes on with them,
    and its bits are the same. No run waits for them."""
    free = num_slots - sum(len(each.slots) for each in running)
    if not free or not running:
        return
    saved = {number: each.seconds_saved(study, free) for number, each in enumerate(running)}
    most = max(saved, key=lambda number: saved[number])
    if saved[most] > SHARING_SECONDS and running[most].process.is_alive():
        running[most].will_go_on = True
        os.kill(running[most].process.pid or 0, signal.SIGTERM)


def _start(
    context: Any, run: PlannedRun, request: Request, slots: list[int], epochs: int
) -> _Running:
    words, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(request, slots, theirs))
    process.start()
    theirs.close()
    return _Running(run, process, words, slots, epochs)


def _finish(each: _Running, study: Path, progress: StudyProgress) -> bool:
    """Report a process that has ended: well, with words of its own, or without. False: the run is
    to go on with more workers."""
    code = each.process.exitcode
    with suppress(EOFError):  # it had nothing to say
        kind, text = each.words.recv()
        if kind != "stopped":
            raise (UserError if kind == "user" else WorkerFailed)(f"{each.run.label}: {text}")
    if status_of(study, each.run) is None:
        if each.will_go_on:
            return False
        raise WorkerFailed(f"{each.run.label}: its process ended with code {code}")
    progress.end(each.run, study)
    return True


def _stop(running: Sequence[_Running]) -> None:
    """Ask runs that are left to save and end, and see that they do."""
    for each in running:
        if each.process.is_alive():
            os.kill(each.process.pid or 0, signal.SIGTERM)
    for each in running:
        each.process.join(STOP_SECONDS)
        if each.process.is_alive():
            each.process.kill()
            each.process.join()


def _work(request: Request, slots: list[int], words: Connection) -> None:
    """Train one run, in a process of its own."""
    os.setpgid(0, 0)  # Ctrl-C reaches the study alone, which passes it on: once
    die_with_launcher()
    if number := torch.cuda.device_count():  # each run its own GPUs (reasoned; not run on any)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))
        mine = [visible.split(",")[slot] for slot in slots]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    train_and_tell(request, lambda kind, text: words.send((kind, text)))


def train_and_tell(request: Request, tell: Callable[[str, str], None]) -> None:
    """Train one run in a process of its own. `tell` is told why the run has not ended, if so:
    `stopped`, or an error that is the `user`'s, or how it `failed`."""
    signal.signal(signal.SIGTERM, _stop_at_once)
    try:
        result, _ = train(request)
        if result.status == "interrupted":
            tell("stopped", "")
    except Interrupted:
        tell("stopped", "")
    except UserError as error:
        tell("user", str(error))
    except SamepathError as error:
        tell("failed", str(error))
    except BaseException:
        tell("failed", "\n" + traceback.format_exc().rstrip())


def _stop_at_once(number: int, frame: FrameType | None) -> None:
    """Stop a run that has begun, as its folder says, and has made no step yet."""
    raise Interrupted(number)


def request_for(run: PlannedRun, opened: Opened, request: StudyRequest, workers: int) -> Request:
    """What `samepath train` would be asked for this run."""
    options, folder = run.options, opened.folder / run.folder
    is_begun = RunFolder(folder).holds_run
    begins_from = None if is_begun or run.start_from is None else opened.folder / run.start_from
    return Request(
        recipe=options.recipe,
        data=options.data,
        keep=options.keep,
        num_workers=workers,
        epochs=options.epochs,
        target="none" if options.target is None else options.target,
        batch_size=options.batch_size,
        grain_size=options.grain_size,
        seed=options.seed,
        threads=options.threads,
        exact=options.exact,
        compile=options.compile,
        loader_workers=options.loader_workers,
        hold=options.hold,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        strategy=options.strategy,
        virtual_workers=options.virtual_workers,
        patience=options.patience,
        i_know=options.i_know,
        out=folder,
        resume=is_begun,
        start_from=begins_from,
        command=request.command,
        listen=request.listen,
        source=opened.recipe.origin.source,  # what the recipe's file held when the study began
        made_of=made_of_options(options),
        other_hardware=request.other_hardware,
    )


def _progress(study: Path, run: PlannedRun) -> tuple[int, float | None]:
    """Epochs done and the last validation loss, from the end of the run's metrics."""
    try:
        with (study / run.folder / "metrics.jsonl").open("rb") as file:
            newest = newest_values(file)
    except OSError:
        return 0, None  # it has not written any yet
    loss = newest.get("valid_loss")
    return newest.get("epochs_done", 0), None if loss is None else number(loss)


# ---- what a finished run left

_METRIC = "valid_"
_ENDED: dict[str, Ended] = {
    "target": "target",
    "diverged": "diverged",
    "stuck": "stuck",
    "early": "stuck",  # by the recipe's own patience, or its hooks; the message says so
    "finished": "epochs",
}


def end_of(study: Path, run: PlannedRun) -> tuple[Ended, str]:
    """How a run ended, and in its own words."""
    content = RunFolder(study / run.folder).read()
    return _ENDED[content["status"]], content["result"]["message"]


class EpochEnd(NamedTuple):
    """The end of one epoch of a run."""

    epoch: Epoch
    """Its time is what it took in the study."""
    steps: int
    highest_rate: float
    measured: dict[str, float] | None
    """What the strategy had measured after it."""


def epochs_of(study: Path, run: PlannedRun) -> list[EpochEnd]:
    """Read the ends of a run's epochs."""
    found: list[EpochEnd] = []
    rate = highest = 0.0
    steps = 0
    for line in RunFolder(study / run.folder).read_metrics():
        if "learning_rate" in line:
            rate = float(line["learning_rate"])
            highest = max(highest, rate)
        elif "measured" in line:
            found[-1] = found[-1]._replace(measured=line["measured"])
        elif "epoch_train_loss" in line:
            train, valid = line["epoch_train_loss"], line.get("valid_loss")
            epoch = Epoch(
                epoch=line["epoch"] + 1,
                steps=line["step"],
                examples=(line["epoch"] + 1) * run.options.num_examples,
                seconds=line["seconds"],
                batch_size=line["batch_size"],
                learning_rate=rate,
                train_loss=None if train is None else float(train),
                valid_loss=None if valid is None else float(valid),
                metrics={
                    name.removeprefix(_METRIC): float(value)
                    for name, value in line.items()
                    if name.startswith(_METRIC) and name != "valid_loss"
                },
            )
            found.append(EpochEnd(epoch, line["step"] - steps, highest, None))
            steps, highest = line["step"], 0.0
    return found
