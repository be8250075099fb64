"""Rendezvous of the machines of a run whose workers come and go.

In: how many workers this machine offers, how many the run takes. Out: rounds. A round says which
machines take part with how many workers; a machine that fails, leaves or comes calls for the next
one. Guaranteed: all machines have the same round; what a process without the run's secret says is
not believed, and nothing that was said is unpickled; no wall clock decides; every wait has a limit.

One machine leads: its launcher hosts the store (torch's TCPStore, on one chosen address), sees
which machines are there by heartbeats it counts on its own clock, and announces the rounds. torch's
own rendezvous is not used: it goes by wall clocks, unpickles what it reads, listens on every
address, and does not outlive its leader.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from samepath.console import POLL_SECONDS, Patience, count
from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.comm.network import open_store
from samepath.engine.elastic.machine import WorkerRange
from samepath.engine.elastic.signed_store import Endpoint, LeaderLost, SignedStore, reach_store
from samepath.errors import SamepathError

FINISHED = "finished"
"""Why a rendezvous is closed when all went well."""
BEAT_SECONDS = 0.5
SILENT_SECONDS = 5.0
"""A machine whose heartbeats stop for so long counts as gone."""
FIRST_SECONDS = 30.0
"""How long the machines that are known to come are waited for in the first round."""


class RendezvousClosed(SamepathError):
    """The run has ended; the message says why."""


@dataclass(frozen=True, kw_only=True)
class RendezvousRound:
    """The machines that take part, as one of them sees it."""

    number: int
    rank: int
    """This machine's number among those that take part."""
    num_machines: int
    first: int
    """The number of this machine's first worker."""
    here: int
    """Workers of this machine."""
    num_workers: int
    """Workers of all machines."""
    machines: tuple[tuple[str, int], ...]
    """Launchers that take part, by host and process, and their workers."""


