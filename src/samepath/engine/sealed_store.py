"""A store that believes only those who have the run's secret.

In: c10d's TCPStore, a secret. Out: values by name. Guaranteed: it listens on one address and no
other; names cannot be guessed; a value whose seal (HMAC-SHA256 over its name and text) is not right
is refused, and values are JSON: nothing is unpickled. What is said is not hidden from whoever can
read the network.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Callable
from datetime import timedelta
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
    except OSError as error:
        listener.close()
        raise UserError(
            f"nothing can listen on {address} ({error.strerror}); give another --interface"
        ) from None
    listener.detach()  # it is the store's now
    return store, port


def reach_store(address: str, port: int, seconds: float = STORE_SECONDS) -> TCPStore:
    """The store of somebody else; SeatTaken if nobody answers there."""
    try:
        socket.create_connection((address, port), timeout=seconds).close()
        return TCPStore(
            address,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_SECONDS),
        )
    except (OSError, RuntimeError) as error:
        raise SeatTaken(f"nobody answers at {address}:{port} ({error})") from None


class SealedStore:
    """Values in a store, each with its seal."""

    def __init__(self, store: TCPStore, secret: str) -> None:
        self.prefix = hashlib.sha256(f"names {secret}".encode()).hexdigest()[:32]
        self._key = hashlib.sha256(f"seal {secret}".encode()).digest()
        self._opened = store  # a leader's ends with it
        self._store = PrefixStore(self.prefix, store)

    def part(self, name: str) -> PrefixStore:
        """A part of the store, for torch."""
        return PrefixStore(name, self._store)

    def add(self, name: str, more: int) -> int:
        return int(self._ask(self._store.add, name, more))

    def has(self, name: str) -> bool:
        return bool(self._ask(self._store.check, [name]))

    def set(self, name: str, value: Any) -> None:
        text = json.dumps(value).encode()
        self._ask(self._store.set, name, self._seal(name, text) + text)

    def get(self, name: str) -> Any:
        """A value, None while there is none."""
        if not self.has(name):
            return None
        sealed: bytes = self._ask(self._store.get, name)
        seal, text = sealed[:32], sealed[32:]
        if not hmac.compare_digest(seal, self._seal(name, text)):
            raise LeaderLost(f"somebody without the run's secret has written to its store ({name})")
        return json.loads(text)

    def _seal(self, name: str, text: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + text, "sha256")

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise LeaderLost(f"the run's leader does not answer ({reason})") from None
