"""Whose something is that outlives its process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samepath import owners

BEYOND = 2**22 + 1
"""Above the largest number of a process."""
CODE = "from samepath.owners import mark; print(mark(), flush=True)"


def said(*before: str, code: str = CODE) -> str:
    """What a process that has ended printed."""
    command = [*before, sys.executable, "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def test_this_process_lives_and_one_that_has_ended_does_not() -> None:
    assert re.fullmatch(owners.MARK, owners.mark())
    assert owners.lives(owners.mark())
    assert not owners.lives(said())


def test_one_that_nobody_has_waited_for_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True) as dead:
        assert dead.stdout is not None
        mark = dead.stdout.readline().strip()
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{dead.pid}").exists(), "it is a zombie"
        assert not owners.lives(mark)


def test_another_with_the_same_number_is_another() -> None:
    process, born, world = owners.mark().split("-")
    assert not owners.lives(f"{process}-{int(born) + 1}-{world}")
    assert not owners.lives(f"{BEYOND}-{born}-{world}")


def test_what_cannot_be_seen_from_here_is_not_called_dead() -> None:
    _, born, world = owners.mark().split("-")
    elsewhere = f"{int(world, 16) ^ 1:08x}"
    assert owners.lives(f"{BEYOND}-{born}-{elsewhere}"), "of another machine, or a container"
    for strange in ("", "x", "7", "1-2", f"{BEYOND}-{born}-{world}-more"):
        assert owners.lives(strange)


@pytest.mark.skipif(os.getuid() != 0, reason="namespaces need root")
def test_a_container_is_another_world() -> None:
    inner = said("unshare", "--pid", "--fork", "--mount-proc")
    assert inner.split("-")[2] != owners.mark().split("-")[2]
    assert owners.lives(inner), "who knows"


def test_where_the_system_does_not_tell_when_it_was_born(monkeypatch: pytest.MonkeyPatch) -> None:
    world = owners.mark().split("-")[2]
    assert owners.lives(f"{os.getpid()}-0-{world}")
    assert not owners.lives(f"{BEYOND}-0-{world}")

    def not_ours(process: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_ours)
    assert not owners.lives(f"{os.getpid()}-0-{world}"), "another user has the number now"


def test_a_name_that_holds_anything() -> None:
    """/proc gives it between brackets, unquoted."""
    named = "open('/proc/self/comm', 'w').write('a) Z 1 2 (')\n"
    assert said(code=named + CODE).split("-")[1] != "0"


def test_an_owned_folder_shows_it_and_goes() -> None:
    with owners.owned_folder("kind-") as folder:
        assert Path(folder).name.startswith(f"samepath-{owners.mark()}-kind-")
    assert not Path(folder).exists()
