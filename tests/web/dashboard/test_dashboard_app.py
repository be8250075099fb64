"""The server of `samepath ui`: what it answers, what it refuses, what it makes of damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from local_client import CHANGE, TestClient, client_of, status_of
from ui_folders import DIGEST, make_finding, make_run, metrics_lines

from samepath.files import lock_folder
from samepath.web.dashboard.app import take_apart, ui_app
from samepath.web.dashboard.contents import FolderContents
from samepath.web.server import static_folder

PNG = bytes.fromhex("89504e470d0a1a0a")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with client_of(ui_app(FolderContents(tmp_path), "t")) as client:
        yield client


def items(client: TestClient) -> dict[str, dict[str, Any]]:
    answer = client.get("/api/overview")
    assert answer.status_code == 200, answer.text
    return {item["name"]: item for item in answer.json()["items"]}


def run_of(client: TestClient, *names: str) -> dict[str, Any]:
    all_items = items(client)
    ids = ",".join(all_items[name]["id"] for name in names)
    answer = client.get(f"/api/runs/{ids}")
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'; style-src 'self'; img-src 'self' data:" in policy
    assert "unsafe" not in policy
    assert "https://" not in page.text
    assert "http://" not in page.text
    for name in ("ui.js", "ui.css", "ui_chart.js", "style.css", "uPlot.iife.min.js"):
        assert f"/static/{name}" in page.text
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/ui_none.js").status_code == 404


def test_vendored_files_are_those_that_their_readme_names() -> None:
    folder = resources.files("samepath.web") / "static" / "vendor"
    named = re.findall(r"\| (\S+) \| ([0-9a-f]{64}) \|", (folder / "README.md").read_text())
    others = {"README.md", "LICENSE"}
    assert {name for name, _ in named} == {file.name for file in folder.iterdir()} - others
    for name, digest in named:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert static_folder()[name].content == (folder / name).read_bytes()
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_modules_are_short_and_loaded_at_once() -> None:
    files = static_folder()
    page = files["ui.html"].content.decode()
    own = [name for name in files if re.fullmatch(r"ui_.*\.js", name)]
    assert len(own) > 5
    for name in own:
        assert f'modulepreload" href="/static/{name}"' in page
    for name in (*own, "ui.js"):
        lines = files[name].content.decode().splitlines()
        assert len(lines) <= 300
        assert max(map(len, lines)) <= 110, name


def test_an_overview_of_everything(client: TestClient, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    os.utime(tmp_path / "runs" / "a" / "run.json", (1, 1))
    os.utime(tmp_path / "runs" / "a" / "metrics.jsonl", (1, 1))
    make_finding(tmp_path / "insight" / "p", "profile", engines={"samepath": {}, "ddp": {}},
                 summary="ddp waits.", time=5.0)  # fmt: skip
    curated = tmp_path / "curated"
    curated.mkdir()
    (curated / "curation.json").write_text(
        json.dumps({"recipe": "x/digits.py", "num_kept": 950, "num_examples": 1000})
    )
    found = items(client)
    assert list(found)[-1] == "runs/a", "newest first"
    run = found["runs/a"]
    assert run["status"] == "finished"
    assert (run["workers"], run["steps"], run["epochs"], run["steps_to_do"]) == (2, 30, 3.0, 100)
    assert (run["train_loss"], run["valid_loss"]) == (0.5, 0.6)
    assert run["metrics"] == {"accuracy": 0.9}
    assert (run["noise_scale"], run["noise_low"], run["noise_high"]) == (42.0, 30.0, 60.0)
    assert run["digest"] == DIGEST[:12]
    assert 20 < len(run["spark"]) <= 48
    assert found["insight/p"]["verdict"] == "ddp waits."
    assert found["insight/p"]["facts"] == ["engines: samepath, ddp"]
    assert found["curated"]["facts"] == ["950 of 1,000 kept (95.0%)"]
    assert found["curated"]["recipe"] == "digits"
    page = client.get(f"/api/item/{found['curated']['id']}").json()
    assert page["explore"] == f"samepath explore {curated}"


def test_a_run_is_running_only_while_a_process_holds_its_folder(
    client: TestClient, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "a", 25, status="running")
    assert items(client)["a"]["status"] == "stopped"
    assert run_of(client, "a")["runs"][0]["resume"] == f"samepath train digits --out {run} --resume"
    held = lock_folder(run, "held")
    line = items(client)["a"]
    assert (line["status"], line["is_live"], line["digest"]) == ("running", True, "")
    assert (line["steps"], line["epochs"]) == (25, 2)
    assert line["metrics"] == {"accuracy": 1 - 1 / 20}
    assert line["noise_scale"] == 55.0
    os.close(held)
    assert items(client)["a"]["status"] == "stopped"


def test_a_study_under_way(client: TestClient, tmp_path: Path) -> None:
    make_run(tmp_path / "s" / "runs" / "strong-k1", 10, status="running")
    (tmp_path / "s" / "settings.json").write_text('{"kind": "race", "recipe": "checksum"}')
    assert items(client)["s"]["status"] == "stopped"
    held = lock_folder(tmp_path / "s", "held")
    study = items(client)["s"]
    assert (study["status"], study["recipe"]) == ("running", "")
    assert study["title"] == "strategies raced to a target"
    os.close(held)
    page = client.get(f"/api/item/{study['id']}").json()
    assert [part["name"] for part in page["parts"]] == ["s/runs/strong-k1"]


def test_a_run_that_grows(client: TestClient, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 10, status="running")
    assert run_of(client, "a")["runs"][0]["curves"]["train_loss"]["step"][-1] == 10
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(line + "\n" for line in list(metrics_lines(15))[-5:])
    page = run_of(client, "a")["runs"][0]
    assert page["curves"]["train_loss"]["step"] == list(range(1, 16))
    assert page["steps"] == 15
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    values = page["curves"]["train_loss"]["value"]
    assert values == pytest.approx([x["train_loss"] for x in logged if "train_loss" in x], 1e-5)


def test_new_runs_appear(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samepath.web.dashboard.contents.SEARCH_SECONDS", 0.05)
    assert items(client) == {}
    run = make_run(tmp_path / "runs" / "a")
    wait_for(lambda: "runs/a" in items(client))
    id = items(client)["runs/a"]["id"]
    shutil.rmtree(run)
    wait_for(lambda: not items(client) and client.get(f"/api/runs/{id}").status_code == 404)


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_the_page_has_is_not_sent_again(client: TestClient, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    for path in ("/api/overview", f"/api/runs/{items(client)['a']['id']}"):
        first = client.get(path)
        again = client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '"x"', "{}", '{"config": 1}', "\xff", "[" * 100_000,
     '{"config": {}, "starts": 3, "result": [], "status": null}',
     '{"config": {"recipe": [], "epochs": "x"}, "starts": [7], "result": {"metrics": 3}}',
     '{"config": {"a": NaN}, "starts": [{"command": 1, "time": "x", "versions": []}], '
     '"result": {"digest": 4, "steps": "many", "train_loss": Infinity, "metrics": {"a": []}}}'],
)  # fmt: skip
def test_a_damaged_run_json_is_shown_not_fatal(
    client: TestClient, tmp_path: Path, content: str
) -> None:
    run = make_run(tmp_path / "a")
    make_run(tmp_path / "good")
    (run / "run.json").write_text(content, encoding="latin-1")
    found = items(client)
    assert found["good"]["status"] == "finished"
    ours = '"config": {' in content
    assert bool(found["a"]["error"]) is not ours
    assert run_of(client, "a", "good")["runs"][0]["curves"]["train_loss"]
    assert client.get(f"/api/item/{found['a']['id']}").status_code == 200


@pytest.mark.parametrize(
    "content", ["", "\x00" * 50, "{}\n[]\n", "x" * 70_000 + "\n"], ids=range(4)
)
def test_damaged_metrics_are_shown_not_fatal(
    client: TestClient, tmp_path: Path, content: str
) -> None:
    run = make_run(tmp_path / "a", status="running")
    (run / "metrics.jsonl").write_text(content)
    assert items(client)["a"]["status"] == "stopped"
    page = run_of(client, "a")["runs"][0]
    assert page["curves"] == {}
    assert page["num_unreadable"] == content.count("\n")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/etc/passwd")
    assert "metrics.jsonl cannot be read (Too many" in items(client)["a"]["message"]
    assert run_of(client, "a")["runs"][0]["status"] == "stopped"


ODD: dict[str, Any] = {
    "recipe": None, "verdict": [1], "engines": {"a": 1}, "runs": [1, {}], "command": "x",
    "workers": [[1]], "versions": 3, "curves": [{"policy": {}}],
}  # fmt: skip


@pytest.mark.parametrize("content", [b"[1", b"\xff\xfe", json.dumps(ODD).encode()], ids=range(3))
def test_damaged_findings(client: TestClient, tmp_path: Path, content: bytes) -> None:
    (make_finding(tmp_path / "a", "advice") / "advice.json").write_bytes(content)
    found = items(client)["a"]
    assert bool(found["error"]) == (content[:1] != b"{")
    assert client.get(f"/api/item/{found['id']}").status_code == 200


EVIL = """<!doctype html><title>t</title><style>body { color: red }</style>
<h1>A &amp; B</h1><script>document.title = "ran"</script><p class="note" onclick="x()">small</p>
<svg onload="x()"><text>no</text></svg><img src=x onerror="x()"><img src="https://example.org/a.png">
<img alt="kept" src="data:image/png;base64,AAAA"><img src="data:image/svg+xml;base64,AAAA">
<img src="data:image/svg+xml,<svg onload='x()'/>"><nav>1. A</nav>
<img src="data:text/html;base64,AAAA">
<iframe srcdoc="<script>x()</script>">no</iframe><a href="javascript:x()">words</a>
<div class="wide"><table><tr><th>1</th></tr><tr><td>&lt;b&gt;</td></tr></table></div>
<details><summary>3 lines</summary>in</details></p></b>
<p>open <form action="/x"><input value="v">"""


def test_a_report_is_taken_apart() -> None:
    assert take_apart(EVIL) == [
        ["h1", ["A & B"]],
        ["note", ["small"]],
        ["img", "data:image/png;base64,AAAA", "kept"],
        ["img", "data:image/svg+xml;base64,AAAA", ""],  # as a picture it runs nothing
        "words",
        ["table", [["tr", [["th", ["1"]]]], ["tr", [["td", ["<b>"]]]]]],
        ["details", [["summary", ["3 lines"]], "in"]],
        ["p", ["open "]],
    ]
    assert take_apart("<p>" * 5000 + "deep")
    assert take_apart("<script>a") == []


def test_files_are_sent_so_that_nothing_in_them_runs(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_finding(tmp_path / "a", "advice", EVIL)
    (folder / "advice.png").write_bytes(PNG)
    (folder / "trace.json").write_text("{}")
    (folder / "secret.txt").write_text("no")
    (folder / "link.png").symlink_to("/etc/passwd")
    page = client.get(f"/api/item/{items(client)['a']['id']}").json()
    files = {file["name"]: file for file in page["files"]}
    assert set(files) == {"advice.html", "advice.json", "advice.png", "trace.json"}

    def get(name: str) -> Any:
        return client.get(f"/api/file/{page['id']}/{files[name]['id']}/anything")

    html = get("advice.html")
    assert html.text == EVIL
    policy = html.headers["content-security-policy"]
    assert policy.endswith("; sandbox")
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy
    assert html.headers["x-content-type-options"] == "nosniff"
    assert get("advice.png").content == PNG
    assert get("advice.png").headers["content-type"] == "image/png"
    assert get("trace.json").headers["content-disposition"] == "attachment"
    report = f"/api/report/{page['id']}/{files['advice.html']['id']}"
    assert client.get(report).json() == take_apart(EVIL)
    assert client.get(report.replace(files["advice.html"]["id"], files["trace.json"]["id"])
                      ).status_code == 404  # fmt: skip
    monkeypatch.setattr("samepath.web.dashboard.contents.MAX_BYTES", 1)
    assert get("trace.json").status_code == 404
    named = client.get(f"/api/item/{page['id']}").json()["files"]
    assert {file["name"] for file in named if file["is_large"]} == set(files)
    monkeypatch.undo()
    (folder / "advice.html").unlink()
    (folder / "advice.html").symlink_to(folder / "secret.txt")
    assert get("advice.html").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e%2fserver.py", "/run.json",
        "/api/runs/", "/api/runs/x", "/api/runs/..%2f..", "/api/runs/a/run.json", "/api/runs/,",
        "/api/item/", "/api/item/%2fetc%2fpasswd", "/api/item/ID/..", "/api/file/ID/run.json/x",
        "/api/file/ID/..%2f..%2fsecret/x", "/api/file/ID/%2fetc%2fpasswd/x", "/api/file/x/y/z",
        "/api/report/ID/run.json", "/api/runs/" + ",".join(["ID"] * 3 + ["no"]), "/nothing",
    ],
)  # fmt: skip
def test_nothing_else_is_served(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    make_run(tmp_path / "in" / "a")
    contents = FolderContents(tmp_path / "in")
    path = path.replace("ID", contents.overview()["items"][0]["id"])
    assert status_of(ui_app(contents, "t"), path) == 404


def test_a_note_is_kept_in_the_run_and_nowhere_else(client: TestClient, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    make_finding(tmp_path / "b", "advice")
    found = items(client)
    address = f"/api/note/{found['a']['id']}"

    def post(body: object, to: str = address, **how: Any) -> int:
        code: int = client.post(to, json=body, **{"headers": CHANGE, **how}).status_code
        return code

    assert found["a"]["note"] == ""
    assert post({"note": "  the good one\nwith \u2260 batch "}) == 200
    assert (run / "note.txt").read_text(encoding="utf-8") == "the good one\nwith \u2260 batch\n"
    assert items(client)["a"]["note"] == "the good one\nwith \u2260 batch"
    assert post({"note": "from another site"}, headers={}) == 403
    assert client.get(address).status_code == 405
    bodies: tuple[object, ...] = ([], {}, {"note": 7}, {"note": "x" * 9000})
    for wrong in bodies:
        assert post(wrong) == 400
    assert post({"note": "x"}, f"/api/note/{found['b']['id']}") == 404
    assert post({"note": "x"}, "/api/note/0123456789ab") == 404
    assert items(client)["a"]["note"].startswith("the good one")
    (tmp_path / "outside").write_text("mine")
    for name in ("note.txt", "note.txt.part"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(tmp_path / "outside")
    assert post({"note": "b"}) == 200
    assert (tmp_path / "outside").read_text() == "mine", "no link is followed"
    assert post({"note": " "}) == 200
    assert not (run / "note.txt").exists()


def test_it_only_looks(client: TestClient, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    id = items(client)["a"]["id"]
    for path in ("/api/overview", f"/api/runs/{id}", f"/api/item/{id}", "/"):
        assert client.post(path, json={}, headers=CHANGE).status_code == 405
        assert client.delete(path).status_code == 405
        client.get(path)
    client.cookies.clear()
    assert client.get("/api/overview").status_code == 403
    assert {p: p.stat().st_mtime_ns for p in [tmp_path, *tmp_path.rglob("*")]} == before


@pytest.mark.parametrize("query", ["from=-1", "to=x", "from=1e3", "to=" + "9" * 40, "from=%d9%a3"])
def test_stretches_that_are_none(client: TestClient, tmp_path: Path, query: str) -> None:
    make_run(tmp_path / "a")
    answer = client.get(f"/api/runs/{items(client)['a']['id']}?{query}")
    assert answer.status_code == 400
    assert "give a step" in answer.json()["error"]


def test_names_of_any_bytes(client: TestClient, tmp_path: Path) -> None:
    run = make_run(tmp_path / "plain")
    os.rename(run, os.fsencode(tmp_path) + b"/\xff<b>'\"")
    (found,) = items(client).values()
    assert found["name"].endswith("<b>'\"")
    assert client.get(f"/api/runs/{found['id']}").status_code == 200


@pytest.mark.alone
def test_many_runs_and_long_ones_are_quick(tmp_path: Path) -> None:
    lines = "".join(line + "\n" for line in metrics_lines(10_000))
    for k in range(200):
        run = make_run(tmp_path / "runs" / f"r{k}", 1, status="running" if k % 4 else "finished")
        if k < 3:
            (run / "metrics.jsonl").write_text(lines)
    contents = FolderContents(tmp_path)
    found = contents.overview()["items"]
    assert len(found) == 200
    long = [item["id"] for item in found if item["name"] in ("runs/r1", "runs/r2")]
    contents.runs(long)

    def best(call: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(5):
            contents._search_due = 0.0  # the folder is searched too
            began = time.perf_counter()
            json.dumps(call())
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    assert best(contents.overview) < 0.2
    assert best(lambda: contents.runs(long)) < 0.3
