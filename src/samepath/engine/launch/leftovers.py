"""What killed processes have left on this machine, and no run needs.

In: nothing. Out: what there is, and why it can go. Guaranteed: what belongs to a process that lives
stays, and so does the last step of a run that can still go on from it: its folder is there, it has
not ended, and no checkpoint is as new. What does not show whose it is stays too.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import multiprocessing.util
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samepath import owners
from samepath.engine.elastic import ring
from samepath.engine.state.checkpoint import list_checkpoints, step_of
from samepath.engine.state.run_folder import ENDED, RunFolder
from samepath.errors import UserError
from samepath.files import is_locked, read_whole

OWNER = "samepath-owner"
"""The file in a folder that Python names that says the process it belongs to."""
_FOLDER = re.compile(rf"samepath-({owners.MARK})-")
_SEMAPHORE = re.compile(rf"sem\.samepath-({owners.MARK})-")


@dataclass(frozen=True)
class Leftover:
    """Something that belongs to no living process."""

    path: Path
    what: str
    num_bytes: int


def find(run_id: str | None = None) -> list[Leftover]:
    """List all that can go: nothing of this run (whose folder may have been moved)."""
    return [*_steps(run_id), *_semaphores(), *_folders()]


def remove(found: list[Leftover]) -> list[Leftover]:
    """Remove leftovers; which are still there."""
    for each in found:
        with suppress(OSError):  # another process is at it, or may and we may not
            if each.path.is_dir():
                shutil.rmtree(each.path)
            else:
                each.path.unlink()
    return [each for each in found if os.path.lexists(each.path)]


def is_wanted(run_id: str, folder: Path) -> bool:
    """Whether a run can still go on from what is in memory."""
    run = RunFolder(folder)
    try:
        if not run.holds_run or run.run_id() != run_id or run.read()["status"] in ENDED:
            return False
        saved = list_checkpoints(run.checkpoints)
        return (
            is_locked(folder)
            or not saved
            or step_of(saved[-1]) < max(map(ring.newest_step, ring.files(run_id)), default=0)
        )
    except (OSError, UserError):
        return True  # it cannot be read now, and may be there


# ---- what shows whose it is


@contextmanager
def marked_semaphores() -> Iterator[None]:
    """Python's semaphores have names in shared memory, and are removed by a process of its own,
    which may be killed too: those that are made here show whose they are."""
    made: Any = multiprocessing.synchronize.SemLock  # whose names joblib also makes, if it is there
    before = vars(made)["_make_name"]
    made._make_name = staticmethod(lambda: f"/samepath-{owners.mark()}-{secrets.token_hex(4)}")
    try:
        yield
    finally:
        made._make_name = before


def mark_socket_folder() -> None:
    """Make the folder of multiprocessing's sockets (`pymp-...`), if there is none yet, and say in
    it whose it is."""
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:  # else it may be that of the process that started this one
        with suppress(OSError):  # a full disk: said when workers cannot be started for it
            folder = Path(multiprocessing.util.get_temp_dir())
            (folder / OWNER).write_text(owners.mark())


def _steps(run_id: str | None) -> Iterator[Leftover]:
    runs: dict[str, list[Path]] = {}
    for file in ring.files_of_the_dead("*"):
        runs.setdefault(file.name.split(".")[0], []).append(file)
    for files in runs.values():
        # the small ones first: of a large one every byte is read before it is believed
        known = (ring.run_of(file) for file in sorted(files, key=_size))
        run = next((run for run in known if run is not None), None)
        if run is None or not (run[0] == run_id or is_wanted(*run)):
            yield from (Leftover(file, "last step of a run", _size(file)) for file in files)


def _semaphores() -> Iterator[Leftover]:
    for file in ring.MEMORY.glob("sem.samepath-*"):
        found = _SEMAPHORE.match(file.name)
        if found is not None and _is_ours(file, stat.S_ISREG) and not owners.lives(found[1]):
            yield Leftover(file, "semaphore", _size(file))


def _folders() -> Iterator[Leftover]:
    for place in {tempfile.gettempdir(), "/tmp"}:  # where there is no room for a socket's name
        for folder in Path(place).glob("samepath-*"):
            found = _FOLDER.match(folder.name)
            if found is not None and _is_ours(folder, stat.S_ISDIR) and not owners.lives(found[1]):
                yield Leftover(folder, "temporary folder", _size(folder))
        for folder in Path(place).glob("pymp-*"):
            with suppress(OSError, ValueError):
                if _is_ours(folder, stat.S_ISDIR):
                    owner = read_whole(folder / OWNER, 100).decode()
                    if not owners.lives(owner):
                        yield Leftover(folder, "folder of sockets", _size(folder))


def _is_ours(path: Path, is_kind: Any) -> bool:
    """This user's, and no link to anything else."""
    with suppress(OSError):
        facts = path.lstat()
        return facts.st_uid == os.getuid() and bool(is_kind(facts.st_mode))
    return False


def _size(path: Path) -> int:
    """Bytes on disk or in memory."""
    total = 0
    with suppress(OSError):
        total = path.lstat().st_blocks * 512
        if path.is_dir():
            total += sum(each.lstat().st_blocks * 512 for each in path.rglob("*"))
    return total
