"""The store of a run whose workers come and go; it believes only holders of the run's secret.

In: torch's TCPStore, a secret. Out: values by name. Guaranteed: a value whose signature
(HMAC-SHA256 over its name and text) is wrong is refused; nothing is unpickled; every question has a
time limit. Values are not hidden and counts not signed: who reaches the port can disturb a run.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, Queue, SimpleQueue
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from samepath.engine.comm.network import STORE_SECONDS
from samepath.errors import SamepathError


class LeaderLost(SamepathError):
    """The leader's store does not answer, or what answers there belongs to another run."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a run's leader listens, and the secret that its store asks for."""

    address: str
    port: int
    secret: str
    machine: str
    """Name of the leader's machine: a loopback address means nothing on another one."""


def reach_store(address: str, port: int) -> TCPStore:
    """Connect to a leader's store; LeaderLost if no process answers there."""
    made: Queue[TCPStore | Exception] = Queue(1)

    def reach() -> None:
        limit = timedelta(seconds=STORE_SECONDS)
        try:
            socket.create_connection((address, port), timeout=STORE_SECONDS).close()
            made.put(
                TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
            )
        except (OSError, RuntimeError) as error:
            made.put(error)

    threading.Thread(target=reach, daemon=True).start()
    try:
        store = made.get(timeout=2 * STORE_SECONDS)
    except Empty:  # what listens there takes connections and does not answer
        store = TimeoutError("it takes connections and says nothing")
    if isinstance(store, Exception):
        reason = str(store).partition("\n")[0]
        raise LeaderLost(f"no answer at {address}:{port} ({reason})")
    return store


def answers(endpoint: Endpoint) -> bool:
    """Whether the leader of that run, and no other process, listens at its endpoint."""
    try:
        store = reach_store(endpoint.address, endpoint.port)
        return SignedStore(store, endpoint.secret).get("open") is True
    except LeaderLost:
        return False


class SignedStore:
    """Values in a TCPStore, each with its signature."""

    def __init__(self, store: TCPStore, secret: str) -> None:
        self.prefix = hashlib.sha256(f"names {secret}".encode()).hexdigest()[:32]
        self._key = hashlib.sha256(f"seal {secret}".encode()).digest()
        self._store = PrefixStore(self.prefix, store)
        self._silent = ""
        self._questions: SimpleQueue[Any] = SimpleQueue()
        thread = threading.Thread(target=_answer, args=(self._questions,), daemon=True)
        thread.start()
        weakref.finalize(self, self._questions.put, None)

    def add(self, name: str, more: int) -> int:
        return int(self._ask(self._store.add, name, more))

    def set(self, name: str, value: Any) -> None:
        """Set a value; once this returns, every process that asks finds it."""
        text = json.dumps(value).encode()
        self._ask(self._store.set, name, self._sign(name, text) + text)
        self._ask(self._store.check, [name])  # a set is only sent; an answer comes after it

    def get(self, name: str) -> Any:
        """Read a value, None while there is none."""
        if not self._ask(self._store.check, [name]):
            return None
        signed: bytes = self._ask(self._store.get, name)
        signature, text = signed[:32], signed[32:]
        if not hmac.compare_digest(signature, self._sign(name, text)):
            raise LeaderLost(f"a process without the run's secret wrote to its store ({name})")
        return json.loads(text)

    def _sign(self, name: str, text: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + text, "sha256")

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        if self._silent:
            raise LeaderLost(self._silent)
        answer: Queue[tuple[bool, Any]] = Queue(1)
        self._questions.put((question, arguments, answer))
        try:
            told, value = answer.get(timeout=STORE_SECONDS)
        except Empty:  # a network that is cut says nothing, and TCPStore would wait for ever
            self._silent = f"the run's leader does not answer (no answer for {STORE_SECONDS:.0f} s)"
            raise LeaderLost(self._silent) from None
        if not told:
            reason = str(value).partition("\n")[0]
            raise LeaderLost(f"the run's leader does not answer ({reason})")
        return value


def _answer(questions: SimpleQueue[Any]) -> None:
    """Ask the store, in a thread that may be left waiting. It keeps no reference between questions:
    a store ends when the last one goes."""
    while (asked := questions.get()) is not None:
        question, arguments, answer = asked
        try:
            answer.put((True, question(*arguments)))
        except RuntimeError as error:
            answer.put((False, error))
        del asked, question, answer
