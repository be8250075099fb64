"""Runs a local application until somebody presses Ctrl-C.

In: an application and a port. Out: nothing, when it has ended. Guaranteed: it listens on 127.0.0.1
and nowhere else; a port that is taken ends in one line; it ends within about a second.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from samepath.errors import UserError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """A socket on this machine only; port 0: any that is free."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: give a port from 1 to 65535, or leave it out")
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen(128)  # a browser that is quicker than the server waits
    except OSError as error:
        found.close()
        raise UserError(
            f"--port {port}: cannot be used ({error.strerror}); give another, or leave it out"
        ) from None
    return found


def address_of(listening: socket.socket, token: str) -> str:
    """What to open in a browser on this machine."""
    return f"http://{HOST}:{listening.getsockname()[1]}/?token={token}"


def settings(app: ASGIApp) -> uvicorn.Config:
    import uvicorn

    return uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Answer until SIGINT or SIGTERM; then end, quietly."""
    import uvicorn

    with suppress(KeyboardInterrupt):  # uvicorn ends well, then passes the signal on
        uvicorn.Server(settings(app)).run(sockets=[listening])
