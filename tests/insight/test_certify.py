"""What a certificate says, and what it keeps to itself; one real one, of a tiny recipe."""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import samepath
from samepath.errors import UserError
from samepath.insight import certify as certify_module
from samepath.insight.certificate import (
    is_intact,
    private_words,
    seal,
    tables,
    verdict,
    without_private,
)
from samepath.insight.certify import certify, commit, gpu_facts, measure, worker_counts

TINY = Path(__file__).parents[1] / "parity" / "tiny_recipe.py"
HOST, USER, HOME = "ward7.clinic.example", "alice", "/home/alice"


@pytest.fixture
def _somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setattr(Path, "home", lambda: Path(HOME))


@pytest.mark.parametrize(
    ("gpus", "available", "grains", "counts"),
    [
        (0, 4, 8, [1, 2, 3, 4]),
        (0, 64, 3, [1, 2, 3]),
        (0, 1, 8, [1, 2]),
        (1, 1, 8, [1, 1]),
        (4, 4, 8, [1, 2, 3, 4]),
    ],
)
def test_worker_counts(gpus: int, available: int, grains: int, counts: list[int]) -> None:
    assert worker_counts(gpus, available, grains) == counts


# ---- what is private


@pytest.mark.usefixtures("_somebody")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{HOST}: AMD EPYC", "[host]: AMD EPYC"),
        ("ward7 and WARD7, not ward77", "[host] and [host], not ward77"),
        (f"NCCL_TOPO_FILE={HOME}/topo.xml", "NCCL_TOPO_FILE=[folder]"),
        ("2 GiB free (/scratch/trials/a)", "2 GiB free ([folder])"),
        ("~/runs, alice's", "[folder], [user]'s"),
        ("10.1.2.3:29500, 127.0.0.1", "[address]:29500, 127.0.0.1"),
        ("4 GiB in /dev/shm, 1 / 2, a/b", "4 GiB in /dev/shm, 1 / 2, a/b"),
        ("Python 3.11.7, torch 2.13.0+cpu", "Python 3.11.7, torch 2.13.0+cpu"),
        ("free of 4 GiB (/mnt/my data)", "free of 4 GiB ([folder])"),
    ],
)
def test_nothing_private_is_left(text: str, left: str) -> None:
    words = private_words(Path("/mnt/my data"))
    assert without_private({"a": [text, 1, None]}, words) == {"a": [left, 1, None]}


def test_a_user_called_root_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    assert "root" not in private_words()


# ---- what is there


def test_a_machine_without_a_gpu_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    facts = gpu_facts()
    assert facts["gpus"] == []
    assert facts["nccl"] == {"version": "none", "variables": {"NCCL_P2P_DISABLE": "1"}}


def test_gpus_and_nccl_as_torch_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(name="NVIDIA A100", major=8, minor=0, total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: about)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    facts = gpu_facts()
    assert facts["gpus"] == [{"name": "NVIDIA A100", "capability": "8.0", "memory_gib": 80}] * 2
    assert facts["nccl"]["version"] == "2.27.3"


def test_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert certify_module._driver(file) == "none"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release\n")
    assert certify_module._driver(file) == "550.54.15"


def test_the_commit_is_samepaths_and_no_other_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(samepath.__file__).parent
    top, changed = package.parents[1], ""

    def git(folder: Path, *arguments: str) -> str:
        return f"{top}\nabc" if arguments[0] == "rev-parse" else changed

    monkeypatch.setattr(certify_module, "_git", git)
    assert commit() == "abc"
    changed = " M src/samepath/version.py"
    assert commit() == "abc, changed"
    top = Path("/elsewhere")
    assert commit() == ""

    def none(*_: object) -> str:
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(certify_module, "_git", none)
    assert commit() == ""


# ---- a certificate


@pytest.mark.alone
@pytest.mark.usefixtures("forked", "_somebody")
def test_a_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On two workers, with DDP beside it."""
    monkeypatch.setattr(certify_module, "available_workers", lambda: 2)
    monkeypatch.setattr(certify_module, "TIMED_STEPS", 1)
    monkeypatch.setattr(certify_module, "STEPS", 1)
    monkeypatch.setenv("NCCL_TOPO_FILE", f"{HOME}/topo.xml")
    told: list[str] = []
    content = certify(str(TINY), tmp_path, told.append)
    assert content["equal"]
    assert content["workers"] == [1, 2]
    assert [run["workers"] for run in content["runs"][:2]] == [[1], [2]]
    assert len({run["digest"] for run in content["runs"]}) == 1
    assert [line["workers"] for line in content["speed"]] == [1, 2]
    for line in content["speed"]:
        assert line["ratio"] == pytest.approx(line["seconds"] / line["ddp_seconds"])
    assert content["ddp"] == {"steps": 4, "changes": True, "refused": ""}, "its batch norm does"
    assert content["recipe"] == TINY.name
    text = json.dumps(content).lower()
    for private in (HOST, "ward7", USER, HOME, str(tmp_path), str(TINY.parent), str(Path.cwd())):
        assert private.lower() not in text
    assert content["nccl"]["variables"] == {"NCCL_TOPO_FILE": "[folder]"}
    assert is_intact(json.loads(json.dumps(content)))
    assert not is_intact(content | {"equal": False})
    assert "the same bits after every step on 1 and 2 workers. " in verdict(content)
    assert "After 4 steps DDP's own weights differ between worker counts." in verdict(content)
    assert any("timing" in words for words in told)
    assert [title for title, *_ in tables(content)][:2] == ["Worker counts", "A step, beside DDP"]


def test_a_recipe_that_ddp_does_not_take_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> certify_module.Measured:
        if "ddp" in arguments[3]:
            raise UserError("ddp: no")
        return certify_module.Measured(speed=[{"workers": 1}], busy_cores=0.0, refused="")

    monkeypatch.setattr(certify_module, "_measure", refused)
    found = measure(None, "a", [1], lambda _: None)  # type: ignore[arg-type]
    assert (found.speed, found.refused) == ([{"workers": 1}], "ddp: no")


CONTENT = {
    "recipe": "digits",
    "device": "GPU",
    "workers": [1, 2],
    "trained": {"resumed_at": [3]},
    "equal": False,
    "difference": {"step": 3, "name": "model/weight", "cause": {"likely": "an atomic add"}},
    "speed": [{"workers": 2, "ratio": 1.5}],
    "busy_cores": 1.25,
    "ddp": {"steps": 5, "changes": False, "refused": ""},
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "the bits differ on 1 and 2 workers. They part at step 3, in model/weight; likely"),
        ({}, "takes 1.50 times as long as DDP's (while other processes used 1.2 cores)."),
        ({"busy_cores": 0.1}, "as DDP's. After 5 steps DDP's own weights do not depend on"),
        ({"workers": [1, 1], "equal": True}, "the same bits after every step on two runs on 1 wor"),
        ({"ddp": {"steps": 0, "changes": None, "refused": "why"}}, "DDP did not run: why."),
        ({"equal": True}, "on 1 and 2 workers, and when saved and continued. "),
        ({"difference": None}, "the bits differ on 1 and 2 workers. On 2 workers"),
    ],
)
def test_the_verdict(changes: dict[str, Any], says: str) -> None:
    assert says in verdict(seal(CONTENT | changes))
