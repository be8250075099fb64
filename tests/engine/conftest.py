"""Fixtures for tests of workers that come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from meetings import Table

from samepath import console
from samepath.engine.elastic import rendezvous, ring, signed_store


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a meeting that are short."""
    monkeypatch.setattr(rendezvous, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(rendezvous, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(signed_store, "STORE_SECONDS", 2.0)


@pytest.fixture
def table(quick: None) -> Iterator[Table]:
    with closing(Table()) as made:
        yield made


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of steps in memory: not the machine's."""
    monkeypatch.setattr(ring, "MEMORY", tmp_path)
    return tmp_path / f"samepath-{os.getuid()}"
