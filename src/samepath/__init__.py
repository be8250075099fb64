"""samepath: add workers, keep the path.

The names below load on first use, so that `import samepath` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from samepath.version import __version__

if TYPE_CHECKING:
    from samepath.data import Draws as Draws
    from samepath.engine.session import Session as Session
    from samepath.engine.session import start as start
    from samepath.recipe import Recipe as Recipe

_HOMES = {
    "Draws": "samepath.data",
    "Recipe": "samepath.recipe",
    "Session": "samepath.engine.session",
    "start": "samepath.engine.session",
}

__all__ = ["Draws", "Recipe", "Session", "__version__", "start"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'samepath' has no attribute {name!r}")
