"""Serves an application on this machine until Ctrl-C.

In: routes and a port. Out: a guarded application, and the address where it answers. Guaranteed: it
listens on 127.0.0.1 and nowhere else; a port that is taken ends in one line; an error of a known
kind is answered with one line of JSON; Ctrl-C ends it within about a second.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samepath.errors import UserError
from samepath.web.guard import Guard, new_token, static_folder

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalPage:
    """An application, and where it will answer."""

    app: ASGIApp
    address: str
    """What to open in a browser on this machine: it carries the token."""
    listening: socket.socket

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM; then end, quietly."""
        import uvicorn

        with suppress(KeyboardInterrupt):  # uvicorn ends well, then passes the signal on
            uvicorn.Server(settings(self.app)).run(sockets=[self.listening])


def local_page(listening: socket.socket, make_app: Callable[[str], ASGIApp]) -> LocalPage:
    """Make an application with a new token, to answer on a socket."""
    token = new_token()
    address = f"http://{HOST}:{listening.getsockname()[1]}/?token={token}"
    return LocalPage(app=make_app(token), address=address, listening=listening)


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


def guarded_app(
    routes: Sequence[BaseRoute], token: str, errors: Mapping[type[Exception], int]
) -> ASGIApp:
    """Routes behind the guard, with the pages' own files under /static. An exception of one of the
    kinds in `errors` is answered with its status and {"error": its text}."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    files = static_folder()

    def static(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such page")
        return Response(found.content, media_type=found.kind)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code)

    async def known_error(request: Request, error: Exception) -> Response:
        status = next(status for kind, status in errors.items() if isinstance(error, kind))
        return JSONResponse({"error": str(error)}, status)

    app = Starlette(
        routes=[Route("/static/{name}", static), *routes],
        exception_handlers={HTTPException: http_error, **dict.fromkeys(errors, known_error)},
    )
    return Guard(app, token)


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
