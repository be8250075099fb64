"""Files are replaced whole; one process at a time locks a folder, and asking disturbs no other."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from samepath import files
from samepath.errors import UserError
from samepath.files import (
    LOCK,
    folder_aside,
    is_empty,
    is_locked,
    lock_folder,
    replaced,
    take_lock,
    write_atomically,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- writing


@pytest.mark.parametrize("private", [False, True])
def test_the_old_or_the_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    file = tmp_path / "run.json"
    file.write_text("old")
    file.chmod(0o644)

    modes: list[int] = []

    def full(self: Path, target: Path) -> None:
        modes.append(stat.S_IMODE(self.stat().st_mode))
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="full"):
            write_atomically(file, "new", private=private)
    assert file.read_text() == "old"
    assert names(tmp_path) == ["run.json"]
    write_atomically(file, "ny \u00e5", private=private)
    assert file.read_bytes() == "ny \u00e5".encode()
    modes.append(stat.S_IMODE(file.stat().st_mode))
    assert [mode == 0o600 for mode in modes] == [private] * 2, "not while it is written either"
    assert names(tmp_path) == ["run.json"]


@pytest.mark.parametrize("sync", [False, True])
def test_synced_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    synced: list[tuple[str, bool]] = []
    file = tmp_path / "file"

    def note(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, file.exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_atomically(file, "text", sync=sync)
    assert synced == ([("file.part", False), (tmp_path.name, True)] if sync else [])


def test_a_writer_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), replaced(tmp_path / "file") as aside:
        aside.write_text("half")
        raise KeyboardInterrupt
    with suppress(KeyboardInterrupt), folder_aside(tmp_path / "folder") as aside:
        (aside / "file").write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_is_filled_beside_its_place(tmp_path: Path, shared: bool) -> None:
    (tmp_path / "made.part").mkdir()
    (tmp_path / "made.part" / "of a process that was killed").touch()
    with folder_aside(tmp_path / "made", shared=shared) as aside:
        assert names(aside) == []
        assert (aside.name == "made.part") != shared
        (aside / "file").touch()
        aside.rename(tmp_path / "made")
    assert names(tmp_path / "made") == ["file"]
    assert names(tmp_path) == (["made", "made.part"] if shared else ["made"])


# ---- locks


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_locked(tmp_path)
    lock = take_lock(tmp_path)
    assert lock is not None
    assert is_locked(tmp_path)
    assert is_empty(tmp_path)
    assert take_lock(tmp_path) is None
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
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
