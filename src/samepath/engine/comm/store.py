"""A store through which processes find each other, opened by the process that starts them.

In: an address of this machine. Out: torch's TCPStore, and its port. Guaranteed: it listens on that
address and no other (torch's own would listen on all), and on a port that was free.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from samepath.errors import UserError

STORE_SECONDS = 15.0
"""How long an answer of the store is waited for."""


def open_store(address: str) -> tuple[TCPStore, int]:
    """Open a store on a free port of one address."""
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
