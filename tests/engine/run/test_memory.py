"""What a run tells the allocator."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from samepath.engine.run.memory import keep_freed_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
CHOSEN = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What glibc's mallopt is asked for, nothing else being set."""
    calls: list[tuple[int, int]] = []
    mallopt = ctypes.CDLL(None).mallopt

    def record(name: int, value: int) -> int:
        calls.append((name, value))
        return int(mallopt(name, value))

    for name in CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=record))
    return calls


def test_glibc_takes_both_settings_unless_a_person_chose(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keep_freed_memory()
    assert asked == [(-3, 32 << 20), (-1, 2**31 - 1)]
    for name in CHOSEN:
        with monkeypatch.context() as chosen:
            chosen.setenv(name, "x")
            assert not keep_freed_memory()
    assert len(asked) == 2
