"""The explorer's server: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from curation_folders import make_curation_folder
from local_client import TestClient
from PIL import Image
from safetensors.numpy import load_file

from samepath.web.explorer.app import explorer_app
from samepath.web.explorer.explorer import Explorer

N = 300
CHANGE = {"x-samepath": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_curation_folder(tmp_path / "curated", N)


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with open_client(folder) as client:
        yield client


def open_client(folder: Path) -> TestClient:
    client = TestClient(explorer_app(Explorer(folder), "t"), base_url="http://127.0.0.1")
    client.cookies.set("samepath_80", "t")
    return client


def change(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(f"/api/{path}", json=body, headers=CHANGE)
    assert answer.status_code == 200, answer.text
    return answer.json()


def points(client: TestClient) -> dict[str, np.ndarray[Any, Any]]:
    content = client.get("/api/points").content
    names = ["x", "y", "loss", "doubt", "confidence", "label", "guess", "cluster", "kept", "reason"]
    assert len(content) == 4 * N * len(names)
    found = {}
    for k, name in enumerate(names):
        part = content[4 * N * k : 4 * N * (k + 1)]
        found[name] = np.frombuffer(part, dtype="<f4" if k < 5 else "<i4")
    return found


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("page.js", "style.css", "renderer.js", "icon.svg"):
        assert f"/static/{name}" in page.text or name == "page.js"
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/page.js").headers["content-type"].startswith("text/javascript")
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


def test_points_are_those_of_the_folder(client: TestClient, folder: Path) -> None:
    about = client.get("/api/about").json()
    mapped = load_file(folder / "map.safetensors")
    features = load_file(folder / "features.safetensors")
    shown = points(client)
    assert np.array_equal(np.stack([shown["x"], shown["y"]], 1), mapped["map"])
    assert np.array_equal(shown["loss"], features["losses"])
    assert np.array_equal(shown["label"], features["labels"])
    assert np.array_equal(shown["guess"], features["probabilities"].argmax(1))
    assert about["num_examples"] == N
    assert [c["num_examples"] for c in about["classes"]] == np.bincount(shown["label"]).tolist()
    noise = about["reasons"].index("noise")
    assert np.array_equal(shown["cluster"] == -1, shown["reason"] == noise)
    for tuning in about["classes"]:
        assert tuning["low"] < tuning["eps"] < tuning["high"]


@pytest.mark.parametrize(("kind", "size"), [("colour", (16, 16)), ("slices", (48, 16))])
def test_images_are_png_of_the_pixels(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    folder = make_curation_folder(tmp_path / "c", 20, pictures=kind)
    with open_client(folder) as client:
        answer = client.get("/api/image/7")
        assert answer.headers["content-type"] == "image/png"
        picture = Image.open(io.BytesIO(answer.content))
        assert picture.size == size
        assert np.array_equal(
            np.asarray(picture), load_file(folder / "images.safetensors")["images"][7]
        )


def test_tensors_without_images_or_labels(tmp_path: Path) -> None:
    folder = make_curation_folder(
        tmp_path / "c", N, pictures="none", labelled=False, classifier=False
    )
    with open_client(folder) as client:
        about = client.get("/api/about").json()
        assert about["picture"] is None
        assert not about["has_labels"]
        assert [c["name"] for c in about["classes"]] == ["all"]
        assert client.get("/api/image/0").status_code == 404
        assert (points(client)["guess"] == -1).all()
        assert change(client, "cluster", label=0, eps=2.0, min_samples=3, use=True)["undo"]


def test_neighbours_are_the_nearest(client: TestClient, folder: Path) -> None:
    reduced = load_file(folder / "map.safetensors")["reduced"]
    distances = np.linalg.norm(reduced - reduced[4], axis=1)
    distances[4] = np.inf
    near = client.get("/api/neighbours/4").json()
    assert [row for row, _ in near] == np.argsort(distances)[:12].tolist()
    assert [d for _, d in near] == pytest.approx(np.sort(distances)[:12].tolist(), rel=1e-5)


def test_a_session(client: TestClient, folder: Path) -> None:
    kept = np.flatnonzero(points(client)["kept"])[:3].tolist()
    answer = change(client, "mark", rows=kept, kept=False, note="odd")
    assert answer["rows"] == kept
    assert answer["kept"] == [0, 0, 0]
    assert points(client)["kept"][kept].tolist() == [0, 0, 0]
    assert client.get("/api/about").json()["notes"] == {str(row): "odd" for row in kept}
    preview = change(client, "cluster", label=1, eps=0.001, min_samples=5, use=False)
    assert set(preview["clusters"]) == {-1}
    assert change(client, "undo")["kept"] == [1, 1, 1]
    assert change(client, "redo")["kept"] == [0, 0, 0]
    saved = change(client, "save")
    assert saved["file"] == str(folder / "keep-2.csv")
    assert change(client, "note", rows=[9], note="x")["num_edits"] == 2


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/..%2fguard.py",
        "/static/%2e%2e/guard.py",
        "/static/%2e%2e%2fguard.py",
        "/static/..%252fguard.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\guard.py",
        "/static/page.js%00",
        "/static/",
        "/curation.json",
        "/keep.csv",
        "/api/image/../about",
        "/api/image/-1",
        "/api/image/300",
        "/api/image/1e2",
        "/api/image/9999999999999999999999",
        "/api/image/%d9%a3",
        "/api/neighbours/x",
        "/api/export/..%2fkeep",
        "/api/export/exe",
        "/nothing",
    ],
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    """Clients tidy paths up before they send them: these go in as they are, like uvicorn's."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", b"samepath_80=t")],
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(client.app(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 404
    assert b'"error"' in sent[1]["body"]


def test_changes_are_not_made_by_looking(client: TestClient) -> None:
    for path in ("mark", "note", "cluster", "undo", "redo", "save"):
        assert client.get(f"/api/{path}").status_code == 405
        assert client.post(f"/api/{path}", json={}).status_code == 403


MARK = {"rows": [1], "kept": True}
CLUSTER = {"label": 0, "eps": 1.0, "min_samples": 5, "use": True}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("mark", b"", "not JSON"),
        ("mark", b"{", "not JSON"),
        ("mark", b"\xff", "not JSON"),
        ("mark", b"[" * 100_000, "not JSON"),
        ("mark", [1], "not a JSON object"),
        ("mark", {**MARK, "rows": []}, "1 to 300"),
        ("mark", {**MARK, "rows": 3}, "1 to 300"),
        ("mark", {**MARK, "rows": [0] * 301}, "1 to 300"),
        ("mark", {**MARK, "rows": [-1]}, "from 0 to 299"),
        ("mark", {**MARK, "rows": [300]}, "from 0 to 299"),
        ("mark", {**MARK, "rows": [1.0]}, "whole numbers"),
        ("mark", {**MARK, "rows": [True]}, "whole numbers"),
        ("mark", {**MARK, "rows": ["1"]}, "whole numbers"),
        ("mark", {**MARK, "kept": 1}, "true or false"),
        ("mark", {**MARK, "note": 5}, "give text"),
        ("note", {"rows": [1]}, "give text"),
        ("note", {"rows": [1], "note": "x" * 501}, "at most 500"),
        ("note", {"rows": [1], "note": "a\x00b"}, "plain text"),
        ("note", b'{"rows": [1], "note": "\\ud800"}', "plain text"),
        ("cluster", {**CLUSTER, "label": 10}, "from 0 to 9"),
        ("cluster", {**CLUSTER, "label": -1}, "from 0 to 9"),
        ("cluster", {**CLUSTER, "eps": 0}, "above 0"),
        ("cluster", {**CLUSTER, "eps": -1.0}, "above 0"),
        ("cluster", {**CLUSTER, "eps": 1e300}, "at most"),
        ("cluster", {**CLUSTER, "eps": True}, "above 0"),
        ("cluster", {**CLUSTER, "eps": "1"}, "above 0"),
        ("cluster", b'{"label": 0, "eps": NaN, "min_samples": 5, "use": true}', "at most"),
        ("cluster", b'{"label": 0, "eps": Infinity, "min_samples": 5, "use": true}', "at most"),
        ("cluster", {**CLUSTER, "eps": 10**400}, "at most"),
        ("cluster", {**CLUSTER, "min_samples": 0}, "from 1 to"),
        ("cluster", {**CLUSTER, "min_samples": 10**9}, "from 1 to"),
        ("cluster", {**CLUSTER, "min_samples": 2.5}, "from 1 to"),
        ("cluster", {**CLUSTER, "use": None}, "true or false"),
        ("undo", {}, "nothing to undo"),
    ],
)
def test_bad_requests_get_one_line_and_change_nothing(
    client: TestClient, path: str, body: Any, words: str, folder: Path
) -> None:
    how: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    before = client.get("/api/points").content
    answer = client.post(f"/api/{path}", headers=CHANGE, **how)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert client.get("/api/points").content == before
    assert not (folder / "keep.csv.edits").exists()


def test_an_oversized_request_is_refused(client: TestClient) -> None:
    answer = client.post("/api/mark", content=b" " * (4 * 2**20 + 1), headers=CHANGE)
    assert answer.status_code == 413


def test_a_class_with_too_few_points_says_so(tmp_path: Path) -> None:
    folder = make_curation_folder(tmp_path / "c", 40, num_classes=10)
    with open_client(folder) as client:
        answer = client.post("/api/cluster", json=CLUSTER, headers=CHANGE)
        assert answer.status_code == 400
        assert "airplane has too few examples" in answer.json()["error"]
