"""Local pages: who may ask, what they get, and serving it on this machine until Ctrl-C.

In: routes and a port. Out: a guarded application, and the address where it answers. Guaranteed: it
listens on 127.0.0.1 and nowhere else; no request without the token reaches it (a query once, then a
cookie that scripts cannot read), and none that another site, or another name for this machine, led
here; a body larger than the limit is never held; every answer says what a browser may do with it;
an error of a known kind is answered with one line of JSON; a port that is taken ends in one line;
Ctrl-C ends it within about a second. Files are read once, when the server starts: no path is ever
made of what a request says.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from samepath.errors import UserError

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
LOOPBACK = (HOST, "localhost", "[::1]")
CHANGES_HEADER = "x-samepath"
"""Header of every request that changes something: a browser lets no other site send it."""
MAX_BODY = 4 * 2**20
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


# ---- the pages' own files


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    kind: str


def static_files(folder: Traversable) -> dict[str, StaticFile]:
    """The files of a folder by name; anything but plain files of known kinds is left out."""
    return {
        item.name: StaticFile(item.read_bytes(), KINDS[Path(item.name).suffix])
        for item in folder.iterdir()
        if Path(item.name).suffix in KINDS
        and item.is_file()
        and not (isinstance(item, Path) and item.is_symlink())
    }


def static_folder() -> dict[str, StaticFile]:
    """The files of samepath's pages, and the libraries they use (static/vendor)."""
    folder = resources.files("samepath.web") / "static"
    return static_files(folder / "vendor") | static_files(folder)


# ---- the guard


@dataclass(frozen=True)
class _Refused(Exception):
    status: int
    why: str


class Guard:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, token: str, max_body: int = MAX_BODY) -> None:
        self.app = app
        self.token = token
        self.max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        cookie: str | None = None

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                added = {**HEADERS, **({} if cookie is None else {"set-cookie": cookie})}
                message["headers"] = [
                    *message["headers"],
                    *((n.encode(), v.encode()) for n, v in added.items() if n.encode() not in own),
                ]
            await send(message)

        try:
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
            _check_host(headers)
            cookie = self._check_token(scope, headers)
            if scope["method"] not in ("GET", "HEAD"):
                _check_change(scope["method"], headers)
                receive = await self._whole_body(headers, receive)
        except _Refused as refused:
            from starlette.responses import JSONResponse

            refusal = JSONResponse({"error": refused.why}, refused.status)
            await refusal(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)

    def _check_token(self, scope: Scope, headers: Mapping[str, str]) -> str | None:
        """Refuse a request without the token; returns the cookie to set if the address had it."""
        name = f"samepath_{(scope.get('server') or ('', 0))[1]}"  # cookies do not know of ports
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if asked and self._is_token(asked[0]):
            return f"{name}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        with suppress(CookieError):
            kept = SimpleCookie(headers.get("cookie", "")).get(name)
            if kept is not None and self._is_token(kept.value):
                return None
        raise _Refused(403, "open the address that samepath printed: it carries a token")

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())

    async def _whole_body(self, headers: Mapping[str, str], receive: Receive) -> Receive:
        """Read the body, as far as the limit allows, and hand it on as one piece."""
        refused = _Refused(413, f"too large: at most {self.max_body // 2**20} MiB are taken")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.max_body:
            raise refused
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise _Refused(400, "the request was cut off")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.max_body:
                raise refused
        whole = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> dict[str, Any]:
            return whole.pop() if whole else dict(await receive())

        return replay


def _check_host(headers: Mapping[str, str]) -> None:
    """Refuse another site's name that was made to point here (DNS rebinding)."""
    host = headers.get("host", "")
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if (name or host) not in LOOPBACK or (port and name and not port.isdecimal()):
        raise _Refused(403, f"this page answers on {HOST} only")


def _check_change(method: str, headers: Mapping[str, str]) -> None:
    """Refuse changes that another page asks for."""
    if method != "POST":
        raise _Refused(405, f"{method} is not used here")
    origin = headers.get("origin")
    own = origin is None or origin == f"http://{headers.get('host', '')}"
    site = headers.get("sec-fetch-site", "same-origin")
    if CHANGES_HEADER not in headers or not own or site not in ("same-origin", "none"):
        raise _Refused(403, "only the page that samepath serves may change something")


# ---- serving


def guarded_app(
    page: str,
    routes: Sequence[BaseRoute],
    token: str,
    errors: Mapping[type[Exception], int],
    policy: str = POLICY,
) -> ASGIApp:
    """The page, a static file with this content-security-policy, and its routes behind the guard;
    the pages' own files are under /static. An exception of one of the kinds in `errors` is answered
    with its status and {"error": its text}."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    files = static_folder()

    def static(request: Request) -> Response:
        found = files.get(request.path_params.get("name", page))
        if found is None:
            raise HTTPException(404, "there is no such page")
        headers = {"content-security-policy": policy}
        return Response(found.content, media_type=found.kind, headers=headers)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code)

    async def known_error(request: Request, error: Exception) -> Response:
        status = next(status for kind, status in errors.items() if isinstance(error, kind))
        return JSONResponse({"error": str(error)}, status)

    app = Starlette(
        routes=[Route("/", static), Route("/static/{name}", static), *routes],
        exception_handlers={HTTPException: http_error, **dict.fromkeys(errors, known_error)},
    )
    return Guard(app, token)


class LocalPage:
    """An application with a new token, and where it will answer."""

    def __init__(self, listening: socket.socket, make_app: Callable[[str], ASGIApp]) -> None:
        token = new_token()
        self.app = make_app(token)
        self.listening = listening
        self.address = f"http://{HOST}:{listening.getsockname()[1]}/?token={token}"
        """What to open in a browser on this machine: it carries the token."""

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM; then end, quietly."""
        with suppress(KeyboardInterrupt):  # uvicorn ends well, then passes the signal on
            self.server().run(sockets=[self.listening])

    def server(self) -> uvicorn.Server:
        import uvicorn

        settings = uvicorn.Config(
            self.app,
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        return uvicorn.Server(settings)


def new_token() -> str:
    return secrets.token_urlsafe(24)


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
