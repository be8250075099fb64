"""Downloads from a server on this machine that resumes, cuts, lies and fails as told to."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import socket
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import error_line

from samepath.cli import main
from samepath.data import download as module
from samepath.data.download import Archive, DownloadFailed, download
from samepath.errors import UserError
from samepath.files import try_lock

FOLDER = "cifar-10-batches-bin"
FILES = {
    "data_batch_1.bin": np.random.default_rng(0).bytes(600_000),
    "test_batch.bin": np.random.default_rng(1).bytes(300_000),
}


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


GOOD = packed(
    (member(FOLDER, tarfile.DIRTYPE), b""),
    *((member(f"{FOLDER}/{name}"), content) for name, content in FILES.items()),
)


@dataclass
class Server:
    """What it serves, how it behaves, and what it was asked for."""

    content: bytes = GOOD
    knows_ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """Bytes after which the connection is cut, answer by answer."""
    answers: list[int] = field(default_factory=list)
    """Status codes to fail with, answer by answer, before it behaves."""
    announces: bool = True
    """Says how long an answer is."""
    asked: list[str | None] = field(default_factory=list)
    """The Range of every request."""
    url: str = ""

    def archive(self, **changes: Any) -> Archive:
        return replace(
            Archive(
                url=self.url,
                num_bytes=len(GOOD),
                md5=hashlib.md5(GOOD).hexdigest(),
                folder=FOLDER,
                files=tuple(FILES),
            ),
            **changes,
        )

    def serving(self, content: bytes) -> Archive:
        """Serve something else, whose size and MD5 are right."""
        self.content = content
        return self.archive(num_bytes=len(content), md5=hashlib.md5(content).hexdigest())


def answer(server: Server, request: http.server.BaseHTTPRequestHandler) -> None:
    wanted = request.headers.get("Range")
    server.asked.append(wanted)
    if server.answers:
        request.send_error(server.answers.pop(0))
        return
    start, total = 0, len(server.content)
    if wanted and server.knows_ranges:
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
    else:
        request.send_response(200)
    if server.announces:
        request.send_header("Content-Length", str(total - start))
    request.end_headers()
    if not server.cuts:
        request.wfile.write(server.content[start:])
        return
    request.wfile.write(server.content[start : start + server.cuts.pop(0)])
    # a reset, not a polite end
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.wfile.flush()
    request.connection.shutdown(socket.SHUT_WR)


@pytest.fixture
def server() -> Iterator[Server]:
    described = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(described, self)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        described.url = f"http://127.0.0.1:{listening.server_port}/cifar.tar.gz"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield described
        listening.shutdown()
        thread.join()


Fetch = Callable[..., Path]


@pytest.fixture
def fetch(server: Server, tmp_path: Path) -> Fetch:
    def fetch_(archive: Archive | None = None, **settings: Any) -> Path:
        return download(
            archive or server.archive(), tmp_path / "to", **({"wait_seconds": 0.001} | settings)
        )

    return fetch_


def is_whole(folder: Path) -> None:
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
    assert [file.name for file in folder.parent.iterdir()] == [FOLDER], "nothing is left beside it"


def part_of(tmp_path: Path, content: bytes) -> Path:
    """What an earlier call left."""
    (tmp_path / "to").mkdir()
    part = tmp_path / "to" / f"{FOLDER}.tar.gz.part"
    part.write_bytes(content)
    return part


# ---- what works


def test_fetched_checked_unpacked_and_not_fetched_again(server: Server, fetch: Fetch) -> None:
    seen: list[tuple[int, int]] = []
    is_whole(fetch(progress=lambda done, total: seen.append((done, total))))
    assert server.asked == [None]
    assert seen[-1] == (len(GOOD), len(GOOD))
    assert seen == sorted(seen)
    is_whole(fetch())
    assert len(server.asked) == 1


def test_a_download_that_was_cut_goes_on(server: Server, fetch: Fetch) -> None:
    server.cuts = [200_000, 300_000]
    is_whole(fetch())
    first, *later = server.asked
    assert first is None
    starts = [int(str(wanted).removeprefix("bytes=").removesuffix("-")) for wanted in later]
    assert 0 < starts[0] < starts[1] < len(GOOD)


@pytest.mark.parametrize(
    ("left_before", "knows_ranges", "asked"),
    [
        (GOOD[:123_456], True, ["bytes=123456-"]),
        (GOOD, True, []),
        (b"something else" * 1000, False, ["bytes=14000-"]),
    ],
    ids=["a part", "all", "a part, but the server knows no ranges"],
)
def test_what_an_earlier_call_left_is_used(
    left_before: bytes,
    knows_ranges: bool,
    asked: list[str],
    server: Server,
    fetch: Fetch,
    tmp_path: Path,
) -> None:
    server.knows_ranges = knows_ranges
    part_of(tmp_path, left_before)
    is_whole(fetch())
    assert server.asked == asked


@pytest.mark.parametrize(
    ("behaviour", "num_asked"),
    [({"announces": False, "cuts": [200_000]}, 2), ({"answers": [503, 502, 429]}, 4)],
    ids=["does not say how much comes", "is busy for a while"],
)
def test_a_server_with_moods(
    behaviour: dict[str, Any], num_asked: int, server: Server, fetch: Fetch
) -> None:
    vars(server).update(behaviour)
    is_whole(fetch())
    assert len(server.asked) == num_asked


# ---- what does not


def fails(fetch: Fetch, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(DownloadFailed) as failed:
        fetch(*arguments, **settings)
    assert "\n" not in str(failed.value)
    return str(failed.value)


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "to").iterdir())


def test_a_wrong_checksum(server: Server, fetch: Fetch, tmp_path: Path) -> None:
    damaged = bytearray(GOOD)
    damaged[1000] ^= 1
    server.content = bytes(damaged)
    text = fails(fetch)
    assert hashlib.md5(damaged).hexdigest() in text
    assert hashlib.md5(GOOD).hexdigest() in text
    assert "removed" in text
    assert left(tmp_path) == []
    server.content = GOOD
    is_whole(fetch())


def test_an_earlier_part_of_another_file(fetch: Fetch, tmp_path: Path) -> None:
    part_of(tmp_path, b"x" * 1000)
    assert "removed" in fails(fetch)
    is_whole(fetch())


@pytest.mark.parametrize("start", [0, 1000])
def test_a_file_of_another_size(start: int, server: Server, fetch: Fetch, tmp_path: Path) -> None:
    part_of(tmp_path, GOOD[:start])
    text = fails(fetch, server.archive(num_bytes=len(GOOD) + 1))
    assert f"is a file of {len(GOOD):,} bytes, not of {len(GOOD) + 1:,}" in text
    assert len(server.asked) == 1


def test_more_than_was_asked_for(server: Server, fetch: Fetch, tmp_path: Path) -> None:
    server.announces = False
    server.content = GOOD + b"x" * 10_000_000
    seen: list[int] = []
    assert "removed" in fails(fetch, progress=lambda done, total: seen.append(done))
    assert seen[-1] < len(GOOD) + 1_000_000, "it does not take all of it"
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("behaviour", "said", "most_asked"),
    [
        ({"answers": [404] * 9}, "answers 404", 1),
        ({"answers": [403] * 9}, "answers 403", 1),
        ({"answers": [416] * 9}, "answers 416", 1),
        ({"answers": [503] * 9}, "answers 503", 4),
        ({"knows_ranges": False, "cuts": [50_000] * 20}, "connection", 6),
    ],
)
def test_a_server_that_never_gives_it(
    behaviour: dict[str, Any], said: str, most_asked: int, server: Server, fetch: Fetch
) -> None:
    """What may pass is asked for four times without a new byte, all else once."""
    vars(server).update(behaviour)
    text = fails(fetch)
    assert said in text
    assert server.url in text
    assert min(most_asked, 4) <= len(server.asked) <= most_asked


def test_no_network(server: Server, fetch: Fetch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = fails(fetch, server.archive(url=f"http://127.0.0.1:{port}/a.tar.gz"))
    assert "no connection" in text
    assert "--data" in text


def test_places_that_cannot_be_used(server: Server, fetch: Fetch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="https://"):
        fetch(server.archive(url="file:///etc/passwd"))
    (tmp_path / "to").write_text("a file")
    with pytest.raises(UserError, match="cannot be written to"):
        fetch()
    (tmp_path / "to").unlink()
    with part_of(tmp_path, b"").open("a") as file:
        assert try_lock(file)
        with pytest.raises(UserError, match="another process"):
            fetch()
    (tmp_path / "to" / FOLDER).mkdir()
    (tmp_path / "to" / FOLDER / "data_batch_1.bin").touch()
    with pytest.raises(UserError, match=r"without test_batch\.bin; give another folder"):
        fetch()
    assert server.asked == []


# ---- unpacking


@pytest.mark.parametrize(
    "bad",
    [
        member(f"{FOLDER}/../../outside"),
        member("../outside"),
        member("/tmp/outside"),
        member("another-folder/file"),
        member(f"{FOLDER}/link", tarfile.SYMTYPE, "/etc/passwd"),
        member(f"{FOLDER}/link", tarfile.LNKTYPE, "../../outside"),
        member(f"{FOLDER}/pipe", tarfile.FIFOTYPE),
        member(f"{FOLDER}/device", tarfile.CHRTYPE),
    ],
    ids=lambda bad: f"{bad.name} {bad.type!r}",
)
def test_a_dangerous_archive(
    bad: tarfile.TarInfo, server: Server, fetch: Fetch, tmp_path: Path
) -> None:
    archive = server.serving(packed((member(f"{FOLDER}/data_batch_1.bin"), b"1"), (bad, b"")))
    text = fails(fetch, archive)
    assert repr(bad.name) in text
    assert "nothing was unpacked" in text
    assert [path.name for path in tmp_path.iterdir()] == ["to"]
    assert not (tmp_path / "to" / FOLDER).exists()
    assert not [name for name in left(tmp_path) if not name.endswith(".part")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed((member(f"{FOLDER}/zeros"), bytes(5_000_000))), "more than 1,000,000 bytes"),
        (packed(*((member(f"{FOLDER}/{n}"), b"") for n in range(1001))), "1000 files"),
        (b"no archive at all", "is no .tar.gz that can be read"),
        (GOOD[:500_000], "is no .tar.gz that can be read"),
    ],
    ids=["too large", "too many", "text", "cut"],
)
def test_an_archive_that_cannot_be_unpacked(
    content: bytes, said: str, server: Server, fetch: Fetch, tmp_path: Path
) -> None:
    assert said in fails(fetch, replace(server.serving(content), most_unpacked=1_000_000))
    assert not (tmp_path / "to" / FOLDER).exists()


# ---- the command


def test_the_command(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["download", "cifar10", *arguments])
        return ended.value.code, *capfd.readouterr()

    monkeypatch.setitem(module.ARCHIVES, "cifar10", server.archive(url="http://127.0.0.1:1/"))
    code, out, err = run("--to", str(tmp_path / "a b"), "--url", server.url, "--json")
    assert code == 0, err
    said = json.loads(out)
    is_whole(Path(said["folder"]))
    assert said["next"] == f"samepath train cifar10 --data '{tmp_path}/a b/{FOLDER}'"
    server.answers = [404]
    code, _, err = run("--to", str(tmp_path / "other"), "--url", server.url)
    assert code == 1
    assert error_line(err).startswith("samepath: http://127.0.0.1")
    monkeypatch.setenv("SAMEPATH_DATA", str(tmp_path / "data"))
    assert run("--url", server.url)[0] == 0
    is_whole(tmp_path / "data" / FOLDER)
