"""The explorer's server: what the page asks for, checked, and answered.

In: HTTP requests that the guard let through. Out: JSON, PNG, and the page itself. Guaranteed: bad
requests get one clear line and change nothing; nothing is served but the page's own files and what
is computed here.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samepath.curation.folder import CurationFolder
from samepath.errors import UserError
from samepath.files import lock_folder
from samepath.web.explorer.edits import Rows
from samepath.web.explorer.explorer import Explorer
from samepath.web.explorer.exports import EXPORTS
from samepath.web.server import LocalPage, guarded_app, listen

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

MAX_NOTE = 500
MAX_EPS = 1_000_000
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}


def explorer_app(explorer: Explorer, token: str) -> ASGIApp:
    """The application, guarded."""
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def about(request: Request) -> Response:
        return JSONResponse(explorer.about())

    async def points(request: Request) -> Response:
        return Response(explorer.points(), media_type="application/octet-stream")

    def image(request: Request) -> Response:
        if explorer.curation.pictures is None:
            raise HTTPException(404, "these examples have no images")
        png = explorer.curation.pictures.png(_row(request, explorer))
        return Response(png, media_type="image/png")

    def neighbours(request: Request) -> Response:
        return JSONResponse(explorer.neighbours(_row(request, explorer)))

    def download(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in EXPORTS:
            raise HTTPException(404, "there is no such export")
        headers = {"content-disposition": f'attachment; filename="samepath-map.{kind}"'}
        return Response(EXPORTS[kind](explorer), media_type=MEDIA_TYPES[kind], headers=headers)

    # What changes something runs in the one thread of the server: one edit after the other.

    async def mark(request: Request) -> Response:
        body = await _body(request)
        note = None if body.get("note") is None else _note(body)
        return JSONResponse(explorer.mark(_rows(body, explorer), _flag(body, "kept"), note))

    async def relabel(request: Request) -> Response:
        body = await _body(request)
        note = None if body.get("note") is None else _note(body)
        label = None if body.get("label") is None else _label(body, explorer)
        return JSONResponse(explorer.relabel(_rows(body, explorer), label, note))

    async def reviewed(request: Request) -> Response:
        body = await _body(request)
        again = body.get("rows") is None and _flag(body, "again")
        return JSONResponse(explorer.reviewed(None if again else _rows(body, explorer)))

    async def note(request: Request) -> Response:
        body = await _body(request)
        return JSONResponse(explorer.note(_rows(body, explorer), _note(body)))

    async def cluster(request: Request) -> Response:
        body = await _body(request)
        label, eps, min_samples = _setting(body, explorer)
        use = _flag(body, "use")
        edit = await run_in_threadpool(explorer.cluster, label, eps, min_samples)
        return JSONResponse(explorer.use(edit) if use else explorer.changes(edit.rows, edit.after))

    def posted(change: Callable[[], dict[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return JSONResponse(change())

        return answer

    routes = [
        Route("/api/about", about),
        Route("/api/points", points),
        Route("/api/image/{row}", image),
        Route("/api/neighbours/{row}", neighbours),
        Route("/api/export/{kind}", download),
    ]
    changes = {
        "mark": mark,
        "relabel": relabel,
        "reviewed": reviewed,
        "note": note,
        "cluster": cluster,
        "undo": posted(explorer.undo),
        "redo": posted(explorer.redo),
        "save": posted(explorer.save),
    }
    routes += [Route(f"/api/{name}", answer, methods=["POST"]) for name, answer in changes.items()]
    return guarded_app("index.html", routes, token, {UserError: 400})


@contextmanager
def open_explorer(
    folder: Path, keep: Path | None = None, port: int = 0
) -> Iterator[tuple[Explorer, LocalPage]]:
    """Open a folder and a port until the end. One process at a time explores a folder, so that
    edits of two are not mixed."""
    CurationFolder(folder).check()
    with ExitStack() as stack:
        listening = stack.enter_context(listen(port))
        stack.callback(os.close, lock_folder(folder, f"{folder} is being explored"))
        explorer = Explorer(folder, keep)
        yield explorer, LocalPage(listening, lambda token: explorer_app(explorer, token))


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise UserError("the request is not JSON") from None
    if not isinstance(body, dict):
        raise UserError("the request is not a JSON object")
    return body


def _row(request: Request, explorer: Explorer) -> int:
    from starlette.exceptions import HTTPException

    text, number = request.path_params["row"], len(explorer.curation)
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and int(text) < number):
        raise HTTPException(404, f"there are {number} examples, counted from 0")
    return int(text)


def _rows(body: dict[str, Any], explorer: Explorer) -> Rows:
    rows, number = body.get("rows"), len(explorer.curation)
    if not isinstance(rows, list) or not 0 < len(rows) <= number:
        raise UserError(f"rows: give a list of 1 to {number} examples")
    if not all(type(row) is int and 0 <= row < number for row in rows):
        raise UserError(f"rows: examples are whole numbers from 0 to {number - 1}")
    return np.unique(np.array(rows, dtype=np.int64))


def _flag(body: dict[str, Any], name: str) -> bool:
    if not isinstance(body.get(name), bool):
        raise UserError(f"{name}: give true or false")
    return bool(body[name])


def _note(body: dict[str, Any]) -> str:
    if not isinstance(body.get("note"), str):
        raise UserError("note: give text")
    note = " ".join(body["note"].split())
    if len(note) > MAX_NOTE or any(unicodedata.category(c) in ("Cc", "Cs") for c in note):
        raise UserError(f"note: give at most {MAX_NOTE} characters of plain text")
    return note


def _label(body: dict[str, Any], explorer: Explorer) -> int:
    label = body.get("label")
    if type(label) is not int or not 0 <= label < len(explorer.sliders):
        raise UserError(f"label: give a class from 0 to {len(explorer.sliders) - 1}")
    return label


def _setting(body: dict[str, Any], explorer: Explorer) -> tuple[int, float, int]:
    eps, min_samples = (body.get(name) for name in ("eps", "min_samples"))
    label = _label(body, explorer)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 < eps <= MAX_EPS:
        raise UserError(f"eps: give a number above 0, at most {MAX_EPS:,}")
    most = explorer.sliders[label].max_min_samples
    if type(min_samples) is not int or not 1 <= min_samples <= most:
        raise UserError(f"min_samples: give a whole number from 1 to {most}")
    return label, float(eps), min_samples
