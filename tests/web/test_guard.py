"""Who may ask, and for what: the guard in front of local pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_client import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from samepath.web.server import Guard, new_token, static_files

TOKEN = "right-token"
CHANGE = {"x-samepath": "1"}
Client = Callable[..., TestClient]


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
def client() -> Client:
    app = Guard(Starlette(routes=[Route("/", echo, methods=["GET", "POST"])]), TOKEN, max_body=100)

    def make(host: str = "127.0.0.1:8000", token: str = TOKEN) -> TestClient:
        made = TestClient(app, base_url=f"http://{host}")
        made.cookies.set("samepath_8000", token)
        return made

    return make


def test_tokens_differ() -> None:
    assert len({new_token() for _ in range(10)}) == 10
    assert len(new_token()) >= 32


def test_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read() -> None:
    app = Guard(Starlette(routes=[Route("/", echo)]), TOKEN)
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        assert client.get("/").status_code == 403
        assert client.get("/?token=wrong").status_code == 403
        first = client.get(f"/?token={TOKEN}")
        assert first.status_code == 200
        words = first.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {w.strip() for w in words.split(";")}
        assert client.get("/").status_code == 200
        assert "set-cookie" not in client.get("/").headers


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9"])
def test_a_wrong_cookie_is_refused(client: Client, token: str) -> None:
    app = client().app
    wrong = TestClient(app, base_url="http://127.0.0.1:8000")
    headers = {"cookie": f"samepath_8000={token}".encode()}
    assert wrong.get("/", headers=headers).status_code == 403
    assert client().get("/").status_code == 200


def test_the_cookie_of_another_port_is_not_ours(client: Client) -> None:
    other = TestClient(client().app, base_url="http://127.0.0.1:8000")
    other.cookies.set("samepath_9000", TOKEN)
    assert other.get("/").status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("evil.example", 403),
        ("127.0.0.1:8000@evil.example", 403),
        ("", 403),
    ],
)
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


def test_large_bodies_without_a_length_are_refused(client: Client) -> None:
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield b"x" * 10

    sent = client().post("/", content=pieces(), headers=CHANGE)
    assert "content-length" not in sent.request.headers
    assert sent.status_code == 413


@pytest.mark.parametrize("path", ["/", "/nothing"])
def test_every_answer_says_what_a_browser_may_do(client: Client, path: str) -> None:
    for answer in (client().get(path), client(token="wrong").get(path)):
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
    (folder / "page.js").write_text("1")
    (folder / "notes.txt").write_text("2")
    (folder / "below" / "more.js").write_text("3")
    (folder / "link.js").symlink_to(secret)
    assert set(static_files(folder)) == {"page.js"}
