"""A run whose workers come and go, on one machine or on several that see its folder.

In: a run's folder, what its workers do, how many it takes, how many this machine has. Out: the run
has ended, or this machine has left it. Guaranteed: at most one machine leads, whoever holds the
folder's lock; when the leader is gone another takes its place, so that the run goes on as long as
one machine is left.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samepath.engine import last_step
from samepath.engine.agent import Elastic
from samepath.engine.collective import machine_name
from samepath.engine.environment import LOOPBACK
from samepath.engine.launch import run_agent
from samepath.engine.rendezvous import (
    FINISHED,
    Crew,
    Meeting,
    MeetingClosed,
    Patience,
    Seat,
    WaitedTooLong,
)
from samepath.engine.rundir import RunFolder
from samepath.engine.sealed_store import LeaderLost, SeatTaken
from samepath.errors import UserError, WorkerFailed

MEETING = "meeting.json"
ENDED = ("finished", "target", "diverged", "stuck")


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
    last_step.forget_strangers(_is_wanted)
    while True:
        meeting = _meet(folder, crew, machine, elastic.tell)
        try:
            with tempfile.TemporaryDirectory(prefix="samepath-") as reports:
                run_agent(meeting, function, arguments, Path(reports), elastic)
            return
        except MeetingClosed as error:
            if str(error) == FINISHED:
                return
            raise WorkerFailed(f"another machine ended the run: {error}") from None
        except WaitedTooLong as error:
            raise WorkerFailed(f"{error}; the run can be resumed") from None
        except LeaderLost as error:
            if meeting.leads:
                raise WorkerFailed(f"the run's meeting is lost: {error}") from None
            if folder.read()["status"] in ENDED:
                return
            elastic.tell("the machine that led the run is gone; looking for another")
        finally:
            if meeting.leads:
                (folder.path / MEETING).unlink(missing_ok=True)


def _meet(folder: RunFolder, crew: Crew, machine: Machine, tell: Callable[[str], None]) -> Meeting:
    """Lead the run if nobody does, else join whoever does."""
    patience = Patience(machine.wait_seconds, tell)
    file = folder.path / MEETING
    settings: dict[str, Any] = {
        "interface": machine.interface,
        "wait_seconds": machine.wait_seconds,
        "tell": tell,
    }
    while True:
        if folder.try_lock():
            meeting = Meeting(
                crew,
                machine.workers,
                address=machine.address,
                machine=machine_name(),
                expected=machine.expected,
                **settings,
            )
            _write_secretly(file, json.dumps(asdict(meeting.seat)))
            return meeting
        seat = _read_seat(file)
        if seat is not None:
            if seat.address == LOOPBACK and seat.machine != machine_name():
                raise UserError(
                    f"the run in {folder.path} listens on its own machine only; "
                    "start it with --interface NAME to take in other machines"
                )
            with suppress(SeatTaken):  # left by a leader that is gone; the lock says when
                return Meeting(crew, machine.workers, seat=seat, **settings)
        patience.pause(f"the leader of the run in {folder.path}")


def _read_seat(file: Path) -> Seat | None:
    try:
        return Seat(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # none yet, or the one before is just being replaced


def _write_secretly(file: Path, text: str) -> None:
    """Replace a file that only this user may read."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        aside.unlink()
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as opened:
        opened.write(text)
    aside.replace(file)


def _is_wanted(run_id: str, folder: Path) -> bool:
    """A run that can still be resumed."""
    try:
        return RunFolder(folder).run_id() == run_id
    except UserError:
        return False


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
