"""The page of a folder, open in a browser, from its start to Ctrl-C.

In: a folder. Out: an address, answered until it ends. Guaranteed: the folder is only looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from samepath.errors import UserError
from samepath.web.dashboard.app import ui_app
from samepath.web.dashboard.board import Board
from samepath.web.guard import new_token
from samepath.web.serve import address_of, listen, serve


@dataclass(frozen=True, kw_only=True, eq=False)
class UiSession:
    """A folder, and where it will answer."""

    board: Board
    address: str
    token: str
    listening: socket

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        serve(ui_app(self.board, self.token), self.listening)


@contextmanager
def open_ui(folder: Path, port: int = 0) -> Iterator[UiSession]:
    """Open a port for a folder, which may be empty yet; it is let go of in the end."""
    if not folder.exists():
        raise UserError(f"{folder}: there is no such folder; give one that holds runs, such as .")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give the folder it is in, such as {folder.parent}")
    with listen(port) as listening:
        token = new_token()
        yield UiSession(
            board=Board(folder),
            address=address_of(listening, token),
            token=token,
            listening=listening,
        )
