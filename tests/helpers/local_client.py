"""A client of a local page, which has its token; requests as they are sent; commands' refusals."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any
from urllib.parse import unquote

import click
import pytest
from click.testing import CliRunner

from samepath.errors import UserError

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `httpx`")  # it would rather have httpx2
    from starlette.testclient import TestClient as TestClient

CHANGE = {"x-samepath": "1"}


def client_of(app: Any) -> TestClient:
    """A client of an application whose token is "t"."""
    client = TestClient(app, base_url="http://127.0.0.1")
    client.cookies.set("samepath_80", "t")
    return client


def status_of(app: Any, path: str) -> int:
    """The status of a path that goes in as it is, like uvicorn's: clients tidy paths up first."""
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(),
        "query_string": b"", "headers": [(b"host", b"127.0.0.1"), (b"cookie", b"samepath_80=t")],
        "server": ("127.0.0.1", 80),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    assert b'"error"' in sent[1]["body"]
    return int(sent[0]["status"])


def refused(command: click.Command, *arguments: object) -> str:
    """What a command says of arguments that it refuses, in one line."""
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)
