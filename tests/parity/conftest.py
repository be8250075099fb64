"""Fixtures of parity tests."""

from __future__ import annotations

import pytest
from forked import train_in_forked_process

from samepath.engine.launch.launch import launch
from samepath.engine.verify import runs


@pytest.fixture(scope="session")
def server() -> None:
    """The fork server runs, with torch imported."""
    launch(int, (), 1)


@pytest.fixture
def forked(server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `verify` trains on one worker, it trains in a process from the fork server."""
    monkeypatch.setattr(runs, "_train_in_fresh_process", train_in_forked_process)
