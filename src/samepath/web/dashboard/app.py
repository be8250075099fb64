"""The server of `samepath ui`: what the page asks for, checked, and answered.

In: HTTP requests that the guard let through. Out: JSON, pictures, pages, and the page itself.
Guaranteed: nothing is changed, whatever is asked; no path is made of what a request says; a report
that was found is sent so that no script of its can run, wherever it is opened.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samepath.web.dashboard.board import Board, NotFound
from samepath.web.dashboard.report import take_apart
from samepath.web.dashboard.things import DOWNLOADS, PICTURES
from samepath.web.guard import HEADERS, Guard, static_folder

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

POLICY = HEADERS["content-security-policy"].replace("img-src 'self'", "img-src 'self' data:")
"""Pictures of reports are inside them, as data."""
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
"""A report has its style inside it. A sandbox runs no script and belongs to no site, not even this
one."""


def ui_app(board: Board, token: str) -> ASGIApp:
    """The application, guarded."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    files = static_folder()

    def page(request: Request) -> Response:
        headers = {"content-security-policy": POLICY}
        return Response(files["ui.html"].content, media_type=files["ui.html"].kind, headers=headers)

    def static(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such page")
        return Response(found.content, media_type=found.kind)

    def answer(request: Request, content: Any) -> Response:
        """JSON, unless the page has it already."""
        body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(body, media_type="application/json", headers={"etag": tag})

    def overview(request: Request) -> Response:
        return answer(request, board.overview())

    def runs(request: Request) -> Response:
        first, last = _step(request, "from", -np.inf), _step(request, "to", np.inf)
        return answer(request, board.runs(request.path_params["ids"].split(","), first, last))

    def thing(request: Request) -> Response:
        return answer(request, board.thing(request.path_params["id"]))

    def report(request: Request) -> Response:
        shown, content = board.file(request.path_params["id"], request.path_params["file"])
        if shown.kind != "page":
            raise HTTPException(404, "there is no such report")
        return answer(request, take_apart(content.decode("utf-8", "replace")))

    def file(request: Request) -> Response:
        shown, content = board.file(request.path_params["id"], request.path_params["file"])
        suffix = Path(shown.name).suffix.lower()
        headers = {"content-security-policy": REPORT_POLICY}
        kind = "text/html; charset=utf-8" if shown.kind == "page" else PICTURES.get(suffix)
        if kind is None:
            kind = DOWNLOADS[suffix]
            headers["content-disposition"] = "attachment"
        return Response(content, media_type=kind, headers=headers)

    async def not_found(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 404)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code)

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", static),
            Route("/api/overview", overview),
            Route("/api/runs/{ids}", runs),
            Route("/api/thing/{id}", thing),
            Route("/api/report/{id}/{file}", report),
            Route("/api/file/{id}/{file}/{name}", file),
        ],
        exception_handlers={NotFound: not_found, HTTPException: http_error},
    )
    return Guard(app, token)


def _step(request: Request, name: str, otherwise: float) -> float:
    from starlette.exceptions import HTTPException

    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise HTTPException(400, f"{name}: give a step, such as 100")
    return float(text)
