"""The server of `samepath turing`: what the page asks for, checked, and answered.

In: HTTP requests that the guard let through. Out: cubes by number, votes, and at the end the
result. Guaranteed: nothing but the test's file is written, and no path is made of what a request
says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from samepath.errors import UserError
from samepath.web.server import LocalPage, guarded_app, listen
from samepath.web.turing.votes import WORDS, ReadersTest, opened_test

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp


def turing_app(test: ReadersTest, token: str) -> ASGIApp:
    """The application, guarded."""
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    # All in the one thread of the server: one vote after the other.

    async def about(request: Request) -> Response:
        return JSONResponse(test.about())

    async def cube(request: Request) -> Response:
        text = request.path_params["number"]
        if not (text.isascii() and text.isdecimal() and len(text) < 8 and int(text) < len(test)):
            raise HTTPException(404, f"there are {len(test)} cubes, counted from 0")
        return Response(test.cube(int(text)), media_type="application/octet-stream")

    async def vote(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            number, said = body["number"], body["said"]
        except (ValueError, RecursionError, LookupError, TypeError):
            raise UserError("give number and said, as JSON") from None
        if type(number) is not int or not 0 <= number < len(test):
            raise UserError(f"number: give a whole number from 0 to {len(test) - 1}")
        if said not in WORDS:
            raise UserError(f"said: give {' or '.join(WORDS)}")
        return JSONResponse(test.vote(number, said))

    async def end(request: Request) -> Response:
        return JSONResponse(test.end())

    async def result(request: Request) -> Response:
        return JSONResponse(test.result())

    routes = [
        Route("/api/test", about),
        Route("/api/cube/{number}", cube),
        Route("/api/result", result),
        Route("/api/vote", vote, methods=["POST"]),
        Route("/api/end", end, methods=["POST"]),
    ]
    return guarded_app("turing.html", routes, token, {UserError: 400})


@contextmanager
def open_turing(
    real: Path, generated: Path, out: Path, *, count: int, seed: int, port: int = 0
) -> Iterator[tuple[ReadersTest, LocalPage]]:
    """Open a test and a port until the end."""
    with (
        listen(port) as listening,
        opened_test(real, generated, out, count=count, seed=seed) as test,
    ):
        yield test, LocalPage(listening, lambda token: turing_app(test, token))
