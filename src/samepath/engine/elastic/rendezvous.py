"""Where the machines of a run meet: a rendezvous for torch's elastic agent.

In: how many workers this machine has to offer, how many the run takes. Out: rounds. A round says
who takes part with how many workers; whoever fails, leaves or comes calls for the next one.
Guaranteed: everybody has the same round; nobody without the run's secret can say anything that is
believed, and nothing that was said is unpickled; no wall clock decides; every wait has a limit.

One agent leads: it has the store (c10d's TCPStore, on the one address that was chosen), sees who is
there by heartbeats it counts on its own clock, and announces the rounds.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from samepath.console import Patience
from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.elastic.signed_store import (
    LeaderLost,
    SealedStore,
    SeatTaken,
    open_store,
    reach_store,
)

FINISHED = "finished"
"""Why a meeting is over when all went well."""
BEAT_SECONDS = 0.5
SILENT_SECONDS = 5.0
"""A machine that is not heard of for so long is not there."""
FIRST_SECONDS = 30.0
"""How long those who are known to come are waited for in the first round."""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """How many workers a run takes."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a run meets, and the secret that is needed there."""

    address: str
    port: int
    secret: str
    machine: str
    """Whose loopback it is, if it is one."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """Who takes part, from here seen."""

    number: int
    rank: int
    """This machine's number among those that take part."""
    num_machines: int
    first: int
    """The number of this machine's first worker."""
    here: int
    """Workers of this machine."""
    num_workers: int
    """Of all."""


class MeetingClosed(RendezvousClosedError):
    """The run has ended; the message says why."""


