"""Trains the runs of a study, side by side on the cores there are.

In: jobs. Out: their run folders, each finished, or an error. Guaranteed: a finished run is never
repeated; one that was stopped or killed goes on from its checkpoint; when the study is stopped its
runs save first; when it is killed they end with it.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from samepath.console import Watcher
from samepath.engine.launch.reports import Interrupted
from samepath.engine.run.options import Asked, made_of_options
from samepath.engine.run.train import Request, train
from samepath.engine.run.worker import stop_signals
from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.errors import SamepathError, UserError, WorkerFailed
from samepath.orphans import die_with_launcher
from samepath.study.grid import Job
from samepath.study.progress import JobsProgress
from samepath.threads import threads_of_children

LOOK_SECONDS = 0.5
SHARING_SECONDS = 20.0
"""A shorter run is over sooner with one worker than several have started."""
STOP_SECONDS = 30.0
_TAIL_BYTES = 8192


@dataclass
class _Running:
    job: Job
    process: ForkServerProcess
    words: Connection
    slots: list[int]
    """Which of the machine's cores, or GPUs, it counts for."""


def status_of(study: Path, job: Job) -> str | None:
    """How a job's run ended, or None: it has not, or only for a target or a number of epochs that
    have changed since."""
    folder = RunFolder(study / job.folder)
    if not folder.holds_run:
        return None
    content, target = folder.read(), job.options.target
    status: str = content["status"]
    if status == "target" and (target is None or content["result"]["valid_loss"] > target):
        return None
    if status == "finished" and content["result"]["epochs"] < job.options.epochs:
        return None
    return status if status in ENDED else None


def run_jobs(
    jobs: Sequence[Job],
    study: Path,
    *,
    cores: int,
    command: Sequence[str],
    source: bytes | None,
    watcher: Watcher,
    alone_seconds: Callable[[Job], float] = lambda job: math.inf,
    other_hardware: bool = False,
) -> None:
    """Train all jobs that are not finished. `source` is what the recipe's file held when the study
    began; `alone_seconds` is what a job takes with one worker."""
    jobs = list({job.folder: job for job in jobs}.values())
    waiting = [job for job in jobs if status_of(study, job) is None]
    if not waiting:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["samepath.engine.run.train", "torch._inductor.config"])
    running: list[_Running] = []
    shown = JobsProgress(watcher, waiting, len(jobs) - len(waiting))
    try:
        with threads_of_children(1), stop_signals() as asked:  # runs set the plan's themselves
            while waiting or running:
                busy = {slot for each in running for slot in each.slots}
                free = [slot for slot in range(cores) if slot not in busy]
                while waiting and free:
                    job = waiting.pop(0)
                    workers = 1
                    if alone_seconds(job) > SHARING_SECONDS:
                        # the last runs share the cores that would be idle
                        workers = max(1, len(free) // (len(waiting) + 1))
                        workers = min(workers, job.options.plan.num_grains)
                    slots, free = free[:workers], free[workers:]
                    folder = _cleared(study / job.folder)
                    request = request_for(
                        job, folder, workers, tuple(command), source, other_hardware
                    )
                    running.append(_start(context, job, request, slots))
                wait([each.process.sentinel for each in running], timeout=LOOK_SECONDS)
                if asked():
                    raise Interrupted(asked())
                shown.look([(each.job, *_progress(study, each.job)) for each in running])
                for each in [each for each in running if not each.process.is_alive()]:
                    running.remove(each)
                    _finish(each, study, shown)
    finally:
        _stop(running)
        watcher.close()


def _cleared(folder: Path) -> Path:
    if folder.exists() and not (folder / "run.json").exists():
        shutil.rmtree(folder)  # killed before it had begun
    return folder


def _start(context: Any, job: Job, request: Request, slots: list[int]) -> _Running:
    words, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(request, slots, theirs))
    process.start()
    theirs.close()
    return _Running(job, process, words, slots)


def _finish(each: _Running, study: Path, shown: JobsProgress) -> None:
    """A process has ended: well, or with words of its own, or without."""
    code = each.process.exitcode
    status = status_of(study, each.job)
    with suppress(EOFError):  # it had nothing to say
        kind, text = each.words.recv()
        raise (UserError if kind == "user" else WorkerFailed)(f"{each.job.label}: {text}")
    if status is None:
        raise WorkerFailed(f"{each.job.label}: its process ended with code {code}")
    result = RunFolder(study / each.job.folder).read()["result"]
    shown.end(each.job, status, result["epochs"], result["valid_loss"])


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
    """One run's whole life, in a process of its own."""
    os.setpgid(0, 0)  # Ctrl-C reaches the study alone, which passes it on: once
    die_with_launcher()
    signal.signal(signal.SIGTERM, _stop_at_once)
    if number := torch.cuda.device_count():  # each run its own GPUs (reasoned; not run on any)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))
        mine = [visible.split(",")[slot] for slot in slots]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    try:
        train(request)
    except Interrupted:
        pass
    except UserError as error:
        words.send(("user", str(error)))
    except SamepathError as error:
        words.send(("failed", str(error)))
    except BaseException:
        words.send(("failed", "\n" + traceback.format_exc().rstrip()))


def _stop_at_once(number: int, frame: FrameType | None) -> None:
    """The run has begun, as its folder says, and has no step yet after which it could stop."""
    raise Interrupted(number)


def request_for(
    job: Job,
    folder: Path,
    workers: int,
    command: tuple[str, ...],
    source: bytes | None,
    other_hardware: bool = False,
) -> Request:
    """What `samepath train` would be asked for this run."""
    options = job.options
    return Request(
        recipe=options.recipe,
        data=options.data,
        keep=options.keep,
        num_workers=workers,
        asked=Asked(
            epochs=options.epochs,
            target="none" if options.target is None else options.target,
            batch_size=options.batch_size,
            grain_size=options.grain_size,
            seed=options.seed,
            threads=options.threads,
            loader_workers=options.loader_workers,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            strategy=options.strategy,
            virtual_workers=options.virtual_workers,
            patience=options.patience,
        ),
        out=folder,
        resume=RunFolder(folder).holds_run,
        command=command,
        source=source,
        made_of=made_of_options(options),
        other_hardware=other_hardware,
    )


def _progress(study: Path, job: Job) -> tuple[int, float | None]:
    """Epochs done and the last validation loss, from the end of the run's metrics."""
    file = study / job.folder / "metrics.jsonl"
    try:
        with file.open("rb") as lines:
            lines.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            tail = lines.read().decode(errors="replace").splitlines()
    except OSError:
        return 0, None  # it has not written any yet
    epochs = 0
    for line in reversed(tail):
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # half a line: the first of the tail, or one being written
        loss = fields.get("valid_loss")
        epochs = max(epochs, int(fields["epoch"]) + ("epoch_train_loss" in fields))
        if loss is not None:
            return epochs, float(loss)
    return epochs, None
