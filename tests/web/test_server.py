"""Local pages: who may ask, and for what; starting, saying where, and ending."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from curation_folders import make_curation_folder
from local_client import CHANGE, TestClient, refused
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from samepath.cli.web import explore, ui
from samepath.web.server import Guard, new_token, static_files

TOKEN = "right-token"
SAMEPATH = str(Path(sys.executable).with_name("samepath"))
Client = Callable[..., TestClient]


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
def client() -> Client:
    app = Guard(Starlette(routes=[Route("/", echo, methods=["GET", "POST"])]), TOKEN, max_body=100)

    def make(cookie: str = f"samepath_8000={TOKEN}") -> TestClient:
        headers = {"cookie": cookie.encode()} if cookie else {}
        return TestClient(app, base_url="http://127.0.0.1:8000", headers=headers)  # type: ignore[arg-type]

    return make


def test_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(client: Client) -> None:
    assert len({new_token() for _ in range(10)}) == 10
    assert len(new_token()) >= 32
    new = client(cookie="")
    assert new.get("/").status_code == 403
    assert new.get("/?token=wrong").status_code == 403
    first = new.get(f"/?token={TOKEN}")
    assert first.status_code == 200
    words = first.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {w.strip() for w in words.split(";")}
    assert new.get("/").status_code == 200
    assert "set-cookie" not in new.get("/").headers


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9"])
def test_a_wrong_cookie_is_refused(client: Client, token: str) -> None:
    assert client(f"samepath_8000={token}").get("/").status_code == 403
    assert client(f"samepath_9000={TOKEN}").get("/").status_code == 403, "of another port"
    assert client().get("/").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200), ("localhost:8000", 200), ("[::1]:8000", 200), ("", 403),
        ("evil.example:8000", 403), ("127.0.0.1.evil.example:8000", 403), ("evil.example", 403),
        ("127.0.0.1:8000@evil.example", 403),
    ],
)  # fmt: skip
def test_only_this_machine_s_names(client: Client, host: str, status: int) -> None:
    assert client().get("/", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (CHANGE, 200),
        (CHANGE | {"origin": "http://127.0.0.1:8000"}, 200),
        ({}, 403),
        (CHANGE | {"origin": "http://evil.example"}, 403),
        (CHANGE | {"origin": "null"}, 403),
        (CHANGE | {"origin": "http://127.0.0.1:9000"}, 403),
        (CHANGE | {"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_only_the_page_itself_changes_things(
    client: Client, headers: dict[str, str], status: int
) -> None:
    assert client().post("/", content=b"x", headers=headers).status_code == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(client: Client, method: str) -> None:
    assert client().request(method, "/", headers=CHANGE).status_code == 405


def test_large_bodies_are_refused(client: Client) -> None:
    assert client().post("/", content=b"x" * 100, headers=CHANGE).text == "100"
    refused = client().post("/", content=b"x" * 101, headers=CHANGE)
    assert refused.status_code == 413
    assert "too large" in refused.json()["error"]
    lying = CHANGE | {"content-length": "-1"}
    assert client().post("/", content=b"x", headers=lying).status_code == 413

    def pieces() -> Iterator[bytes]:
        yield from (b"x" * 10 for _ in range(50))

    sent = client().post("/", content=pieces(), headers=CHANGE)
    assert "content-length" not in sent.request.headers
    assert sent.status_code == 413


@pytest.mark.parametrize("path", ["/", "/nothing"])
def test_every_answer_says_what_a_browser_may_do(client: Client, path: str) -> None:
    for answer in (client().get(path), client(cookie="").get(path)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_static_files_are_plain_files_of_known_kinds(tmp_path: Path) -> None:
    secret = tmp_path / "secret.js"
    secret.write_text("secret")
    folder = tmp_path / "static"
    (folder / "below").mkdir(parents=True)
    for name in ("page.js", "notes.txt", "below/more.js"):
        (folder / name).write_text("1")
    (folder / "link.js").symlink_to(secret)
    assert set(static_files(folder)) == {"page.js"}


# ---- the commands


@pytest.mark.alone  # it looks at the time
@pytest.mark.parametrize("command", ["ui", "explore"])
def test_it_serves_the_current_folder_and_ends_at_ctrl_c(command: str, tmp_path: Path) -> None:
    folder = tmp_path if command == "ui" else make_curation_folder(tmp_path / "curated", 120)
    arguments = [SAMEPATH, command, ".", "--no-browser", *(["--json"] if command != "ui" else [])]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdout=pipe, stderr=pipe, cwd=folder, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        address = started.stdout.readline().strip()
        if command == "ui":
            assert started.stdout.readline() == f"shows {tmp_path}; Ctrl-C ends it\n"
        else:
            address = json.loads(address)["address"]
        assert address.startswith("http://127.0.0.1:")
        base = address.partition("?")[0]
        with urllib.request.urlopen(address, timeout=10) as answer:
            cookie = answer.headers["set-cookie"].partition(";")[0]
            assert b"samepath" in answer.read()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(base, timeout=10)
        assert caught.value.code == 403
        caught.value.close()
        path = "api/overview" if command == "ui" else "api/about"
        asked = urllib.request.Request(base + path, headers={"cookie": cookie})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert json.load(answer)["folder"] == "."
        began = time.monotonic()
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0
        assert time.monotonic() - began < 5
        assert started.stdout.read() == ""
        assert started.stderr.read().count("\n") == 1, "what it does"


def test_torch_is_not_needed_to_look() -> None:
    code = "import sys, samepath.web.dashboard.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("command", [ui, explore])
def test_folders_and_ports_that_cannot_be_served(command: click.Command, tmp_path: Path) -> None:
    assert "there is no such folder" in refused(command, tmp_path / "nothing")
    folder = make_curation_folder(tmp_path / "curated", 20)
    if command is ui:
        assert "is a file" in refused(command, folder / "keep.csv")
    else:
        assert "it has no curation.json" in refused(command, tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "already in use" in refused(command, folder, "--port", taken.getsockname()[1])
    assert "from 1 to 65535" in refused(command, folder, "--port", 70000)
