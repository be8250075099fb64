"""The network between two machines is cut: for a moment, for a while, for good.

The machines are namespaces of this host: a network address, a name and a /dev/shm of their own each
(so that workers do talk through the network, and no step is kept where the other would find it).
What is cut is cut silently, as by a switch that died: nobody is told that a connection has ended.
"""

from __future__ import annotations

import subprocess
import time

import pytest
from braked_runs import Braked, listening, undisturbed
from elastic_runs import lines

import namespaces

LIMIT_SECONDS = 600
WHY_NOT = namespaces.available()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def on(machine: str) -> list[str]:
    """What starts a command there."""
    own = f'mount -t tmpfs tmpfs /dev/shm && hostname {machine} && exec "$@"'
    return ["ip", "netns", "exec", machine, "unshare", "-m", "-u", "sh", "-c", own, "sh"]


def plug(machine: int, *words: str) -> None:
    """Change what a machine's cable ends in."""
    bridge = f"{namespaces.PREFIX}-br"
    subprocess.run(["ip", "-n", bridge, "link", "set", f"p{machine}", *words], check=True)


def test_cuts(run: Braked) -> None:
    with namespaces.machines(2) as (here, there):
        leader = run.train(
            "--checkpoint-steps", "1000",
            "-n", "1:2", "--here", "1", "--interface", "eth0", "--timeout", "10", before=on(here)
        )  # fmt: skip
        other = run.join("--here", "1", "--interface", "eth0", before=on(there))
        run.await_workers(2, leader, other)
        run.await_steps()
        for number, machine in enumerate((leader, other), 1):
            assert listening(machine.process.pid) == {f"10.77.0.{number}"}

        workers = run.workers()
        plug(1, "nomaster")
        time.sleep(1)
        plug(1, "master", "br0")
        run.await_steps()
        assert run.workers() == workers, "a moment changes nothing"

        plug(1, "nomaster")
        began = time.monotonic()
        run.await_workers(1, leader)
        assert time.monotonic() - began < 30, "silence is found out long before TCP gives up"
        run.await_steps()
        other.await_words("the machine that led the run is gone; looking for another")
        plug(1, "master", "br0")
        run.await_workers(2, leader, other)
        run.await_steps()

        step = lines(run.out)[-1]["step"]
        leader.kill()  # and what its machine had in memory is gone with it
        run.await_workers(1, other)
        assert lines(run.out)[-1]["step"] >= step - 1, "nothing is lost: the other has it too"
        assert not (run.out / "checkpoints").exists()
        run.let_go()
        assert other.outcome() == undisturbed(run.folder)
