"""Workers that no launcher starts: processes with the variables that torchrun would give them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


def start_by_hand(
    commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]], **more: Any
) -> list[subprocess.Popen[str]]:
    """Start a command for each worker, with environment variables of its own."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    number = str(len(commands))
    place = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1"}
    return [
        subprocess.Popen(
            command,
            env={
                **os.environ, **place, "MASTER_PORT": str(port), "RANK": str(worker),
                "LOCAL_RANK": str(worker), **variables[worker],
            },
            stdout=subprocess.PIPE,
            text=True,
            **more,
        )
        for worker, command in enumerate(commands)
    ]  # fmt: skip
