"""Machines that meet, each in a thread of its own, and a network between them that can be cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.elastic.machine import WorkerRange
from samepath.engine.elastic.rendezvous import Rendezvous, RendezvousRound


def until(condition: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 120, "nothing happens"
        time.sleep(0.01)


class Table:
    """Members of one meeting."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(16)
        self.meetings: list[Rendezvous] = []
        self.told: list[str] = []

    def lead(self, worker_range: str, workers: int = 1, **settings: Any) -> Rendezvous:
        least, most = map(int, worker_range.split(":"))
        return self._open(WorkerRange(least=least, most=most), workers, settings)

    def join(self, workers: int = 1, **settings: Any) -> Rendezvous:
        leader = self.meetings[0]
        return self._open(leader.worker_range, workers, {"endpoint": leader.endpoint} | settings)

    def _open(
        self, worker_range: WorkerRange, workers: int, settings: dict[str, Any]
    ) -> Rendezvous:
        common: dict[str, Any] = {"wait_seconds": 20.0, "tell": self.told.append}
        self.meetings.append(Rendezvous(worker_range, workers, **common | settings))
        return self.meetings[-1]

    def sit(self, meeting: Rendezvous) -> Future[RendezvousRound]:
        """Take part in the next round."""
        return self.threads.submit(meeting.next_round)

    def sit_all(self, *meetings: Rendezvous) -> list[RendezvousRound]:
        return [seated.result(20) for seated in [self.sit(meeting) for meeting in meetings]]

    def close(self) -> None:
        for meeting in reversed(self.meetings):  # the leader has the store
            meeting.leave()
        self.threads.shutdown()


class Wire:
    """Between a store and those who reach it: what it carries stops when it is cut, and nobody is
    told, as with a network that drops everything or a leader that is frozen."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._entry = socket.create_server((LOOPBACK, 0))
        self.port = self._entry.getsockname()[1]
        self._ends = [self._entry]
        self.is_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near = self._entry.accept()[0]
                far = socket.create_connection((LOOPBACK, self._port))
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while words := here.recv(4096):
                if not self.is_cut.is_set():
                    there.sendall(words)

    def close(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
