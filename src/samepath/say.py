"""What is said to whoever watches, beside the results."""

from __future__ import annotations

import sys

from samepath.terminal import may_be_closed


def say(text: object) -> None:
    """In one line."""
    with may_be_closed():
        print(f"samepath: {text}", file=sys.stderr, flush=True)
