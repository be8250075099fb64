"""starlette's client for tests, imported quietly: it would rather have httpx2 than httpx."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `httpx`")
    from starlette.testclient import TestClient

__all__ = ["TestClient"]
