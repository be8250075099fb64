"""Who can reach a run, and what strangers can do there.

What runs on one machine listens on loopback and nowhere else (several machines: test_network_cut).
"""

from __future__ import annotations

import json
import random
import socket
import stat
from contextlib import ExitStack
from dataclasses import replace

import pytest
from braked_runs import EPOCHS, RECIPE, Braked, listening, undisturbed

from samepath.engine.elastic.machine import WorkerRange
from samepath.engine.elastic.rendezvous import Rendezvous
from samepath.engine.elastic.signed_store import Endpoint, LeaderLost, reach_store

LIMIT_SECONDS = 600
OWN_LOOP = """
import os, sys, time
from pathlib import Path
import samepath

folder = Path(sys.argv[1])
with samepath.start() as session:
    (folder / f"own-{session.worker}").touch()
    while (folder / "brake").exists():
        time.sleep(0.05)
"""
TALK = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    bytes(4096),
    bytes(range(256)) * 64,
    b"\xff" * 4096,
    # what c10d's clients begin with; then something to set, with a name of 2^56 bytes
    bytes.fromhex("00cef7853c01") + (1 << 56).to_bytes(8, "little"),
    *(random.Random(number).randbytes(2000) for number in range(8)),
)


def test_one_machine_is_enough(run: Braked) -> None:
    script = run.folder / "own_loop.py"
    script.write_text(OWN_LOOP)
    # the recipe's path is relative to where the run is started, and another joins elsewhere
    ranged = run.start(
        "train", RECIPE.name, "--epochs", str(EPOCHS), "--out", run.out, "-n", "1:2", "--here", "1",
        before=["env", "-C", str(RECIPE.parent)],
    )  # fmt: skip
    joined = run.join("--here", "1", before=["env", "-C", "/"])
    fixed = run.start(
        "train", RECIPE, "-n", "2", "--epochs", str(EPOCHS), "--out", run.folder / "fixed",
        SAMEPATH_LINK="network",
    )  # fmt: skip
    own = run.start("run", "-n", "2", script, run.folder, as_json=False)
    run.await_workers(2, ranged, joined)
    run.await_workers(2, fixed)
    run.await_((run.folder / "own-1").exists)
    for machine in (ranged, joined, fixed, own):
        assert listening(machine.process.pid) == {"127.0.0.1"}

    meeting = run.out / "meeting.json"
    assert stat.S_IMODE(meeting.stat().st_mode) == 0o600
    endpoint = Endpoint(**json.loads(meeting.read_text()))
    with ExitStack() as stack:
        disturb(endpoint, stack)
        run.await_steps()
        run.let_go()
        found = ranged.outcome()  # with all those connections open
    assert found == undisturbed(run.folder)
    assert fixed.result()["digest"] == found[0]
    assert own.exit_code() == 0


def disturb(endpoint: Endpoint, stack: ExitStack) -> None:
    """What somebody can do who has found the port and has not read the secret."""
    for words in TALK:
        where = (endpoint.address, endpoint.port)
        stranger = stack.enter_context(socket.create_connection(where, timeout=5))
        stranger.sendall(words)
    with pytest.raises(LeaderLost, match="belongs to another run"):
        Rendezvous(WorkerRange(least=1, most=2), 1, endpoint=replace(endpoint, secret="0" * 32))
    store = reach_store(endpoint.address, endpoint.port)
    for name in ("open", "closed", "members", "rounds", "call/1", "round/1", "ready/1/0"):
        assert not store.check([name])
        store.set(name, "x")  # where nobody looks
