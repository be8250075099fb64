"""A run whose workers come and go, on one machine or on several that see its folder.

In: a run's folder, what its workers do, how many it takes, how many this machine has. Out: the run
has ended, or this machine has left it. Guaranteed: at most one machine leads, whoever holds the
folder's lock; when the leader is gone another takes its place, so that the run goes on as long as
one machine is left.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from samepath.console import Patience, WaitedTooLong
from samepath.engine.comm.collective import machine_name
from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.elastic.rendezvous import (
    FINISHED,
    Crew,
    Meeting,
    MeetingClosed,
    Seat,
    answers,
)
from samepath.engine.elastic.signed_store import LeaderLost
from samepath.engine.launch import leftovers
from samepath.engine.launch.agent import Elastic
from samepath.engine.launch.launch import interruptible, run_agent
from samepath.engine.launch.owners import owned_folder
from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.errors import UserError, WorkerFailed
from samepath.files import is_locked, write_atomically

MEETING = "meeting.json"
SETTLE_SECONDS = 1.0
REACH_SECONDS = 60.0
"""How long somebody who comes tries to reach a leader that lives (it holds the lock) and does not
answer. One that has been in the run waits longer: its network may heal."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What one machine brings to a run."""

    workers: int
    """At most so many."""
    address: str = LOOPBACK
    """Where it listens if it leads."""
    interface: str | None = None
    """What workers talk through, if it was named."""
    expected: int = 1
    """Machines that are known to come, this one included."""
    wait_seconds: float = 86400.0
    """How long enough workers, or a leader, are waited for."""


def take_part(
    folder: RunFolder,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    crew: Crew,
    machine: Machine,
    elastic: Elastic,
) -> None:
    """Be one of a run's machines until the run has ended."""
    leftovers.clear_before(folder.run_id())
    reach_seconds = REACH_SECONDS
    while True:
        with interruptible():
            meeting = _meet(folder, crew, machine, elastic.tell, reach_seconds)
        reach_seconds = machine.wait_seconds
        machine = replace(machine, expected=1, address=_own_address(machine, meeting.seat))
        try:
            with owned_folder() as reports:
                run_agent(meeting, function, arguments, Path(reports), elastic)
            return
        except MeetingClosed as error:
            if str(error) == FINISHED:
                return
            raise WorkerFailed(f"another machine ended the run: {error}") from None
        except WaitedTooLong as error:
            raise WorkerFailed(f"{error}; the run can be resumed") from None
        except LeaderLost as error:
            if folder.read()["status"] in ENDED:
                return
            if meeting.leads:  # this process was frozen: workers begin again, with who comes back
                elastic.tell(f"{error}; opening the run again")
            else:
                elastic.tell("the machine that led the run is gone; looking for another")
        finally:
            if meeting.leads:
                with suppress(OSError):  # a full or read-only disk; the next leader replaces it
                    (folder.path / MEETING).unlink(missing_ok=True)


def _meet(
    folder: RunFolder,
    crew: Crew,
    machine: Machine,
    tell: Callable[[str], None],
    reach_seconds: float = REACH_SECONDS,
) -> Meeting:
    """Lead the run if nobody does, else join whoever does."""
    patience = Patience(machine.wait_seconds, tell)
    tried, began = None, 0.0
    file = folder.path / MEETING
    settings: dict[str, Any] = {
        "interface": machine.interface,
        "wait_seconds": machine.wait_seconds,
        "tell": tell,
    }
    while True:
        seat = None if folder.holds_lock else _read_seat(file)
        elsewhere = seat is not None and seat.address == LOOPBACK and seat.machine != machine_name()
        why = ""
        if seat != tried:
            tried, began = seat, time.monotonic()
        if seat is not None and not elsewhere:
            try:
                return Meeting(crew, machine.workers, seat=seat, **settings)
            except LeaderLost as error:  # that one is gone, and the lock says when
                why = str(error)
        if folder.try_lock():  # not before that: some file systems have no locks
            meeting = Meeting(
                crew,
                machine.workers,
                address=machine.address,
                machine=machine_name(),
                expected=machine.expected,
                **settings,
            )
            meeting.announce(_Announcement(file, meeting.seat, tell))
            if machine.address == LOOPBACK or not _is_anothers(file, meeting.seat):
                return meeting
            meeting.leave()
            folder.unlock()
            tell("another machine leads the run too, where locks are not seen; joining it")
            continue
        if elsewhere:
            raise UserError(
                f"the run in {folder.path} listens on its own machine only; "
                "start it with --interface NAME to take in other machines"
            )
        if why and time.monotonic() - began > reach_seconds:
            raise _unreachable(folder, why, reach_seconds, machine)
        patience.pause(f"the leader of the run in {folder.path}{why and f': {why}'}")


def _unreachable(folder: RunFolder, why: str, seconds: float, machine: Machine) -> WorkerFailed:
    through = f"goes through {machine.interface}" if machine.interface else "has no --interface"
    return WorkerFailed(
        f"the leader of the run in {folder.path} could not be reached for {seconds:.0f} s: {why}; "
        "look for a firewall between the machines, and whether the leader's --interface is of a "
        f"network that this machine is in (this one {through})"
    )


def _is_anothers(file: Path, mine: Seat) -> bool:
    """Where a file system tells machines nothing of each other's locks, several may come to lead at
    once: the last who says so does."""
    time.sleep(SETTLE_SECONDS)
    seat = _read_seat(file)
    return seat not in (None, mine)


def _own_address(machine: Machine, seat: Seat) -> str:
    """Where it would listen if it came to lead: where those who are in the run can reach it."""
    if machine.interface is None and machine.address == LOOPBACK != seat.address:
        return address_towards(seat.address)
    return machine.address


def is_led(folder: RunFolder) -> bool:
    """Somebody else leads the run that is here: the lock says so or, where the file system has
    none, whoever answers."""
    if not folder.holds_run or folder.read()["status"] != "running":
        return False
    return is_locked(folder.path) or somebody_answers(folder)


def somebody_answers(folder: RunFolder) -> bool:
    """Where the run in a folder was said to meet."""
    seat = _read_seat(folder.path / MEETING)
    return seat is not None and answers(seat)


def _read_seat(file: Path) -> Seat | None:
    try:
        return Seat(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # none yet, or the one before is just being replaced


class _Announcement:
    """Says where a run meets: now, or when a full disk has room again."""

    def __init__(self, file: Path, seat: Seat, tell: Callable[[str], None]) -> None:
        self._file, self._seat, self._tell = file, seat, tell
        self._told = False

    def __call__(self) -> bool:
        try:
            text = json.dumps(asdict(self._seat))
            write_atomically(self._file, text, sync=False, private=True)
        except OSError as error:
            if not self._told:
                self._tell(f"{self._file} cannot be written ({error.strerror}): nobody can join")
            self._told = True
            return False
        return True


def address_towards(other: str) -> str:
    """This machine's address on the way to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # nothing is sent
        except OSError as error:
            raise UserError(
                f"there is no way to {other} ({error.strerror}); name one with --interface"
            ) from None
        return str(probe.getsockname()[0])


def address_of(interface: str) -> str:
    """The IPv4 address of a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
        except OSError:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise UserError(
                f"--interface {interface}: there is none of that name with an IPv4 address; "
                f"there are {names}"
            ) from None
    return socket.inet_ntoa(answer[20:24])
