"""Lines that are brought to the disk as they come."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from samepath.engine.lines import Lines


def test_eager_lines_are_synced_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fdatasync

    def watched(file: int) -> None:
        sync(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fdatasync", watched)
    lines = Lines(tmp_path / "metrics.jsonl", 0, eager=True)
    for number in range(3):
        lines.add(f"line {number}")
        lines.flush()
        until = time.monotonic() + 60
        while not synced or synced[-1] < 7 * (number + 1):
            assert time.monotonic() < until
            time.sleep(0.01)
    assert lines.close()
    assert not [t for t in threading.enumerate() if t.name == "samepath-sync"]
    assert (tmp_path / "metrics.jsonl").read_text() == "line 0\nline 1\nline 2\n"


def test_a_disk_that_refuses_is_told_to_whoever_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def failing(file: int) -> None:
        tried.set()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    monkeypatch.setattr(os, "fsync", failing)
    lines = Lines(tmp_path / "metrics.jsonl", 0, eager=True)
    lines.add("line")
    lines.flush()
    assert tried.wait(60)
    with pytest.raises(OSError, match="Input/output error"):
        lines.sync()
    assert not lines.close()
