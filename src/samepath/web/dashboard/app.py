"""The server of `samepath ui`: what the page asks for, checked, and answered.

In: HTTP requests that the guard let through. Out: JSON, pictures, pages, and the page itself.
Guaranteed: nothing is changed but a run's note, whatever is asked; no path is made of what a
request says; a report that was found is not trusted: it is sent so that no script of its can run,
wherever it is opened, and shown in the page with only tags of a short list, without attributes, and
with only the pictures that are inside it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from samepath.errors import UserError
from samepath.web.dashboard.contents import (
    DOWNLOADS,
    PICTURES,
    FolderContents,
    NotFound,
    NotWritten,
)
from samepath.web.server import POLICY, LocalPage, guarded_app, listen

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

PAGE_POLICY = POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""Pictures of reports are inside them, as data."""
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
"""A report has its style inside it. A sandbox runs no script and belongs to no site, not even this
one."""


def ui_app(contents: FolderContents, token: str) -> ASGIApp:
    """The application, guarded."""
    from starlette.exceptions import HTTPException
    from starlette.responses import Response
    from starlette.routing import Route

    def answer(request: Request, content: Any) -> Response:
        """Answer with JSON, unless the page has it already."""
        body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(body, media_type="application/json", headers={"etag": tag})

    def overview(request: Request) -> Response:
        return answer(request, contents.overview())

    def runs(request: Request) -> Response:
        first, last = _step(request, "from", -np.inf), _step(request, "to", np.inf)
        return answer(request, contents.runs(request.path_params["ids"].split(","), first, last))

    def item(request: Request) -> Response:
        return answer(request, contents.item(request.path_params["id"]))

    def report(request: Request) -> Response:
        shown, content = contents.file(request.path_params["id"], request.path_params["file"])
        if shown.kind != "page":
            raise HTTPException(404, "there is no such report")
        return answer(request, take_apart(content.decode("utf-8", "replace")))

    def file(request: Request) -> Response:
        shown, content = contents.file(request.path_params["id"], request.path_params["file"])
        suffix = Path(shown.name).suffix.lower()
        headers = {"content-security-policy": REPORT_POLICY}
        kind = "text/html; charset=utf-8" if shown.kind == "page" else PICTURES.get(suffix)
        if kind is None:
            kind = DOWNLOADS[suffix]
            headers["content-disposition"] = "attachment"
        return Response(content, media_type=kind, headers=headers)

    async def note(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            text = body["note"]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise HTTPException(400, 'give {"note": "words"}') from None
        if not isinstance(text, str):
            raise HTTPException(400, 'give {"note": "words"}')
        contents.write_note(request.path_params["id"], text)
        return answer(request, {})

    routes = [
        Route("/api/overview", overview),
        Route("/api/runs/{ids}", runs),
        Route("/api/item/{id}", item),
        Route("/api/report/{id}/{file}", report),
        Route("/api/note/{id}", note, methods=["POST"]),
        Route("/api/file/{id}/{file}/{name}", file),
    ]
    return guarded_app("ui.html", routes, token, {NotFound: 404, NotWritten: 400}, PAGE_POLICY)


@contextmanager
def open_ui(folder: Path, port: int = 0) -> Iterator[LocalPage]:
    """Open a port for a folder, which may be empty yet; the port is closed in the end."""
    if not folder.exists():
        raise UserError(f"{folder}: there is no such folder; give one that holds runs, such as .")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give the folder it is in, such as {folder.parent}")
    with listen(port) as listening:
        yield LocalPage(listening, lambda token: ui_app(FolderContents(folder), token))


def _step(request: Request, name: str, otherwise: float) -> float:
    from starlette.exceptions import HTTPException

    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise HTTPException(400, f"{name}: give a step, such as 100")
    return float(text)


# ---- a report, in the page's own look

Node: TypeAlias = str | list[Any]

KEPT = {
    "h1", "h2", "h3", "h4", "p", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td",
    "details", "summary", "code", "pre", "strong", "em", "b", "i", "br", "dl", "dt", "dd", "sub",
    "sup", "small", "figure", "figcaption",
}  # fmt: skip
LEFT_OUT = {
    "script", "style", "title", "template", "noscript", "iframe", "object", "svg", "math",
    "textarea", "select", "button", "audio", "video", "canvas", "nav",
}  # fmt: skip
"""Tags that are left out with all that is in them."""
_PICTURE = re.compile(r"data:image/(png|jpeg|svg\+xml);base64,[A-Za-z0-9+/=\s]+")
_DEEPEST = 40


def take_apart(html: str) -> list[Node]:
    """What to show of a report, in order: text, [tag, children] or ["img", source, words]."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    return parser.top


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.top: list[Node] = []
        self._open: list[tuple[str, list[Node]]] = [("", self.top)]
        self._left_out: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self._left_out or tag in LEFT_OUT:
            self._left_out.append(tag)
        elif tag == "img":
            source = given.get("src") or ""
            if _PICTURE.fullmatch(source):
                self._add(["img", source, given.get("alt") or ""])
        elif tag == "br":
            self._add([tag, []])
        elif tag in KEPT and len(self._open) < _DEEPEST:
            small = tag == "p" and given.get("class") == "note"
            inner: list[Node] = []
            self._add(["note" if small else tag, inner])
            self._open.append((tag, inner))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("img", "br"):
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._left_out:
            if tag in self._left_out:
                while self._left_out.pop() != tag:
                    pass
        elif any(tag == opened for opened, _ in self._open[1:]):
            while self._open.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._left_out and data.strip():
            self._add(data)

    def _add(self, node: Node) -> None:
        self._open[-1][1].append(node)
