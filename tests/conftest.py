"""Settings and fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples every time: a test that fails fails for everybody. Slow machines are no failure.
settings.register_profile("samepath", derandomize=True, deadline=None)
settings.load_profile("samepath")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of real processes go first: they are long, and mostly wait."""
    items.sort(key=lambda item: item.path.parent.name not in ("faults", "parity", "docs"))


@pytest.fixture(autouse=True)
def ctrl_c_stays_what_it_was() -> Iterator[None]:
    """A test that changes what SIGINT does, by an import of a library too, changes later tests."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(scope="session")
def fork_server() -> None:
    """The launcher's fork server runs, with torch imported."""
    from samepath.engine.launch.launch import launch

    launch(int, (), 1)


@pytest.fixture
def forked(fork_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `verify` trains on one worker, it trains in a process from the fork server."""
    from forked import train_in_forked_process

    from samepath.engine.verify import runs

    monkeypatch.setattr(runs, "train_in_fresh_process", train_in_forked_process)
