"""This machine's part in a run whose workers come and go, on one machine or on several.

In: a run's folder, what its workers do, how many it takes, how many this machine has. Out: the run
has ended, or this machine has left it; or an error that says what ended its workers. Guaranteed: at
most one machine leads, the one that holds the folder's lock; when the leader is gone another takes
its place, so that the run goes on as long as one machine is left. After a failure all workers start
anew from the last completed step; a worker that fails again and again without a step between is
left out, or, if it is not one worker's fault, ends the run; a frozen worker is found.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import PContext, SignalException

from samepath.console import Patience, WaitedTooLong, say
from samepath.engine.comm.environment import LOOPBACK, machine_name
from samepath.engine.elastic import heartbeat
from samepath.engine.elastic.machine import (
    ENDPOINT_FILE,
    MachineOffer,
    WorkerRange,
    endpoint_writer,
    read_endpoint,
)
from samepath.engine.elastic.rendezvous import (
    FINISHED,
    Rendezvous,
    RendezvousClosed,
    RendezvousRound,
    change_words,
)
from samepath.engine.elastic.signed_store import LeaderLost
from samepath.engine.launch import leftovers
from samepath.engine.launch.launch import (
    POLL_SECONDS,
    SHUTDOWN_SECONDS,
    interruptible,
    launching,
    start_workers,
    worker_variables,
)
from samepath.engine.launch.reports import CAUSE_SECONDS, WorkerReport, read_reports
from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.errors import SamepathError, UserError, WorkerFailed
from samepath.owners import owned_folder

SETTLE_SECONDS = 1.0
"""How long a new leader waits for another that leads too, where locks are not seen."""
REACH_SECONDS = 60.0
"""How long a machine that joins tries to reach a leader that lives (it holds the lock) and does not
answer. One that has been in the run waits longer: its network may heal."""
FAILURES = 3
"""How often in a row, without a completed step, workers may raise before the run ends."""
KILLS = 10
"""The same for workers that were killed: it says less about the run."""
LOSSES = 30
"""The same for failures of any kind, those of other machines included: they give up before."""
FAULTS = 2
"""How often in a row one worker may raise before the run goes on without it."""
EXIT_SECONDS = 30.0
"""How long a machine whose workers have finished waits for those of the others."""
REGROUP_SECONDS = 10.0
"""How long workers that stay wait to see which one leaves."""
QUIET_SECONDS = 1.0
"""Four heartbeats: a worker without one for so long may be the one that others have lost."""


def take_part(
    folder: RunFolder,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    worker_range: WorkerRange,
    machine: MachineOffer,
    timeout_seconds: float,
    tell: Callable[[str], None] = say,
) -> None:
    """Be one of a run's machines until the run has ended; a worker without a heartbeat for
    `timeout_seconds` counts as dead."""
    leftovers.remove(leftovers.find(folder.run_id()))
    reach_seconds = REACH_SECONDS
    while True:
        with interruptible():
            rendezvous = lead_or_join(folder, worker_range, machine, tell, reach_seconds)
        reach_seconds = machine.wait_seconds
        machine = replace(machine, expected=1, address=machine.reached_from(rendezvous.endpoint))
        try:
            with owned_folder() as reports:
                agent = Agent(rendezvous, machine, folder, Path(reports), timeout_seconds, tell)
                _run_until_closed(agent, function, arguments)
            return
        except RendezvousClosed as error:
            if str(error) == FINISHED:
                return
            raise WorkerFailed(f"another machine ended the run: {error}") from None
        except WaitedTooLong as error:
            raise WorkerFailed(f"{error}; the run can be resumed") from None
        except LeaderLost as error:
            if folder.read()["status"] in ENDED:
                return
            if rendezvous.leads:  # this process was frozen: workers begin again, once others come
                tell(f"{error}; opening the run again")
            else:
                tell("the machine that led the run is gone; looking for another")
        finally:
            if rendezvous.leads:
                with suppress(OSError):  # a full or read-only disk; the next leader replaces it
                    (folder.path / ENDPOINT_FILE).unlink(missing_ok=True)


def _run_until_closed(agent: Agent, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Run this machine's workers, and close the rendezvous when the run ends with them."""
    rendezvous = agent.rendezvous
    try:
        with launching(agent.reports):
            failure = agent.run(function, arguments)
        if rendezvous.leads or (failure is not None and not rendezvous.goes_on_without_us()):
            rendezvous.close(FINISHED if failure is None else str(failure))
        if failure is not None:
            raise failure
    finally:
        rendezvous.leave()


# ---- the leader


