"""What every result says of where it comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """The commit, and whether there was more than it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return found.stdout.strip()
