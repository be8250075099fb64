"""Lines that are brought to the disk as they come."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from samepath.engine.state import metrics_log as lines_module
from samepath.engine.state.metrics_log import Lines


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


@pytest.mark.parametrize("eager", [False, True])
def test_more_than_is_kept_is_synced_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    """A quick run writes megabytes between two checkpoints."""
    monkeypatch.setattr(lines_module, "MOST_UNSYNCED", 1000)
    synced: list[int] = []
    sync = os.fsync

    def watched(file: int) -> None:
        sync(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", watched)
    lines = Lines(tmp_path / "metrics.jsonl", 0, eager=eager)
    expected = ""
    for number in range(500):
        lines.add(f"line {number:04}")
        lines.flush()
        expected += f"line {number:04}\n"
    assert (tmp_path / "metrics.jsonl").read_text() == expected
    # each time that the kernel alone has had more than 1000 bytes: 101 lines of 10
    assert synced == [1010, 2020, 3030, 4040]
    lines.sync()
    assert synced[-1] == 5000
    assert lines.close()


def test_one_line_larger_than_all_that_is_kept(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "metrics.jsonl", 0)
    long = "x" * (lines_module.MOST_UNSYNCED + 1)
    lines.add(long)
    lines.flush()
    lines.add("short")
    assert lines.close()
    assert (tmp_path / "metrics.jsonl").read_text() == f"{long}\nshort\n"


def test_a_disk_that_refuses_on_the_way_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may not have is written once more, and in order."""
    monkeypatch.setattr(lines_module, "MOST_UNSYNCED", 100)
    sync, fails = os.fsync, True

    def failing(file: int) -> None:
        if fails:
            os.ftruncate(file, os.fstat(file).st_size - 30)  # pages that it lost
            raise OSError(5, "Input/output error")
        sync(file)

    monkeypatch.setattr(os, "fsync", failing)
    lines = Lines(tmp_path / "metrics.jsonl", 0)
    expected, refused = "", 0
    for number in range(60):
        fails = 15 < number < 40
        lines.add(f"line {number:04}")
        expected += f"line {number:04}\n"
        try:
            lines.flush()
        except OSError:
            refused += 1
    assert refused > 10
    assert lines.close()
    assert (tmp_path / "metrics.jsonl").read_text() == expected
