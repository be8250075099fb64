"""Who may write to a folder: one, and those who only look disturb nobody."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from samepath.engine.state import folder_lock
from samepath.engine.state.folder_lock import LOCK, is_empty, is_locked, lock_folder, take_lock
from samepath.errors import UserError


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_locked(tmp_path)
    lock = take_lock(tmp_path)
    assert lock is not None
    assert is_locked(tmp_path)
    assert is_empty(tmp_path)
    assert take_lock(tmp_path) is None
    monkeypatch.setattr(folder_lock, "LOCK_SECONDS", 0.2)
    with pytest.raises(UserError, match="busy by another process; wait for it, or stop it"):
        lock_folder(tmp_path, "busy")
    os.close(lock)
    assert not is_locked(tmp_path)
    os.close(lock_folder(tmp_path, "busy"))


def test_the_folder_itself_where_the_file_cannot_be_opened(tmp_path: Path) -> None:
    elsewhere = tmp_path.with_name("elsewhere")
    (tmp_path / LOCK).symlink_to(elsewhere)
    lock = take_lock(tmp_path)
    assert lock is not None
    assert is_locked(tmp_path)
    assert take_lock(tmp_path) is None
    assert not elsewhere.exists()
    os.close(lock)


def test_a_disk_that_has_become_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = take_lock(tmp_path)
    assert lock is not None
    plain_open = os.open

    def only_to_read(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return plain_open(path, flags, mode)

    monkeypatch.setattr(os, "open", only_to_read)
    assert take_lock(tmp_path) is None, "it is the same lock"
    os.close(lock)


def test_looking_is_not_seen(tmp_path: Path) -> None:
    os.close(lock_folder(tmp_path, "busy"))
    for place in (tmp_path, tmp_path / LOCK):
        looking = os.open(place, os.O_RDONLY)
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_locked(tmp_path)
        os.close(looking)
    stop, seen = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            seen.append(is_locked(tmp_path))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    stop.wait(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert seen
    assert not any(seen)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    locks = take_lock(tmp_path), take_lock(tmp_path)
    assert not is_locked(tmp_path)
    for lock in locks:
        assert lock is not None
        os.close(lock)