class Meeting(RendezvousHandler):
    """One machine's part in the meeting of a run."""

    def __init__(
        self,
        crew: Crew,
        workers_here: int,
        *,
        seat: Seat | None = None,
        address: str = LOOPBACK,
        machine: str = "",
        interface: str | None = None,
        expected: int = 1,
        wait_seconds: float = 86400.0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Lead a meeting on an address, or (with a seat) join one."""
        self.crew = crew
        self.workers_here = workers_here
        self.leads = seat is None
        self.interface = interface
        self._expected = expected
        self._wait = wait_seconds
        self._tell = tell
        if seat is None:
            opened, port = open_store(address)
            seat = Seat(address=address, port=port, secret=secrets.token_hex(16), machine=machine)
        else:
            opened = reach_store(seat.address, seat.port)
        self.seat = seat
        self._store = SealedStore(opened, seat.secret)
        if self.leads:
            self._store.set("open", True)
        elif self._store.get("open") is None:
            raise SeatTaken(f"the meeting at {seat.address}:{seat.port} is of another run")
        self.round: Round | None = None
        self._seen: dict[int, tuple[int, float]] = {}
        self._member = self._store.add("members", 1) - 1
        self._lost = ""
        """Why the leader does not answer."""
        self._ended = threading.Event()
        self._announcement: Callable[[], bool] = lambda: True
        self._beating = threading.Thread(target=self._beat, name="samepath-beat", daemon=True)
        self._beating.start()

    def announce(self, say_where: Callable[[], bool]) -> None:
        """Say where the run meets; if that is impossible now, again until it is not."""
        if not say_where():
            self._announcement = say_where

    # ---- what torch's agent asks

    def get_backend(self) -> str:
        return "samepath"

    def get_run_id(self) -> str:
        return self._store.prefix

    @property
    def workers_names(self) -> str:
        """What this round's workers' names in the store begin with."""
        assert self.round is not None
        return f"{self._store.prefix}/workers/{self.round.number}"

    @property
    def use_agent_store(self) -> bool:
        """Workers meet in the same store: nobody else has to listen."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Take part in the next round; waits until there is one."""
        called = self._store.add("rounds", 0) + 1
        if self.round is not None:  # which the leader may have announced and not counted yet
            called = max(called, self.round.number + 1)
        if self.leads or self.round is not None:  # a newcomer asks; the leader knows if it is full
            self._store.set(f"call/{called}", True)
        patience = Patience(self._wait, self._tell)
        while True:
            self._store.set(f"ready/{called}/{self._member}", self.workers_here)
            parts = (self._open_round if self.leads else self._await)(called, patience)
            round_ = self._place_in(called, parts)
            if round_ is not None:
                break
            called += 1  # it was announced just before we came, or is full
            while self._store.get(f"call/{called}") is None:
                self._pause(patience, f"a place in the run, which takes {self.crew.most} workers")
        self.round = round_
        return RendezvousInfo(
            self._store.part(f"agents/{round_.number}"),
            round_.rank,
            round_.num_machines,
            RendezvousStoreInfo(self.seat.address, self.seat.port),
        )

    def num_nodes_waiting(self) -> int:
        """More than 0 when the next round has been called."""
        assert self.round is not None
        self._refuse_if_over()
        called = f"call/{self.round.number + 1}"
        if self.leads and self._changed():
            self._store.set(called, True)
        return int(self._store.get(called) is not None)

    def is_closed(self) -> bool:
        return self._store.get("closed") is not None

    def set_closed(self) -> None:
        self.close("the run was ended")

    def shutdown(self) -> bool:
        self.leave()
        return True

    def goes_on_without_us(self) -> bool:
        """The workers of the others are enough."""
        round_ = self.round
        return round_ is None or round_.num_workers - round_.here >= self.crew.least

    # ---- leaving

    def close(self, why: str) -> None:
        """End the meeting for everybody."""
        self._store.set("closed", why)

    def leave(self) -> None:
        """Be gone; those who stay find out."""
        self._ended.set()
        self._beating.join()
        if not self._lost:
            with suppress(LeaderLost):  # then it knows
                self._store.set(f"left/{self._member}", True)

    # ---- the leader's part

    def _members(self) -> list[int]:
        """Those who are there: neither left nor silent."""
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
        """Somebody of this round is gone, or somebody came for whom there is a place."""
        there = set(self._members())
        mine = set(self._parts)
        has_place = sum(self._parts.values()) < self.crew.most
        return bool(mine - there) or (has_place and bool(there - mine - self._spare))

    def _open_round(self, called: int, patience: Patience) -> dict[int, int]:
        """Wait for everybody who is there, then announce the round."""
        began = time.monotonic()
        while True:
            there = self._members()
            offers = {m: self._store.get(f"ready/{called}/{m}") for m in there}
            ready = {m: int(n) for m, n in offers.items() if n is not None}
            first = called == 1 and len(ready) < self._expected
            if len(ready) == len(there) and not (
                first and time.monotonic() - began < FIRST_SECONDS
            ):
                parts = share_out(ready, self.crew.most)
                if sum(parts.values()) >= self.crew.least:
                    break
                there_are = f"{sum(ready.values())} there on {len(ready)} machine(s)"
                missing = f"at least {self.crew.least} workers ({there_are})"
            else:
                missing = f"{len(there) - len(ready) or 'more'} machine(s) to get ready"
            self._pause(patience, missing)
        self._parts = parts
        self._spare = set(ready) - set(parts)
        self._store.set(f"round/{called}", [list(part) for part in parts.items()])
        self._store.add("rounds", 1)
        return parts

    # ---- everybody's part

    def _await(self, called: int, patience: Patience) -> dict[int, int]:
        while True:
            announced = self._store.get(f"round/{called}")
            if announced is not None:
                return {int(member): int(workers) for member, workers in announced}
            newcomer = f"a place in the run, which takes {self.crew.most} workers"
            self._pause(patience, "the next round" if self.round is not None else newcomer)

    def _place_in(self, called: int, parts: dict[int, int]) -> Round | None:
        members = list(parts)
        if self._member not in members:
            return None
        rank = members.index(self._member)
        return Round(
            number=called,
            rank=rank,
            num_machines=len(members),
            first=sum(parts[member] for member in members[:rank]),
            here=parts[self._member],
            num_workers=sum(parts.values()),
        )

    def _pause(self, patience: Patience, missing: str) -> None:
        self._refuse_if_over()
        patience.pause(missing)

    def _refuse_if_over(self) -> None:
        if self._lost:
            raise LeaderLost(self._lost)
        why = self._store.get("closed")
        if why is not None:
            raise MeetingClosed(str(why))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._store.add(f"beat/{self._member}", 1)
            except LeaderLost as error:
                self._lost = str(error)
                return
            if self._announcement():
                self._announcement = lambda: True


def answers(seat: Seat) -> bool:
    """A meeting is held there, and it is that one."""
    try:
        return SealedStore(reach_store(seat.address, seat.port), seat.secret).get("open") is True
    except LeaderLost:
        return False


def share_out(offers: dict[int, int], most: int) -> dict[int, int]:
    """How many workers each takes part with: one each, then the rest in order."""
    parts = dict.fromkeys(list(offers)[:most], 1)
    left = most - len(parts)
    for member in parts:
        more = min(left, offers[member] - 1)
        parts[member] += more
        left -= more
    return parts
