"""`samepath doctor`: what it looks at, and when it has something to say."""

from __future__ import annotations

import json
import re
import resource
import tomllib
from pathlib import Path

import pytest
from commands import samepath

from samepath.insight.doctor import (
    EXTRAS,
    GIB,
    Finding,
    cpu_quota,
    examine,
    judge_cores,
    judge_disk,
    judge_files,
    judge_shared,
    judge_torch,
    judge_writing,
)

NAMES = (
    *("machine", "cores", "memory", "torch", "BLAS", "GPUs", "C++ compiler", "launchers"),
    *("optional packages", "network", "shared memory", "left by killed processes", "open files"),
    *("disk", "temporary folder", "run folders", "variables"),
)


def test_this_machine(tmp_path: Path) -> None:
    """Everything is looked at, and nothing stays behind."""
    said = json.loads(samepath("doctor", tmp_path, "--json"))["findings"]
    assert tuple(each["name"] for each in said) == NAMES
    found = {each["name"]: each for each in said}
    assert found["run folders"] == {
        "name": "run folders",
        "found": "writable, with locks, the clock is this machine's",
        "advice": "",
    }
    assert "workers can connect on 127.0.0.1" in found["network"]["found"]
    assert list(tmp_path.iterdir()) == []
    out = samepath("doctor", tmp_path)
    assert "run folders" in out
    assert "to look at" in out or "nothing is wrong" in out


def test_packages_of_all_extras_are_listed() -> None:
    content = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = content["project"]["optional-dependencies"]
    needed = [
        need for name in extras.keys() - {"dev", "docs", "benchmarks"} for need in extras[name]
    ]
    assert {re.split("[<>=]", need)[0] for need in needed} <= set(EXTRAS)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    found = {each.name: each for each in examine(tmp_path / "none")}
    assert found["disk"].found.endswith("is not there")
    assert found["run folders"].found == "cannot be written (No such file or directory)"
    assert "give another --out" in found["run folders"].advice


FINE = (
    judge_cores(4, 8, None, 0.1),
    judge_cores(4, 8, 4.0, 0.1),
    judge_torch("2.13.0+cpu"),
    judge_shared(2 * GIB, 4 * GIB),
    judge_files((1024, 4096)),
    judge_files((resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    judge_disk("disk", Path("/a"), 2 * GIB, 4 * GIB),
    judge_writing("run folders", -0.5, has_locks=True),
)
WRONG = (
    (judge_cores(4, 8, 1.5, 0.1), "-n 1"),
    (judge_cores(4, 8, None, 1.0), "times that are measured now are too long"),
    (judge_torch("2.14.1"), "tested with 2.13.0"),
    (judge_shared(GIB // 8, GIB), "--shm-size=2g"),
    (judge_shared(None, 0), "mount /dev/shm"),
    (judge_files((256, 4096)), "ulimit -n 4096"),
    (judge_disk("disk", Path("/a"), GIB // 2, 4 * GIB), "two checkpoints"),
    (judge_writing("run folders", 90.0, has_locks=True), "set the clocks"),
    (judge_writing("run folders", 0.0, has_locks=False), "a file system with locks"),
)


@pytest.mark.parametrize("finding", FINE, ids=lambda finding: finding.found)
def test_nothing_is_said_where_all_is_well(finding: Finding) -> None:
    assert finding.advice == ""


@pytest.mark.parametrize(("finding", "advice"), WRONG)
def test_what_is_wrong_has_a_remedy(finding: Finding, advice: str) -> None:
    assert advice in finding.advice


def test_the_time_that_a_container_has(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    assert cpu_quota(file) is None
    file.write_text("max 100000\n")
    assert cpu_quota(file) is None
    file.write_text("150000 100000\n")
    assert cpu_quota(file) == 1.5