def lead_or_join(
    folder: RunFolder,
    worker_range: WorkerRange,
    machine: MachineOffer,
    tell: Callable[[str], None],
    reach_seconds: float = REACH_SECONDS,
) -> Rendezvous:
    """Lead the run if no other machine does, else join the one that does."""
    patience = Patience(machine.wait_seconds, tell)
    open_ = partial(
        Rendezvous, worker_range, machine.workers, wait_seconds=machine.wait_seconds, tell=tell
    )
    here = machine_name()
    tried, began = None, 0.0
    while True:
        endpoint = None if folder.holds_lock else read_endpoint(folder)
        elsewhere = endpoint and endpoint.address == LOOPBACK and endpoint.machine != here
        why = ""
        if endpoint != tried:
            tried, began = endpoint, time.monotonic()
        if endpoint is not None and not elsewhere:
            try:
                return open_(endpoint=endpoint)
            except LeaderLost as error:  # that one is gone, and the lock says when
                why = str(error)
        if folder.try_lock():  # not before that: some file systems have no locks
            opened = open_(address=machine.address, machine=here, expected=machine.expected)
            opened.announce(endpoint_writer(folder, opened.endpoint, tell))
            if machine.address == LOOPBACK or not _another_leads(folder, opened):
                return opened
            opened.leave()
            folder.unlock()
            tell("another machine leads the run too, where locks are not seen; joining it")
            continue
        if elsewhere:
            raise UserError(
                f"the run in {folder.path} listens on its own machine only; "
                "start it with --interface NAME to take in other machines"
            )
        if why and time.monotonic() - began > reach_seconds:
            through = machine.interface and f"goes through {machine.interface}"
            raise WorkerFailed(
                f"the leader of the run in {folder.path} could not be reached for "
                f"{reach_seconds:.0f} s: {why}; look for a firewall between the machines, and "
                "whether the leader's --interface is of a network that this machine is in (this "
                f"one {through or 'has no --interface'})"
            )
        patience.pause(f"the leader of the run in {folder.path}{why and f': {why}'}")


def _another_leads(folder: RunFolder, mine: Rendezvous) -> bool:
    """Whether another machine came to lead at the same time, where a file system tells machines
    nothing of each other's locks: the last one to write its endpoint does."""
    time.sleep(SETTLE_SECONDS)
    return read_endpoint(folder) not in (None, mine.endpoint)


# ---- the workers


Outcome = Enum("Outcome", ["RUNNING", "FINISHED", "FAILED"])
"""What a look at the workers of this machine says."""


