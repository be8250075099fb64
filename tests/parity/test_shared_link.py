"""Shared memory that is not worker 0's is never mapped; in other namespaces the network is used."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from workers_by_hand import start_by_hand

from samepath.engine.comm import shared_memory
from samepath.engine.comm.environment import read_place
from samepath.engine.comm.network import Network
from samepath.engine.comm.shared_memory import SharedMemory, announce, have_announced, turns_in
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import choose_network

LENGTH = 2 * 64 + 2 * 2 * shared_memory.RECORD_BYTES


class Misled(Network):
    """Worker 1 finds something else by the process number and descriptor of worker 0."""

    victim: str

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        found = super().gather_bytes(mine)
        token, path = found[0][: shared_memory.TOKEN_BYTES], found[0][shared_memory.TOKEN_BYTES :]
        if self.worker == 1 and path.startswith(b"/proc/"):
            found[0] = token + self.victim.encode()
        return found


def misled(folder: str) -> None:
    """In a worker: whether it has refused each of them."""
    place, device = read_place(os.environ), torch.device("cpu")
    choose_network(place, device)
    network = Misled(place, device, 60.0)
    refused = {}
    for name in ("small", "equal", "pipe", "none"):
        network.victim = f"{folder}/{name}"
        try:
            SharedMemory(network)
            refused[name] = ""
        except OSError as error:
            refused[name] = str(error)
    network.victim = ""
    Path(folder, f"worker-{place.worker}.json").write_text(json.dumps(refused))
    network.close()


def test_what_is_not_worker_0s_memory_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "victims"
    folder.mkdir()
    (folder / "small").write_bytes(b"a thesis")
    whole = -(-(LENGTH + shared_memory.TOKEN_BYTES) // shared_memory.PAGE) * shared_memory.PAGE
    (folder / "equal").write_bytes(b"x" * whole)
    os.mkfifo(folder / "pipe")
    launch(misled, (str(folder),), 2)
    for worker in (0, 1):
        refused = json.loads((folder / f"worker-{worker}.json").read_text())
        assert all(refused.values()), "on all workers or none"
    assert "is not the memory of the worker that shares it" in refused["equal"]
    assert (folder / "small").read_bytes() == b"a thesis"
    assert (folder / "equal").read_bytes() == b"x" * whole


BODY = """
import json, sys, time
import numpy as np
import samepath

with samepath.start() as session:
    for turn in range(3):
        assert session.collective.agree(True)
        time.sleep(1.2 * session.worker)  # long enough to be looked for
    print(json.dumps({"link": type(session.collective).__name__}))
"""


def apart(how: list[str]) -> list[str]:
    """How two workers talk, of which the second is started in another way."""
    python = [sys.executable, "-c", BODY]
    started = start_by_hand([python, [*how, *python]], [{}, {}])
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    return [json.loads(text)["link"] for text in said]


def test_workers_of_one_namespace_share_memory() -> None:
    assert apart([]) == ["SharedMemory", "SharedMemory"]


@pytest.mark.skipif(os.getuid() != 0, reason="namespaces need root")
def test_process_numbers_of_another_namespace_are_not_believed() -> None:
    """A container beside another on one machine: its worker 7 is not our process 7."""
    assert apart(["unshare", "--pid", "--fork"]) == ["Network", "Network"]
    assert apart(["unshare", "--pid", "--fork", "--mount-proc"]) == ["Network", "Network"]


# ---- turns


def test_announcing_comes_after_what_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The barrier is before the number is written, and after it is read."""
    turns = turns_in(np.zeros(2 * shared_memory.TURN_BYTES, np.uint8))
    seen: list[list[int]] = []
    monkeypatch.setattr(shared_memory, "fence", lambda: seen.append(turns.tolist()))
    announce(turns, 0, 5)
    assert (seen, turns.tolist()) == ([[0, 0]], [5, 0])
    assert not have_announced(turns, 5)
    assert len(seen) == 1, "nothing to read yet"
    turns[1] = 6
    assert have_announced(turns, 5)
    assert seen[1:] == [[5, 6]]


def test_a_process_of_another_user_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ours(process: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_ours)
    memory = object.__new__(SharedMemory)
    memory.num_workers, memory._pids, memory.timeout_seconds = 2, [1, 2], 60.0
    memory._look_for_the_lost(np.zeros(2, np.int64), 1, 2.0)
