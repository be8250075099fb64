"""Network namespaces as machines: one per worker, joined by a bridge, with a link of a given speed.

Needs root and iproute2. Everything made here is removed again, also after an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PREFIX = f"samepath-{os.getpid()}"
"""Of the namespaces of this process: others have their own."""


def available() -> str | None:
    """None where namespaces can be made, else why not."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 (ip, tc) is not installed"
    if os.geteuid() != 0:
        return "root is needed to make network namespaces"
    made = subprocess.run(["ip", "netns", "add", f"{PREFIX}-try"], capture_output=True, text=True)
    if made.returncode:
        return f"no namespace can be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", f"{PREFIX}-try"], check=True)
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def machines(count: int, rate: str | None = None) -> Iterator[list[str]]:
    """So many namespaces on one bridge; `rate` (1gbit) shapes what each sends."""
    names = [f"{PREFIX}-{number}" for number in range(count)]
    bridge = f"{PREFIX}-br"
    try:
        _ip("netns", "add", bridge)
        _ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", bridge, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            _ip("link", "add", "eth0", "netns", name, "type", "veth",
                "peer", "name", f"p{number}", "netns", bridge)  # fmt: skip
            _ip("-n", bridge, "link", "set", f"p{number}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            if rate is not None:
                subprocess.run(
                    ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root",
                     "tbf", "rate", rate, "burst", "256kb", "latency", "20ms"],
                    check=True,
                )  # fmt: skip
        yield names
    finally:
        for name in [*names, bridge]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def run_on(names: Sequence[str], script: Path, request: dict[str, object]) -> dict[str, object]:
    """Run a script once per machine as workers of one job; what worker 0 prints, as JSON."""
    started = []
    for worker, name in enumerate(names):
        variables = os.environ | {
            "RANK": str(worker),
            "WORLD_SIZE": str(len(names)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "eth0",
            "SAMEPATH_LINK": "network",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # these machines have no names, and torch says so
        }
        command = ["ip", "netns", "exec", name, sys.executable, str(script), json.dumps(request)]
        started.append(
            subprocess.Popen(
                command,
                env=variables,
                stdout=subprocess.PIPE if worker == 0 else subprocess.DEVNULL,
                text=True,
            )
        )
    output, _ = started[0].communicate()
    if any(process.wait() for process in started):
        raise RuntimeError(f"a worker of {request} failed")
    found: dict[str, object] = json.loads(output.strip().splitlines()[-1])
    return found


def bytes_sent() -> int:
    """What this machine has put on its link so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())