class Agent:
    """Starts this machine's workers, round after round, and looks after them."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        machine: MachineOffer,
        folder: RunFolder,
        reports: Path,
        timeout_seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        self.rendezvous = rendezvous
        self.reports = reports
        self._interface = machine.interface
        self._folder = folder
        self._timeout = timeout_seconds
        self._tell = tell
        self._workers: PContext | None = None
        self._slots = list(range(rendezvous.workers_here))
        self._failures: list[tuple[bool, int | None]] = []
        """Since the last completed step: whether it was raised, and by which slot's worker."""
        self._steps = 0
        self._failure: SamepathError | None = None
        """Why the run ends here, where it does."""

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> SamepathError | None:
        """Run round after round until the workers have finished; else why they cannot."""
        try:
            while True:
                before, round_ = self.rendezvous.round, self.rendezvous.next_round()
                if words := change_words(before, round_):
                    self._tell(words)
                self._start(round_, function, arguments)
                outcome = self._watch()
                self._kill()
                if outcome is Outcome.FINISHED:
                    self.rendezvous.await_others(EXIT_SECONDS)
                    return None
                if self._failure is not None:
                    return self._failure
        except SignalException as error:
            if self._workers is not None:  # they are told, and have time to save
                self._workers.close(error.sigval, SHUTDOWN_SECONDS)
            raise
        except BaseException:
            self._kill()
            raise

    def _start(
        self, round_: RendezvousRound, function: Callable[..., Any], arguments: Sequence[Any]
    ) -> None:
        for report in self.reports.glob("worker-*.json"):
            report.unlink()
        self._unexplained = 0.0
        self._first = round_.first
        self._heartbeats = heartbeat.Heartbeats(self.reports / "heartbeats", round_.here)
        endpoint = self.rendezvous.endpoint
        variables = worker_variables(
            self._slots[: round_.here],
            round_.num_workers,
            endpoint.address,
            endpoint.port,
            self.rendezvous.store_prefix,
            first=round_.first,
            machine=round_.rank,
            num_machines=round_.num_machines,
        )
        more = {heartbeat.VARIABLE: str(self._heartbeats.path)}
        if self._interface is not None:
            more |= {"GLOO_SOCKET_IFNAME": self._interface, "NCCL_SOCKET_IFNAME": self._interface}
        variables = [mine | more for mine in variables]
        self._workers = start_workers(function, arguments, variables, self.reports, elastic=True)
        self._heartbeats.expect()  # from now: the fork server may have had torch to import

    def _watch(self) -> Outcome:
        """Wait until workers have finished or failed, or (RUNNING) the next round is called."""
        while True:
            time.sleep(POLL_SECONDS)
            outcome = self._look()
            if outcome is not Outcome.RUNNING or self.rendezvous.is_next_called():
                return outcome

    def _kill(self) -> None:
        """End the workers; nothing is lost with them, so they get no time to save."""
        if self._workers is not None:
            self._workers.close(signal.SIGKILL)

    def _look(self) -> Outcome:
        """How the workers are; if one has failed, what follows from it is decided."""
        processes = self._workers._pc.processes  # type: ignore[union-attr]
        codes: dict[int, int | None] = {n: process.exitcode for n, process in enumerate(processes)}
        failed = {here: code for here, code in codes.items() if code}
        frozen = [here for here in self._heartbeats.silent(self._timeout) if codes[here] is None]
        if not failed and not frozen:
            return Outcome.FINISHED if set(codes.values()) == {0} else Outcome.RUNNING
        reports = read_reports(self.reports)
        told = [reports.get(self._first + here) for here in failed]
        others_left = not frozen and len(failed) < len(codes)
        if others_left and (self._may_be_frozen(codes, told) or self._may_be_explained(told)):
            return Outcome.RUNNING
        pids = {here: processes[here].pid for here in codes}
        self._kill()
        with suppress(OSError, UserError):  # a disk that does not answer now
            if self._folder.read()["status"] in ENDED:
                return Outcome.FINISHED  # all is on disk: a failure after that loses nothing
        found = [
            reports.get(self._first + here)
            or WorkerReport.of_exit(self._first + here, code, pids[here])
            for here, code in failed.items()
        ] + [WorkerReport.of_frozen(self._first + here, self._timeout) for here in frozen]
        cause = min(found, key=lambda report: (report.secondary, report.regroup, report.time))
        self._decide(cause)
        return Outcome.FAILED

    def _may_be_frozen(self, codes: dict[int, int | None], told: list[WorkerReport | None]) -> bool:
        """Whether all workers that failed lost another one, and one has been quiet since: it will
        be found frozen, or give a heartbeat."""
        return all(report is not None and report.secondary for report in told) and any(
            codes[here] is None for here in self._heartbeats.silent(QUIET_SECONDS)
        )

    def _may_be_explained(self, told: list[WorkerReport | None]) -> bool:
        """Whether all workers that failed say that others leave or were lost, of which one may
        still say why."""
        others_fault = [r for r in told if r is not None and (r.regroup or r.secondary)]
        if len(others_fault) < len(told):
            return False
        self._unexplained = self._unexplained or time.monotonic()
        leaving = any(report.regroup for report in others_fault)
        waited = time.monotonic() - self._unexplained
        return waited < (REGROUP_SECONDS if leaving else CAUSE_SECONDS)

    def _decide(self, cause: WorkerReport) -> None:
        """Start again, with or without the worker that failed; or end."""
        if self._heartbeats.steps() > self._steps:
            self._failures.clear()
            self._steps = self._heartbeats.steps()
        if cause.regroup:
            return
        slot = None if cause.secondary else self._slots[cause.worker - self._first]
        raised_it = cause.raised and not cause.secondary  # to lose another says nothing of the run
        self._failures.append((raised_it, slot))
        raised = sum(raised for raised, _ in self._failures)
        here_failed = sum(slot is not None for _, slot in self._failures)
        losses = LOSSES if self.rendezvous.leads or self._steps else KILLS  # it may be its network
        too_often = raised >= FAILURES or here_failed >= KILLS or len(self._failures) >= losses
        if cause.final or too_often:
            self._failure = cause.error()
            return
        self._tell(f"{cause.words()}; going on from the last completed step")
        again = cause.signal or self._failures[-FAULTS:] == [(True, slot)] * FAULTS
        if slot is not None and again:
            self._leave_out(slot)

    def _leave_out(self, slot: int) -> None:
        """Go on without one of this machine's workers, if that leaves enough."""
        round_ = self.rendezvous.round
        assert round_ is not None
        if len(self._slots) > 1 and round_.num_workers > self.rendezvous.worker_range.least:
            self._slots.remove(slot)
            self.rendezvous.workers_here -= 1
            left = len(self._slots)
            self._tell(f"going on without it: {left} left on this machine")
