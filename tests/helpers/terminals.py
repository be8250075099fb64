"""A terminal of a width, and what a program writes to it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(
    command: Sequence[str | Path], width: int, folder: Path | None = None, **environment: str
) -> tuple[int, str]:
    """Run a program on a terminal: its exit code, and all that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    variables = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    variables |= {"TERM": "xterm", **environment}
    shown = b""
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=variables
    ) as process:
        os.close(theirs)
        with suppress(OSError):  # the terminal's other end is closed
            while part := os.read(ours, 65536):
                shown += part
    os.close(ours)
    return process.returncode, shown.decode()


def plain_lines(text: str) -> list[str]:
    """The lines as a person sees them, those that were drawn over as well."""
    return re.split(r"[\r\n]+", _ESCAPES.sub("", text))
