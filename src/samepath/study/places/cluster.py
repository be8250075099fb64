"""Trains the runs of a study on the members of a cluster: workers of Dask, or nodes of Ray.

In: planned runs and an engine. Out: their run folders on storage that all members share.
Guaranteed: every member is examined before it is given a run: one that does not share the study's
folder, or has another samepath, torch or CPU, is refused by name; a member has no more runs at a
time than its cores and memory allow; the run of a member that is lost goes on elsewhere from its
checkpoint; when the study is stopped its runs save first; when it is killed they save and end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from samepath.console import Patience, WaitedTooLong, Watcher, say
from samepath.engine.checks.fingerprints import describe
from samepath.engine.launch.reports import Interrupted
from samepath.engine.worker import stop_signals
from samepath.errors import UserError, WorkerFailed
from samepath.files import is_locked, lock_folder, write_atomically
from samepath.study.opening import Opened, StudyRequest
from samepath.study.places.destination import Destination, host_and_port, parse_destination
from samepath.study.places.task import WORD, Facts, Outcome, Ticket, facts_here
from samepath.study.runner import (
    LOOK_SECONDS,
    STOP_SECONDS,
    PlannedRun,
    StudyProgress,
    request_for,
    status_of,
)

ANSWER_SECONDS = 5.0
"""Seconds for a first answer from an address."""
MEMBER_SECONDS = 60.0
"""How long a study waits for a first member of a cluster, and for another when all are lost. For
those of a batch system, which wait in its queue, it waits without a limit."""
SEEN_SECONDS = 60.0
"""How long a network file system may take to show here what was written elsewhere."""
MOST_LOSSES = 4
"""A run that so many members were lost with is not given to another: it may be the reason."""
ROUNDED = 1.05
"""dask-jobqueue tells a worker its memory as 0.93GiB when it was asked for 1GB."""
_SAME_AS_HERE = ("samepath", "torch", "numpy")
_SAME_MACHINE = ("machine", "cpu_model", "cpu", "cpu_caches", "gpu")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker of Dask or a node of Ray, as its engine describes it."""

    name: str
    cores: int
    memory: int
    """Bytes; 0: not limited."""


class ClusterEngine(Protocol):
    """What a cluster engine does for a study."""

    def members(self) -> dict[str, Member]:
        """List those that are there now, by an id that is never used again."""

    def expect(self, num_runs: int) -> None:
        """Get ready for so many runs, where members come when they are asked for."""

    def examine(self, members: Sequence[str], check: Path, start: Path) -> dict[str, Facts | str]:
        """Have members look at themselves; a text is why one cannot."""

    def start(self, ticket: Ticket, member: str) -> Any:
        """Give a run to a member; the task's handle."""

    def look(self, task: Any) -> Outcome | None:
        """What became of a task; None: it is under way, or its member is gone."""

    def drop(self, task: Any) -> None:
        """Forget a task."""

    def close(self) -> None:
        """Let go of the cluster."""


_connected: ContextVar[MemberCluster | None] = ContextVar("connected", default=None)


@contextmanager
def connected(request: StudyRequest) -> Iterator[MemberCluster | None]:
    """Connect to the cluster that `request.on` names and refuse what it has that does not fit; all
    `train_runs` inside use it. None for this machine. Nothing of the study is written."""
    destination = parse_destination(request.on)
    if destination.engine == "local" or _connected.get() is not None:
        yield _connected.get()
        return
    engine = _open(destination, request.on)
    try:
        cluster = MemberCluster(engine, destination, request)
        token = _connected.set(cluster)
        try:
            yield cluster
        finally:
            _connected.reset(token)
    finally:
        engine.close()


def _open(destination: Destination, on: str) -> ClusterEngine:
    if destination.address and not destination.is_queue:
        host, port = host_and_port(destination.address)
        try:
            socket.create_connection((host, port), ANSWER_SECONDS).close()
        except OSError as error:
            raise UserError(
                f"--on {on}: nothing answers at {host}:{port} ({error.strerror or error}); check "
                "the address, and that the cluster is running"
            ) from None
    try:
        if destination.engine == "dask":
            from samepath.study.places.dask import open_dask

            return open_dask(destination, on)
        from samepath.study.places.ray import open_ray

        return open_ray(destination, on)
    except ImportError as error:
        extra = destination.engine
        raise UserError(
            f"--on {on} needs packages that are not installed ({error}); install them with: "
            f"pip install 'samepath[{extra}]'"
        ) from None


@dataclass
class _Running:
    run: PlannedRun
    member: str
    where: str
    task: Any


