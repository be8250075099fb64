"""torch's elastic agent, for workers whose number may change.

In: a meeting, a function for the workers. Out: they have finished; or an error that says what
ended them. Guaranteed: after a failure everybody starts anew from the last completed step; a worker
that fails again and again without a step between is left out, or, if it is not one worker's fault,
ends the run; a frozen worker is found.
"""

from __future__ import annotations

import multiprocessing.util
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

from samepath.engine.elastic import heartbeat as pulse
from samepath.engine.elastic.rendezvous import Meeting
from samepath.engine.launch.leftovers import marked_semaphores
from samepath.engine.launch.reports import Report, read_reports
from samepath.errors import SamepathError

FAILURES = 3
"""So often in a row, without a completed step, may workers raise before the run ends."""
KILLS = 10
"""The same for workers that were killed: it says less about the run."""
LOSSES = 30
"""The same for failures of any kind, those of other machines included: they give up before."""
FAULTS = 2
"""So often in a row may one worker raise before the run goes on without it."""
EXIT_SECONDS = 30.0
"""How long a machine whose workers have finished waits for those of the others."""
REGROUP_SECONDS = 10.0
"""How long those who stay wait to see who leaves."""
CAUSE_SECONDS = 2.0
"""Who raises closes its connections, and so is lost by others, before it has said why: so long that
is waited for."""
QUIET_SECONDS = 1.0
"""Four pulses: one that gives no sign for so long may be the one that others have lost."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What a launcher is stopped by."""
STORE_VARIABLE = "SAMEPATH_STORE"


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """How a run bears failures."""

    timeout_seconds: float
    """A worker that gives no sign for so long counts as dead."""
    tell: Callable[[str], None]
    is_over: Callable[[], bool] = lambda: False
    """All of the run is on disk: whoever fails now takes nothing with it."""


