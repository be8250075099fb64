"""What is said to whoever watches, beside the results."""

from __future__ import annotations

import sys


def say(text: object) -> None:
    """In one line."""
    print(f"samepath: {text}", file=sys.stderr, flush=True)
