"""Fixtures for tests of faults."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from braked_runs import Braked
from elastic_runs import RECIPE, harmful, undisturbed


@pytest.fixture(autouse=True)
def never_hang(request: pytest.FixtureRequest) -> Iterator[None]:
    """A hang is a failure of the test, not of the person who waits for it: where a module says
    LIMIT_SECONDS, none of its tests takes longer."""
    limit: int = getattr(request.module, "LIMIT_SECONDS", 0)

    def out_of_time(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {limit} s")

    before = signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(limit)  # 0: no limit
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def unhurt(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any]:
    """Digest and metrics of one worker that nothing happens to, after the module's EPOCHS: of the
    recipe that can be hurt, where the module uses it, else of the tiny one."""
    folder, epochs = tmp_path_factory.mktemp("unhurt"), request.module.EPOCHS
    is_hurt = hasattr(request.module, "harmful")
    return undisturbed(folder, epochs, harmful(folder, epochs=epochs) if is_hurt else RECIPE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Braked]:
    """A run that is slow until it is let go."""
    braked = Braked(tmp_path)
    yield braked
    braked.end()