class MemberCluster:
    """The members of a cluster that fit, and the runs they have."""

    def __init__(
        self, engine: ClusterEngine, destination: Destination, request: StudyRequest
    ) -> None:
        self._engine = engine
        self._destination = destination
        self._on = request.on
        self._other_hardware = request.other_hardware
        self._here = facts_here()
        self._machine: Mapping[str, str] | None = None
        """The first member's versions: others compute like it."""
        self._start = Path.cwd()
        self._where: dict[str, str] = {}
        """Members that fit, and what they are called."""
        self._unfit: set[str] = set()
        self._has_locks = True
        self._without = self._patience()
        self._wait_for_members()
        nearest = next(
            folder
            for folder in (self._start / request.folder, *(self._start / request.folder).parents)
            if folder.is_dir()
        )
        with self._check(nearest) as check:
            for why in self._take_in(check):
                raise UserError(f"--on {self._on}: {why}")

    # ---- members

    def _patience(self) -> Patience:
        return Patience(float("inf") if self._destination.is_queue else MEMBER_SECONDS)

    def _wait_for_members(self) -> None:
        self._engine.expect(1)
        try:
            while not self._engine.members():
                self._without.pause(f"a first worker of {self._on}")
        except WaitedTooLong:
            raise UserError(
                f"--on {self._on}: the cluster has no workers; start some, such as: "
                f"dask worker {self._destination.address}"
            ) from None

    @contextmanager
    def _check(self, folder: Path) -> Iterator[Path]:
        """Make a folder that shows who shares `folder`; it is locked while it is there."""
        check = folder / f".cluster-{secrets.token_hex(8)}"
        try:
            check.mkdir()
        except OSError as error:
            raise UserError(
                f"{folder} cannot be written to ({error.strerror}); give another folder with --out"
            ) from None
        lock = None
        try:
            write_atomically(check / WORD, check.name)
            lock = lock_folder(check, f"{check} is being used")
            yield check
        finally:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(check, ignore_errors=True)  # a member may be writing there

    def _take_in(self, check: Path) -> list[str]:
        """Examine members that are new; why some do not fit."""
        members = self._engine.members()
        new = [each for each in members if each not in self._where and each not in self._unfit]
        if not new:
            return []
        refused = []
        for member, found in self._engine.examine(new, check, self._start).items():
            name = members[member].name
            where = f"{found.host} ({name})" if isinstance(found, Facts) else name
            why = self._why_not(found, check, members[member])
            if why is None:
                self._where[member] = where
            else:
                self._unfit.add(member)
                refused.append(f"worker {where} {why}")
        return refused

    def _why_not(self, found: Facts | str, check: Path, member: Member) -> str | None:
        if isinstance(found, str):
            return f"cannot be asked what it has ({found}); samepath must be installed there too"
        if found.word != check.name or not _appears(check, found.mark):
            return (
                f"does not share {check.parent} with this machine, or not {self._start}, where "
                "this was started; start from, and give --out, a folder that all workers see"
            )
        there, here = found.versions, self._here
        for name in _SAME_AS_HERE:
            if there.get(name) != here[name]:
                return (
                    f"has {name} {there.get(name)} and this machine {here[name]}: the bits would "
                    "differ; install the same there"
                )
        if there.get("source") != here["source"]:
            return (
                f"has samepath {here['samepath']} with other files than this machine: the bits "
                "would differ; install the same there"
            )
        if there.get("kernels") != here["kernels"]:
            return (
                f"chooses its kernels by {there.get('kernels') or 'no variables'} and this machine "
                f"by {here['kernels'] or 'none'}: the bits would differ; set the same there"
            )
        cores, memory = self._destination.cores, self._destination.memory
        if member.cores < cores or (member.memory and member.memory * ROUNDED < memory):
            return (
                f"has {member.cores} cores and {member.memory / 1e9:.3g} GB, and a run asks for "
                f"{cores} cores and {memory / 1e9:.3g} GB; ask for less"
            )
        first = self._machine or there
        also = tuple(name for name in _SAME_MACHINE if there.get(name) != first.get(name))
        if also and not self._other_hardware:
            return (
                f"is {describe(there, also)} and others are {describe(first, also)}: the bits "
                "would differ; leave it out, or add --other-hardware"
            )
        if self._machine is None:
            self._machine = there
            if any(there.get(name) != here[name] for name in _SAME_MACHINE):
                say(
                    f"the cluster's workers are {describe(there)}, this machine is "
                    f"{describe(here)}: runs have the exact results of those workers"
                )
        if self._has_locks and not found.has_locks:
            self._has_locks = False
            say(
                f"{check.parent} shows no locks of other machines; if this command is killed, runs "
                "that are under way go on to their end"
            )
        return None

    def _free(self, running: Sequence[_Running], cores: int) -> str | None:
        """A member that has room for a run; the one with the most cores left."""
        busy, memory = Counter(each.member for each in running), self._destination.memory
        best, most = None, 0
        for member, facts in self._engine.members().items():
            left = facts.cores - busy[member] * cores
            fits = not facts.memory or facts.memory * ROUNDED >= (busy[member] + 1) * memory
            if member in self._where and fits and left >= cores and left > most:
                best, most = member, left
        return best

    # ---- runs

    def train(
        self,
        runs: Sequence[PlannedRun],
        opened: Opened,
        request: StudyRequest,
        progress: StudyProgress,
        watcher: Watcher,
    ) -> None:
        """Train runs to their end."""
        study, waiting = self._start / opened.folder, list(runs)
        losses: Counter[str] = Counter()
        running: list[_Running] = []
        for left in study.glob(".cluster-*"):  # of a study that was killed; this one has its lock
            shutil.rmtree(left, ignore_errors=True)
        try:
            with stop_signals() as asked, self._check(study) as check:
                while waiting or running:
                    for why in self._take_in(check):
                        watcher.note(f"{why}; it is given no runs")
                    self._engine.expect(len(waiting) + len(running))
                    self._start_some(waiting, running, opened, request, check)
                    time.sleep(LOOK_SECONDS)
                    if asked():
                        raise Interrupted(asked())
                    progress.look([(each.run, each.where) for each in running], study)
                    members = self._engine.members()
                    for each in list(running):
                        outcome = self._engine.look(each.task)
                        if outcome is None and each.member in members:
                            continue
                        running.remove(each)
                        if not _has_ended(study, each, outcome):
                            losses[each.run.folder] += 1
                            self._engine.drop(each.task)
                            _refuse_losses(each, losses[each.run.folder])
                            watcher.note(
                                f"{each.run.label}: {each.where} is lost; the run goes on "
                                "elsewhere from its checkpoint"
                            )
                            waiting.insert(0, each.run)
                        else:
                            progress.end(each.run, study, each.where)
                    if running or any(member in self._where for member in members):
                        self._without = self._patience()
                    else:
                        self._wait_for_another()
        finally:
            self._stop(running, study)
            watcher.close()

    def _start_some(
        self,
        waiting: list[PlannedRun],
        running: list[_Running],
        opened: Opened,
        request: StudyRequest,
        check: Path,
    ) -> None:
        """Give runs to members that have room."""
        while waiting:
            threads = waiting[0].options.threads
            cores = max(self._destination.cores, threads)
            member = self._free(running, cores)
            if member is None:
                if not running:
                    self._refuse_many_threads(waiting[0], cores)
                return
            run = waiting.pop(0)
            workers = max(1, min(cores // threads, run.options.plan.num_grains))
            ticket = Ticket(
                run=run,
                request=request_for(run, opened, request, workers),
                cores=cores,
                study=self._start / opened.folder,
                start=self._start,
                wanted=check,
                has_locks=self._has_locks,
            )
            task = self._engine.start(ticket, member)
            running.append(_Running(run, member, self._where[member], task))

    def _refuse_many_threads(self, run: PlannedRun, cores: int) -> None:
        members = self._engine.members().items()
        most = max(
            (facts.cores for member, facts in members if member in self._where), default=cores
        )
        if most < cores:
            raise UserError(
                f"{run.label}: it has {cores} threads, and no worker of {self._on} more than "
                f"{most} cores; start larger ones"
            )

    def _wait_for_another(self) -> None:
        try:
            self._without.pause(f"a worker of {self._on}: all are lost")
        except WaitedTooLong:
            raise WorkerFailed(
                f"--on {self._on}: all workers are lost, and none came for {MEMBER_SECONDS:.0f} s; "
                "start some, and the same command goes on from here"
            ) from None

    def _stop(self, running: Sequence[_Running], study: Path) -> None:
        """Wait for runs that were asked to save and end."""
        until = time.monotonic() + STOP_SECONDS
        for each in running:
            while is_locked(study / each.run.folder) and time.monotonic() < until:
                time.sleep(LOOK_SECONDS / 5)
            self._engine.drop(each.task)


def _appears(check: Path, mark: str | None) -> bool:
    """Whether a file that a member has written is there, soon."""
    until = time.monotonic() + ANSWER_SECONDS
    while mark is not None and not (check / mark).exists():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_SECONDS / 5)
    return mark is not None


def _has_ended(study: Path, each: _Running, outcome: Outcome | None) -> bool:
    """Whether a run whose task is over has ended; False: it is to go on elsewhere."""
    kind = "lost" if outcome is None else outcome.kind
    if outcome is not None and kind in ("user", "failed"):
        error = UserError if kind == "user" else WorkerFailed
        raise error(f"{each.run.label}, on {each.where}: {outcome.text}")
    until = time.monotonic() + SEEN_SECONDS
    while (status := status_of(study, each.run)) is None and kind == "ended":
        if time.monotonic() > until:
            raise WorkerFailed(
                f"{each.run.label}, on {each.where}: it has ended there, and its folder "
                f"{study / each.run.folder} does not show it here"
            )
        time.sleep(LOOK_SECONDS)
    return status is not None


def _refuse_losses(each: _Running, losses: int) -> None:
    if losses >= MOST_LOSSES:
        raise WorkerFailed(
            f"{each.run.label}: {losses} workers were lost while they trained it, {each.where} the "
            "last; perhaps it needs more memory (--on ...,memory=16GB); the same command goes on "
            "from its checkpoint"
        )
