"""The explorer's server: what it answers, and what it refuses; and its command."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from curation_folders import make_curation_folder
from local_client import CHANGE, TestClient, client_of, refused, status_of
from PIL import Image
from safetensors.numpy import load_file

from samepath.cli.web import explore
from samepath.web.explorer.app import explorer_app, open_explorer
from samepath.web.explorer.explorer import Explorer

N = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_curation_folder(tmp_path / "curated", N)


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with open_client(folder) as client:
        yield client


def open_client(folder: Path) -> TestClient:
    return client_of(explorer_app(Explorer(folder), "t"))


def change(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(f"/api/{path}", json=body, headers=CHANGE)
    assert answer.status_code == 200, answer.text
    return answer.json()


def points(client: TestClient) -> dict[str, np.ndarray[Any, Any]]:
    names = [
        "x",
        "y",
        "loss",
        "doubt",
        "sure",
        "confidence",
        "training_margin",
        "label",
        "guess",
        "suggested",
        "target",
        "cluster",
        "kept",
        "reason",
        "seen",
    ]
    parts = np.frombuffer(client.get("/api/points").content, "<i4").reshape(len(names), N)
    return {
        n: part.view("<f4") if k < 7 else part
        for k, (n, part) in enumerate(zip(names, parts, strict=True))
    }


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "img-src 'self';" in page.headers["content-security-policy"]
    for name in ("page.js", "style.css", "renderer.js", "icon.svg"):
        assert f"/static/{name}" in page.text
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
    order = np.argsort(mapped["suspicion"])
    assert (np.diff(shown["doubt"][order]) >= 0).all(), "doubt is a percentile"
    assert [shown["doubt"].min(), shown["doubt"].max()] == [0, np.float32(100 * (N - 1) / N)]
    assert np.array_equal(shown["label"], features["labels"])
    assert np.array_equal(shown["guess"], features["probabilities"].argmax(1))
    assert np.array_equal(shown["suggested"], shown["guess"])
    assert set(shown["target"]) == {-1}
    assert np.array_equal(shown["sure"], features["probabilities"].max(1))
    assert about["num_examples"] == N
    assert [c["num_examples"] for c in about["classes"]] == np.bincount(shown["label"]).tolist()
    noise = about["reasons"].index("noise")
    assert np.array_equal(shown["cluster"] == -1, shown["reason"] == noise)
    assert all(c["low"] < c["eps"] < c["high"] for c in about["classes"])
    distances = np.linalg.norm(mapped["reduced"] - mapped["reduced"][4], axis=1)
    distances[4] = np.inf
    near = client.get("/api/neighbours/4").json()
    assert [row for row, _ in near] == np.argsort(distances)[:12].tolist()
    assert [d for _, d in near] == pytest.approx(np.sort(distances)[:12].tolist(), rel=1e-5)


@pytest.mark.parametrize(("kind", "size"), [("colour", (16, 16)), ("slices", (48, 16))])
def test_images_are_png_of_the_pixels(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    folder = make_curation_folder(tmp_path / "c", 20, pictures=kind)
    answer = open_client(folder).get("/api/image/7")
    assert answer.headers["content-type"] == "image/png"
    picture = Image.open(io.BytesIO(answer.content))
    assert picture.size == size
    images = load_file(folder / "images.safetensors")["images"]
    assert np.array_equal(np.asarray(picture), images[7])


def test_tensors_without_images_or_labels(tmp_path: Path) -> None:
    folder = make_curation_folder(
        tmp_path / "c", N, pictures="none", labelled=False, classifier=False
    )
    client = open_client(folder)
    about = client.get("/api/about").json()
    assert about["picture"] is None
    assert not about["has_labels"]
    assert [c["name"] for c in about["classes"]] == ["all"]
    assert client.get("/api/image/0").status_code == 404
    assert (points(client)["guess"] == -1).all()
    assert change(client, "cluster", label=0, eps=2.0, min_samples=3, use=True)["undo"]


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
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
        "/static/%2e%2e%2fserver.py", "/static/..%252fserver.py", "/static//etc/passwd",
        "/static/%2fetc%2fpasswd", "/static/..\\server.py", "/static/page.js%00", "/static/",
        "/curation.json", "/keep.csv", "/api/image/../about", "/api/image/-1", "/api/image/300",
        "/api/image/1e2", "/api/image/9999999999999999999999", "/api/image/%d9%a3",
        "/api/neighbours/x", "/api/export/..%2fkeep", "/api/export/exe", "/nothing",
    ],
)  # fmt: skip
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert status_of(client.app, path) == 404


def test_changes_are_not_made_by_looking(client: TestClient) -> None:
    for path in ("mark", "note", "cluster", "undo", "redo", "save"):
        assert client.get(f"/api/{path}").status_code == 405
        assert client.post(f"/api/{path}", json={}).status_code == 403
    large = client.post("/api/mark", content=b" " * (4 * 2**20 + 1), headers=CHANGE)
    assert large.status_code == 413


MARK = {"rows": [1], "kept": True}
CLUSTER = {"label": 0, "eps": 1.0, "min_samples": 5, "use": True}


@pytest.mark.parametrize(
    ("path", "words", "bodies"),
    [
        ("mark", "not JSON", [b"", b"{", b"\xff", b"[" * 100_000]),
        ("mark", "not a JSON object", [[1]]),
        ("mark", "1 to 300", [{**MARK, "rows": rows} for rows in ([], 3, [0] * 301)]),
        ("mark", "from 0 to 299", [{**MARK, "rows": [row]} for row in (-1, 300)]),
        ("mark", "whole numbers", [{**MARK, "rows": [row]} for row in (1.0, True, "1")]),
        ("mark", "true or false", [{**MARK, "kept": 1}]),
        ("mark", "give text", [{**MARK, "note": 5}]),
        ("note", "give text", [{"rows": [1]}]),
        ("note", "at most 500", [{"rows": [1], "note": "x" * 501}]),
        ("note", "plain text", [{"rows": [1], "note": "a\0b"}, b'{"rows":[1],"note":"\\ud800"}']),
        ("cluster", "from 0 to 9", [{**CLUSTER, "label": label} for label in (10, -1)]),
        ("cluster", "above 0", [{**CLUSTER, "eps": eps} for eps in (0, -1.0, True, "1")]),
        ("cluster", "at most", [{**CLUSTER, "eps": eps} for eps in (1e300, 10**400)]),
        ("cluster", "at most", [json.dumps({**CLUSTER, "eps": float(eps)}).encode()
                                for eps in ("nan", "inf")]),
        ("cluster", "from 1 to", [{**CLUSTER, "min_samples": m} for m in (0, 10**9, 2.5)]),
        ("cluster", "true or false", [{**CLUSTER, "use": None}]),
        ("relabel", "from 0 to 9", [{"rows": [1], "label": label} for label in (10, -1, "cat")]),
        ("relabel", "from 0 to 299", [{"rows": [300], "label": 1}]),
        ("reviewed", "from 0 to 299", [{"rows": [300]}]),
        ("reviewed", "true or false", [{}]),
        ("reviewed", "1 to 300", [{"rows": []}]),
        ("undo", "nothing to undo", [{}]),
    ],
)  # fmt: skip
def test_bad_requests_get_one_line_and_change_nothing(
    client: TestClient, path: str, words: str, bodies: list[Any], folder: Path
) -> None:
    before = client.get("/api/points").content
    for body in bodies:
        how: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = client.post(f"/api/{path}", headers=CHANGE, **how)
        assert answer.status_code == 400
        assert words in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
    assert client.get("/api/points").content == before
    assert not (folder / "keep.csv.edits").exists()


def test_a_class_with_too_few_points_says_so(tmp_path: Path) -> None:
    client = open_client(make_curation_folder(tmp_path / "c", 40, num_classes=10))
    answer = client.post("/api/cluster", json=CLUSTER, headers=CHANGE)
    assert answer.status_code == 400
    assert "airplane has too few examples" in answer.json()["error"]


# ---- the command


def test_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samepath.files.LOCK_SECONDS", 0.1)
    with open_explorer(folder):
        assert "is being explored by another process" in refused(explore, folder, "--no-browser")
    with open_explorer(folder):
        pass  # let go of


def test_exports_without_a_server(folder: Path, tmp_path: Path) -> None:
    for kind in ("html", "csv"):
        out = tmp_path / "below" / f"map.{kind}"
        done = CliRunner().invoke(explore, [str(folder), "--export", str(out), "--json"])
        assert json.loads(done.stdout) == {"export": str(out)}
        assert out.stat().st_size > 1000
    assert not list(folder.glob("*.edits"))


def test_keep_lists_that_are_none_or_of_other_data(folder: Path, tmp_path: Path) -> None:
    other = make_curation_folder(tmp_path / "other", 100)
    assert "100 examples" in refused(explore, folder, "--keep", other / "keep.csv")
    assert "no such keep-list" in refused(explore, folder, "--keep", tmp_path / "none.csv")
    text = (folder / "keep.csv").read_text().splitlines()
    text[1] = "0,9" + text[1][text[1].index(",", 2) :]
    text[2] = "1,9" + text[2][text[2].index(",", 2) :]
    (tmp_path / "labels.csv").write_text("\n".join(text) + "\n")
    assert "other labels" in refused(explore, folder, "--keep", tmp_path / "labels.csv")
    (folder / "keep.csv").write_text("index,label\n")
    assert "keep.csv" in refused(explore, folder)
    (folder / "keep.csv").unlink()
    assert "has no keep.csv" in refused(explore, folder)
