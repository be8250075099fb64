"""A machine of a run whose workers come and go: what it brings, and where the run's leader listens.

The leader writes its endpoint to the run's folder (`meeting.json`), where machines that join read
it. Guaranteed: only this user can read that file, which holds the run's secret.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass

from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.elastic.signed_store import Endpoint, answers
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.files import is_locked, write_atomically

ENDPOINT_FILE = "meeting.json"


@dataclass(frozen=True, kw_only=True)
class WorkerRange:
    """How many workers a run takes, at least and at most."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True, kw_only=True)
class MachineOffer:
    """What one machine brings to a run."""

    workers: int
    """Maximum number of workers on this machine."""
    address: str = LOOPBACK
    """Where its launcher listens if it leads."""
    interface: str | None = None
    """The network interface its workers use, if one was named."""
    expected: int = 1
    """Machines that are known to come, this one included."""
    wait_seconds: float = 86400.0
    """How long enough workers, or a leader, are waited for."""

    def reached_from(self, endpoint: Endpoint) -> str:
        """The address at which the machines of a run can reach this one, should it come to lead."""
        if self.interface is None and self.address == LOOPBACK != endpoint.address:
            return address_towards(endpoint.address)
        return self.address


def read_endpoint(folder: RunFolder) -> Endpoint | None:
    """Read where a run's leader listens; None while no leader has written it."""
    try:
        return Endpoint(**json.loads((folder.path / ENDPOINT_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None  # none yet, or the one before is just being replaced


def leader_answers(folder: RunFolder) -> bool:
    """Whether a leader listens where the folder says."""
    endpoint = read_endpoint(folder)
    return endpoint is not None and answers(endpoint)


def is_led(folder: RunFolder) -> bool:
    """Whether another process leads the run in a folder: the lock says so or, where the file system
    has no locks, its leader answers."""
    if not folder.holds_run or folder.read()["status"] != "running":
        return False
    return is_locked(folder.path) or leader_answers(folder)


def endpoint_writer(
    folder: RunFolder, endpoint: Endpoint, tell: Callable[[str], None]
) -> Callable[[], bool]:
    """Make what writes a leader's endpoint to the run's folder, now or, called again, when a full
    disk has room; it returns whether it could."""
    file, told = folder.path / ENDPOINT_FILE, False

    def write() -> bool:
        nonlocal told
        try:
            write_atomically(file, json.dumps(asdict(endpoint)), sync=False, private=True)
        except OSError as error:
            if not told:
                tell(
                    f"{file} cannot be written ({error.strerror}): other machines cannot join "
                    "until it can"
                )
            told = True
            return False
        return True

    return write


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


def interface_address(interface: str) -> str:
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
