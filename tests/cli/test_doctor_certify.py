"""`samepath doctor --certify`: its exit code, its files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import samepath

from samepath import files
from samepath.insight import certify as certify_module
from samepath.insight.certificate import is_intact, seal

LINE = {"workers": 2, "seconds": 0.004, "ddp_seconds": 0.002, "ratio": 2.0, "ddp_digest": "d" * 64}
CONTENT: dict[str, Any] = {
    "date": "2026-01-02T03:04Z",
    "samepath": {"version": "0.2.0", "commit": ""},
    "recipe": "digits",
    "device": "CPU",
    "workers": [1, 2],
    "equal": True,
    "trained": {"batch_size": 256, "grain_size": 32, "seed": 0, "threads": 1, "resumed_at": []},
    "runs": [
        {"workers": [1], "steps": 20, "digest": "a" * 64, "parts_at": None},
        {"workers": [2], "steps": 20, "digest": "b" * 64, "parts_at": 3},
    ],
    "difference": None,
    "timed_steps": 10,
    "speed": [LINE],
    "busy_cores": 0.0,
    "ddp": {"steps": 17, "changes": True, "refused": ""},
    "gpus": [{"name": "NVIDIA <A100>", "capability": "8.0", "memory_gib": 80}],
    "driver": "none",
    "cuda": "none",
    "nccl": {"version": "none", "variables": {"NCCL_ALGO": "Ring"}},
    "versions": {"torch": "2.13.0"},
    "machine": {"cores": "2 of 2 usable"},
}


def found(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    content = seal(CONTENT | changes)
    monkeypatch.setattr(certify_module, "certify", lambda *_: content)
    return content


@pytest.mark.parametrize("equal", [True, False])
def test_files_and_exit_code(equal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = found(monkeypatch, equal=equal)
    out = tmp_path / "new" / "certificate"
    said = samepath("doctor", "--certify", "digits", "--out", out, code=0 if equal else 1)
    assert sorted(file.name for file in out.iterdir()) == ["certificate.html", "certificate.json"]
    written = json.loads((out / "certificate.json").read_text(encoding="utf-8"))
    assert written == content
    assert is_intact(written)
    page = (out / "certificate.html").read_text(encoding="utf-8")
    assert content["sha256"] in page
    assert "NVIDIA &lt;A100&gt;, compute capability 8.0, 80 GiB" in page
    assert "NCCL_ALGO=Ring" in page
    assert "differs from step 3 on" in said
    assert ("the bits differ" in said) is not equal


def test_json_and_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    content = found(monkeypatch)
    assert json.loads(samepath("doctor", "--json", "--certify")) == content
    samepath("doctor", "--certify")
    assert sorted(file.name for file in (tmp_path / "insight").iterdir()) == [
        "digits-certificate-1",
        "digits-certificate-2",
    ]


@pytest.mark.parametrize("where", ["measuring", "writing"])
def test_ctrl_c_leaves_nothing(where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    found(monkeypatch)
    if where == "measuring":
        monkeypatch.setattr(certify_module, "certify", stop)
    else:
        monkeypatch.setattr(files, "write_atomically", stop)  # the page is there by then
    samepath("doctor", "--certify", "digits", "--out", tmp_path / "certificate", code=130)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "new"], "--out new: only a certificate is written; add --certify"),
        (["--certify", "digits", "--out", "full"], "--out full is not empty; give a new folder"),
        (["--certify", "nothing.py", "--out", "new"], "nothing.py"),
    ],
)
def test_refused(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    said = samepath("doctor", *arguments, code=2)
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "new").exists()