class Agent(LocalElasticAgent):
    """Starts this machine's workers, round after round."""

    def __init__(
        self,
        meeting: Meeting,
        entrypoint: Callable[..., Any] | str,
        arguments: tuple[Any, ...],
        *,
        start_method: str,
        reports: Path,
        shutdown_seconds: int,
        elastic: Elastic | None = None,
    ) -> None:
        spec = WorkerSpec(
            role="default",
            local_world_size=meeting.workers_here,
            entrypoint=entrypoint,
            args=arguments,
            rdzv_handler=meeting,
            max_restarts=0,
            monitor_interval=0.1,
        )
        logs = DefaultLogsSpecs(log_dir=tempfile.mkdtemp(dir=reports))
        super().__init__(
            spec,
            logs,
            start_method=start_method,
            shutdown_timeout=shutdown_seconds,
            exit_barrier_timeout=EXIT_SECONDS,
        )
        self._meeting = meeting
        self._elastic = elastic
        self._reports = reports
        self._slots = list(range(meeting.workers_here))
        self._failures: list[tuple[bool, int | None]] = []
        """Since the last completed step: whether it was raised, and whose it was."""
        self._steps = 0
        self.failure: SamepathError | None = None
        """Why it ended, where it did not end well."""

    # ---- starting

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        round_ = self._meeting.round
        assert round_ is not None
        spec.local_world_size = round_.here
        if self._elastic is not None:
            for report in self._reports.glob("worker-*.json"):
                report.unlink()
            self._unexplained = 0.0
            self._pulses = pulse.Pulses(self._reports / "pulse", round_.here)
        return [
            Worker(
                local_rank=here,
                global_rank=round_.first + here,
                role_rank=round_.first + here,
                world_size=round_.num_workers,
                role_world_size=round_.num_workers,
            )
            for here in range(round_.here)
        ]

    def _set_local_rank_env(
        self, worker_env: dict[str, str | None], local_rank: int, spec: WorkerSpec
    ) -> None:
        super()._set_local_rank_env(worker_env, local_rank, spec)
        worker_env["LOCAL_RANK"] = str(self._slots[local_rank])  # which GPU
        worker_env["SAMEPATH_HERE"] = str(local_rank)
        worker_env[STORE_VARIABLE] = self._meeting.workers_names
        if self._meeting.interface is not None:
            worker_env["GLOO_SOCKET_IFNAME"] = self._meeting.interface
            worker_env["NCCL_SOCKET_IFNAME"] = self._meeting.interface
        if self._elastic is not None:
            worker_env[pulse.VARIABLE] = str(self._pulses.path)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        multiprocessing.util.get_temp_dir()  # made where it was to be: the fork server's
        before, tempfile.tempdir = tempfile.tempdir, str(self._reports)
        answers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            # torch leaves a worker's pickled exception in the temporary folder: here, in one that
            # is ours alone, and goes
            with marked_semaphores():
                started: dict[int, Any] = super()._start_workers(worker_group)
        finally:
            tempfile.tempdir = before
            if threading.current_thread() is threading.main_thread():
                for number, answer in answers.items():  # torch has put its own in their place
                    signal.signal(number, answer)
        if self._elastic is not None:
            self._pulses.begin()  # the fork server may have had torch to import
        return started

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Nothing is lost with them, so nobody waits for them."""
        if self._elastic is None:
            super()._stop_workers(worker_group)
        else:
            self._shutdown(signal.SIGKILL)

    def _invoke_run(self, role: str = "default") -> RunResult:
        try:
            result: RunResult = super()._invoke_run(role)
            return result
        except SignalException:
            raise  # workers are told, and have time to save
        except Exception:
            self._stop_workers(self._worker_group)
            raise

    # ---- looking after them

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._elastic is None:
            found: RunResult = super()._monitor_workers(worker_group)
            return found
        # never torch's own look: who dies between ours and that would end the run
        state = self._look(worker_group, self._elastic)
        everybody = {worker.global_rank: None for worker in worker_group.workers}
        done = everybody if state == WorkerState.SUCCEEDED else {}
        return RunResult(state=state, return_values=done)

    def _codes(self) -> dict[int, int | None]:
        """Exit codes of this machine's workers."""
        assert self._pcontext is not None
        processes = self._pcontext._pc.processes  # type: ignore[attr-defined]
        return {here: process.exitcode for here, process in enumerate(processes)}

    def _look(self, group: WorkerGroup, elastic: Elastic) -> WorkerState:
        """How they are; if somebody has failed, what follows from it is decided."""
        assert self._pcontext is not None
        processes = self._pcontext._pc.processes  # type: ignore[attr-defined]
        codes = self._codes()
        failed = {here: code for here, code in codes.items() if code}
        frozen = [
            here for here in self._pulses.silent(elastic.timeout_seconds) if codes[here] is None
        ]
        if not failed and not frozen:
            done = set(codes.values()) == {0}
            return WorkerState.SUCCEEDED if done else WorkerState.HEALTHY
        first = group.workers[0].global_rank
        reports = read_reports(self._reports)
        told = [reports.get(first + here) for here in failed]
        others_left = not frozen and len(failed) < len(codes)
        if others_left and (self._may_be_frozen(codes, told) or self._may_be_explained(told)):
            return WorkerState.HEALTHY
        pids = {here: processes[here].pid for here in codes}
        self._shutdown(signal.SIGKILL)
        if elastic.is_over():
            return WorkerState.SUCCEEDED
        found = [
            reports.get(first + here) or Report.of_exit(first + here, code, pids[here])
            for here, code in failed.items()
        ] + [Report.of_frozen(first + here, elastic.timeout_seconds) for here in frozen]
        cause = min(found, key=lambda report: (report.secondary, report.regroup, report.time))
        self._decide(cause, cause.worker - first, elastic)
        return WorkerState.FAILED

    def _may_be_frozen(self, codes: dict[int, int | None], told: list[Report | None]) -> bool:
        """Everybody who failed has lost somebody, and somebody else has been quiet since: it will
        be found frozen, or give a sign."""
        return all(report is not None and report.secondary for report in told) and any(
            codes[here] is None for here in self._pulses.silent(QUIET_SECONDS)
        )

    def _may_be_explained(self, told: list[Report | None]) -> bool:
        """All who failed say that others leave or were lost, of whom one may still say why."""
        others_fault = [r for r in told if r is not None and (r.regroup or r.secondary)]
        if len(others_fault) < len(told):
            return False
        self._unexplained = self._unexplained or time.monotonic()
        leaving = any(report.regroup for report in others_fault)
        waited = time.monotonic() - self._unexplained
        return waited < (REGROUP_SECONDS if leaving else CAUSE_SECONDS)

    def _decide(self, cause: Report, here: int, elastic: Elastic) -> None:
        """Start again, with or without the one that failed; or end."""
        if self._pulses.steps() > self._steps:
            self._failures.clear()
            self._steps = self._pulses.steps()
        self._remaining_restarts = 1  # which the agent counts down by restarting
        if cause.regroup:
            return
        whose = None if cause.secondary else self._slots[here]
        raised_it = cause.raised and not cause.secondary  # to lose another says nothing of the run
        self._failures.append((raised_it, whose))
        raised = sum(raised for raised, _ in self._failures)
        here_failed = sum(whose is not None for _, whose in self._failures)
        losses = LOSSES if self._meeting.leads or self._steps else KILLS  # it may be its network
        too_often = raised >= FAILURES or here_failed >= KILLS or len(self._failures) >= losses
        if cause.final or too_often:
            self._remaining_restarts = 0
            self.failure = cause.error()
            return
        elastic.tell(f"{cause.words()}; going on from the last completed step")
        again = cause.signal or self._failures[-FAULTS:] == [(True, whose)] * FAULTS
        if whose is not None and again:
            self._leave_out(whose, elastic)

    def _leave_out(self, slot: int, elastic: Elastic) -> None:
        """Go on without one of this machine's workers, if that leaves enough."""
        round_ = self._meeting.round
        assert round_ is not None
        if len(self._slots) > 1 and round_.num_workers > self._meeting.crew.least:
            self._slots.remove(slot)
            self._meeting.workers_here -= 1
            elastic.tell(f"going on without it: {len(self._slots)} left on this machine")
