"""A store that believes only those who have the run's secret.

In: c10d's TCPStore, a secret. Out: values by name. Guaranteed: it listens on one address and no
other; a value whose seal (HMAC-SHA256 over its name and text) is not right is refused, and values
are JSON: nothing is unpickled. What is said is not hidden, and counts (`add`) have no seal: whoever
reaches the port can disturb a run.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from queue import Empty, Queue, SimpleQueue
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from samepath.errors import UserError

STORE_SECONDS = 15.0
"""How long an answer of the store is waited for."""


class LeaderLost(RendezvousConnectionError):
    """The leader's store does not answer."""


class SeatTaken(LeaderLost):
    """Nobody answers where the run was said to meet, or it is another run."""


def open_store(address: str) -> tuple[TCPStore, int]:
    """A store that listens on one address and no other."""
    listener = socket.socket()
    try:
        listener.bind((address, 0))
        listener.listen(1024)
        port = int(listener.getsockname()[1])
        store = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_SECONDS),
            master_listen_fd=listener.fileno(),
        )
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError):
            listener.close()
        else:
            listener.detach()  # whose it is by now only the store knows
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError(
            f"nothing can listen on {address} ({why}); give another --interface"
        ) from None
    listener.detach()  # it is the store's now
    return store, port


def reach_store(address: str, port: int) -> TCPStore:
    """The store of somebody else; SeatTaken if nobody answers there."""
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
    except Empty:  # what is there takes connections, and says nothing
        store = TimeoutError("it says nothing")
    if isinstance(store, Exception):
        reason = str(store).partition("\n")[0]
        raise SeatTaken(f"nobody answers at {address}:{port} ({reason})")
    return store


class SealedStore:
    """Values in a store, each with its seal."""

    def __init__(self, store: TCPStore, secret: str) -> None:
        self.prefix = hashlib.sha256(f"names {secret}".encode()).hexdigest()[:32]
        self._key = hashlib.sha256(f"seal {secret}".encode()).digest()
        self._opened = store  # a leader's ends with it
        self._store = PrefixStore(self.prefix, store)
        self._silent = ""
        self._questions: SimpleQueue[Any] = SimpleQueue()
        thread = threading.Thread(target=_answer, args=(self._questions,), daemon=True)
        thread.start()
        weakref.finalize(self, self._questions.put, None)

    def part(self, name: str) -> PrefixStore:
        """A part of the store, for torch: through a connection of its own, on which it may wait
        while others ask."""
        clone = self._opened.clone  # type: ignore[attr-defined]
        return PrefixStore(name, PrefixStore(self.prefix, self._ask(clone)))

    def add(self, name: str, more: int) -> int:
        return int(self._ask(self._store.add, name, more))

    def set(self, name: str, value: Any) -> None:
        """Once this returns, everybody who asks finds the value."""
        text = json.dumps(value).encode()
        self._ask(self._store.set, name, self._seal(name, text) + text)
        self._ask(self._store.check, [name])  # a set is only sent; an answer comes after it

    def get(self, name: str) -> Any:
        """A value, None while there is none."""
        if not self._ask(self._store.check, [name]):
            return None
        sealed: bytes = self._ask(self._store.get, name)
        seal, text = sealed[:32], sealed[32:]
        if not hmac.compare_digest(seal, self._seal(name, text)):
            raise LeaderLost(f"somebody without the run's secret has written to its store ({name})")
        return json.loads(text)

    def _seal(self, name: str, text: bytes) -> bytes:
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
    """In a thread of its own, which may be left waiting. It holds on to nothing: a store ends with
    the last who does."""
    while (asked := questions.get()) is not None:
        question, arguments, answer = asked
        try:
            answer.put((True, question(*arguments)))
        except RuntimeError as error:
            answer.put((False, error))
        del asked, question, answer