class Rendezvous:
    """One machine's part in the rendezvous of a run."""

    def __init__(
        self,
        worker_range: WorkerRange,
        workers_here: int,
        *,
        endpoint: Endpoint | None = None,
        address: str = LOOPBACK,
        machine: str = "",
        expected: int = 1,
        wait_seconds: float = 86400.0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Open a rendezvous on an address, or join the one at an endpoint."""
        self.worker_range = worker_range
        self.workers_here = workers_here
        self.leads = endpoint is None
        self._expected = expected
        self._wait = wait_seconds
        self._tell = tell
        if endpoint is None:
            opened, port = open_store(address)
            endpoint = Endpoint(
                address=address, port=port, secret=secrets.token_hex(16), machine=machine
            )
        else:
            opened = reach_store(endpoint.address, endpoint.port)
        self.endpoint = endpoint
        self._store = SignedStore(opened, endpoint.secret)
        if self.leads:
            self._store.set("open", True)
        elif self._store.get("open") is None:
            raise LeaderLost(
                f"the process at {endpoint.address}:{endpoint.port} belongs to another run"
            )
        self.round: RendezvousRound | None = None
        self._seen: dict[int, tuple[int, float]] = {}
        self._member = self._store.add("members", 1) - 1
        self._store.set(f"name/{self._member}", f"{socket.gethostname()} (process {os.getpid()})")
        self._lost = ""
        """Why the leader does not answer."""
        self._ended = threading.Event()
        self._announcement: Callable[[], bool] = lambda: True
        self._beating = threading.Thread(target=self._beat, name="samepath-beat", daemon=True)
        self._beating.start()

    def announce(self, write: Callable[[], bool]) -> None:
        """Call `write`, which tells other machines the endpoint, until it returns True."""
        if not write():
            self._announcement = write

    # ---- what a launcher asks

    @property
    def store_prefix(self) -> str:
        """What the names of this round's workers in the store begin with."""
        assert self.round is not None
        return f"{self._store.prefix}/workers/{self.round.number}"

    def next_round(self) -> RendezvousRound:
        """Take part in the next round; waits until there is one."""
        called = self._store.add("rounds", 0) + 1
        if self.round is not None:  # which the leader may have announced and not counted yet
            called = max(called, self.round.number + 1)
        if self.leads or self.round is not None:  # a newcomer waits until the leader sees it
            self._store.set(f"call/{called}", True)
        patience = Patience(self._wait, self._tell)
        while True:
            self._store.set(f"ready/{called}/{self._member}", self.workers_here)
            parts = (self._open_round if self.leads else self._await)(called, patience)
            round_ = self._place_in(called, parts)
            if round_ is not None:
                self.round = round_
                return round_
            called += 1  # that round was announced just before this machine came, or is full
            while self._store.get(f"call/{called}") is None:
                self._pause(patience, self._why_not_yet(called))

    def is_next_called(self) -> bool:
        """Whether a machine has called for the next round."""
        assert self.round is not None
        self._refuse_if_over()
        called = f"call/{self.round.number + 1}"
        if self.leads and self._changed():
            self._store.set(called, True)
        return self._store.get(called) is not None

    def await_others(self, seconds: float) -> None:
        """Wait at most so long, when this machine's workers have finished, for those of the others;
        a leader that is gone is not waited for."""
        assert self.round is not None
        until = time.monotonic() + seconds
        with suppress(LeaderLost):
            name, more = f"done/{self.round.number}", 1
            while self._store.add(name, more) < self.round.num_machines:
                if time.monotonic() > until:
                    break
                more = 0
                time.sleep(POLL_SECONDS)

    def goes_on_without_us(self) -> bool:
        """Whether the workers of the other machines are enough."""
        round_ = self.round
        return round_ is None or round_.num_workers - round_.here >= self.worker_range.least

    # ---- leaving

    def close(self, why: str) -> None:
        """End the rendezvous for all machines."""
        self._store.set("closed", why)

    def leave(self) -> None:
        """Leave; the machines that stay find out."""
        self._ended.set()
        self._beating.join()
        if not self._lost:
            with suppress(LeaderLost):  # then it knows
                self._store.set(f"left/{self._member}", True)

    # ---- the leader's part

    def _members(self) -> list[int]:
        """List the machines that have neither left nor gone silent."""
        now, there = time.monotonic(), []
        for member in range(self._store.add("members", 0)):
            if self._store.get(f"left/{member}") is not None:
                continue
            beats = self._store.add(f"beat/{member}", 0)
            last, since = self._seen.get(member, (-1, now))
            if beats != last:
                since = now
            self._seen[member] = beats, since
            if now - since < SILENT_SECONDS or member == self._member:
                there.append(member)
        return there

    def _changed(self) -> bool:
        """Whether a machine of this round is gone, or one came that there is a place for."""
        there = set(self._members())
        mine = set(self._parts)
        has_place = sum(self._parts.values()) < self.worker_range.most
        return bool(mine - there) or (has_place and bool(there - mine - self._spare))

    def _open_round(self, called: int, patience: Patience) -> dict[int, int]:
        """Wait until every machine that is there is ready, then announce the round."""
        began = time.monotonic()
        while True:
            there = self._members()
            offers = {m: self._store.get(f"ready/{called}/{m}") for m in there}
            ready = {m: int(n) for m, n in offers.items() if n is not None}
            first = called == 1 and len(ready) < self._expected
            if len(ready) == len(there) and not (
                first and time.monotonic() - began < FIRST_SECONDS
            ):
                parts = allot_workers(ready, self.worker_range.most)
                if sum(parts.values()) >= self.worker_range.least:
                    break
                there_are = f"{sum(ready.values())} there on {len(ready)} machine(s)"
                missing = f"at least {self.worker_range.least} workers ({there_are})"
            else:
                missing = f"{len(there) - len(ready) or 'more'} machine(s) to get ready"
            self._pause(patience, missing)
        self._parts = parts
        self._spare = set(ready) - set(parts)
        self._store.set(f"round/{called}", [list(part) for part in parts.items()])
        self._store.add("rounds", 1)
        return parts

    # ---- every machine's part

    def _await(self, called: int, patience: Patience) -> dict[int, int]:
        while True:
            announced = self._store.get(f"round/{called}")
            if announced is not None:
                return {int(member): int(workers) for member, workers in announced}
            waits = "the next round" if self.round is not None else self._why_not_yet(called)
            self._pause(patience, waits)

    def _why_not_yet(self, called: int) -> str:
        """Say what a machine that is in no round waits for."""
        parts = self._store.get(f"round/{called - 1}") or []
        if sum(int(workers) for _, workers in parts) < self.worker_range.most:
            return "the run to take this machine in"
        return f"a free place: the run is full ({self.worker_range.most} workers)"

    def _place_in(self, called: int, parts: dict[int, int]) -> RendezvousRound | None:
        members = list(parts)
        if self._member not in members:
            return None
        rank = members.index(self._member)
        return RendezvousRound(
            number=called,
            rank=rank,
            num_machines=len(members),
            first=sum(parts[member] for member in members[:rank]),
            here=parts[self._member],
            num_workers=sum(parts.values()),
            machines=tuple(
                (self._store.get(f"name/{member}") or f"machine {member}", workers)
                for member, workers in parts.items()
            ),
        )

    def _pause(self, patience: Patience, missing: str) -> None:
        self._refuse_if_over()
        patience.pause(missing)

    def _refuse_if_over(self) -> None:
        if self._lost:
            raise LeaderLost(self._lost)
        why = self._store.get("closed")
        if why is not None:
            raise RendezvousClosed(str(why))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._store.add(f"beat/{self._member}", 1)
            except LeaderLost as error:
                self._lost = str(error)
                return
            if self._announcement():
                self._announcement = lambda: True


def change_words(before: RendezvousRound | None, now: RendezvousRound) -> str:
    """Say which machines have joined or left since the round before, and who is there; empty where
    none has, or one begins alone."""
    was, here = dict(before.machines if before else ()), dict(now.machines)
    mine = now.machines[now.rank][0]
    joined = [name for name in here if name not in was]
    if before is None:  # in the first round of a launcher that leads, the others are no news
        joined = [] if now.rank == 0 else [mine]
    left = [name for name in was if name not in here]
    if not joined and not left and (before is not None or len(here) == 1):
        return ""
    news = [f"{_called(name, mine)} joined with {count(here[name], 'worker')}" for name in joined]
    news += [f"{name} left" for name in left]
    there = ", ".join(f"{_called(name, mine)} {workers}" for name, workers in here.items())
    on = f"{count(now.num_workers, 'worker')} on {count(len(here), 'machine')}"
    return f"{', '.join(news)}{'; ' if news else ''}the run has {on} ({there})"


def _called(name: str, mine: str) -> str:
    return "this machine" if name == mine else name


def allot_workers(offers: dict[int, int], most: int) -> dict[int, int]:
    """Share out the places: one worker for each machine, then the rest in order of arrival."""
    parts = dict.fromkeys(list(offers)[:most], 1)
    left = most - len(parts)
    for member in parts:
        more = min(left, offers[member] - 1)
        parts[member] += more
        left -= more
    return parts
