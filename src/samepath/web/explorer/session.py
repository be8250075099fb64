"""An explorer that is open in a browser, from its start to Ctrl-C.

In: a curation folder. Out: an address, answered until it ends. Guaranteed: one session at a time on
a folder, so that edits of two are not mixed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from samepath.files import lock_folder
from samepath.web.explorer.app import explorer_app
from samepath.web.explorer.folder import check_folder
from samepath.web.explorer.state import Explorer
from samepath.web.guard import new_token
from samepath.web.serve import address_of, listen, serve


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """A folder, opened, and where it will answer."""

    explorer: Explorer
    address: str
    token: str
    listening: socket

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        serve(explorer_app(self.explorer, self.token), self.listening)


@contextmanager
def open_session(folder: Path, keep: Path | None = None, port: int = 0) -> Iterator[Session]:
    """Open a folder and a port; both are let go of in the end."""
    check_folder(folder)
    with ExitStack() as stack:
        listening = stack.enter_context(listen(port))
        lock = lock_folder(folder, f"{folder} is being explored")
        stack.callback(os.close, lock)
        explorer = Explorer(folder, keep)
        token = new_token()
        address = address_of(listening, token)
        yield Session(explorer=explorer, address=address, token=token, listening=listening)
