"""What a member of a cluster does for a study: it says what it is, and trains one run.

A member is a worker of Dask or a node of Ray. In: a Ticket, or the folder of a check. Out: what
became of the run; in its folder, everything else. Guaranteed: a run is trained in a process of its
own, which ends with the task's process; a finished run is not trained again and one that was begun
goes on from its checkpoint; while another process trains it, it is waited for; the run saves and
ends when the study lets go of the lock that it holds as long as it wants runs (it was stopped, or
killed).
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import samepath
from samepath.engine.checks.fingerprints import versions
from samepath.engine.comm.environment import without_launcher
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request
from samepath.files import content_hash, is_locked, write_atomically
from samepath.owners import die_with_parent
from samepath.study.runner import STOP_SECONDS, PlannedRun, clear_unbegun, status_of, train_and_tell
from samepath.threads import VARIABLES

LOOK_SECONDS = 1.0
WORD = "study"
"""The file that the study writes, and members read, to see that they share a folder."""


# ---- a member says what it is


class Facts(NamedTuple):
    """What a study must know of a member."""

    host: str
    versions: dict[str, str]
    """Versions as in run.json, and `source`: a hash of samepath's files."""
    word: str | None
    """What it read in the folder of the check; None: it cannot read it, or has no such folder."""
    mark: str | None
    """The file that it wrote there; None: it could not."""
    has_locks: bool
    """Whether it sees a lock of the study."""


def facts_here() -> dict[str, str]:
    """Versions, and a hash of samepath's own files."""
    folder = Path(samepath.__file__).parent
    lines = (f"{file.relative_to(folder)} {content_hash(file)}" for file in folder.rglob("*.py"))
    return versions() | {"source": hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()}


def examine(check: Path, start: Path) -> Facts:
    """Look at this member: its versions, and whether it shares the folder `check`, in which the
    study has written a word, and has `start`, in which the study was started."""
    word, mark = None, f"member-{uuid.uuid4().hex}"
    try:
        word = (check / WORD).read_text() if start.is_dir() else None
        write_atomically(check / mark, socket.gethostname())
        wrote: str | None = mark
    except OSError:
        wrote = None
    return Facts(socket.gethostname(), facts_here(), word, wrote, is_locked(check))


# ---- a member trains a run


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """One run to be trained, in a form that crosses machines."""

    run: PlannedRun
    request: Request
    cores: int
    """What it asks for."""
    study: Path
    """Its folder, absolute."""
    start: Path
    """Where the study was started: relative paths are meant from there."""
    wanted: Path
    """A folder that the study keeps locked as long as the run is to go on."""
    has_locks: bool
    """False: the file system shows no locks; then only the folder's removal ends the run."""

    @property
    def is_wanted(self) -> bool:
        return is_locked(self.wanted) if self.has_locks else self.wanted.is_dir()


class Outcome(NamedTuple):
    """What became of a run's task."""

    kind: Literal["ended", "stopped", "user", "failed", "lost"]
    """The run has ended; it was asked to save and end; something that the person can change;
    something else; the member is gone."""
    text: str = ""


def train_there(ticket: Ticket) -> Outcome:
    """Train a run in a process of its own, and watch it."""
    folder = ticket.study / ticket.run.folder
    while is_locked(folder) and ticket.is_wanted:  # a member that was given up may still train it
        time.sleep(LOOK_SECONDS)
    if not ticket.is_wanted:
        return Outcome("stopped")
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import main; main({words.fileno()})"],
            stdin=subprocess.PIPE,
            pass_fds=[words.fileno()],
            cwd=ticket.start,
            env=without_launcher(os.environ) | dict.fromkeys(VARIABLES, "1"),
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # it could not even begin; its code says how
                process.stdin.write(pickle.dumps(ticket))
                process.stdin.flush()
            _watch(process, ticket)
        finally:
            _end(process)
            with suppress(BrokenPipeError):
                process.stdin.close()  # not before: it is what the process lives by
        words.seek(0)
        said = words.read()
    if said:
        return Outcome(*json.loads(said))
    if status_of(ticket.study, ticket.run) is not None:
        return Outcome("ended")
    if not ticket.is_wanted:
        return Outcome("stopped")  # before it could say so
    return Outcome("failed", f"its process ended with code {process.returncode}")


def _watch(process: subprocess.Popen[bytes], ticket: Ticket) -> None:
    """Wait until a run's process has ended, or the run is not wanted any more."""
    while process.poll() is None and ticket.is_wanted:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a run to save and end, if it has not, and see that it does."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(words: int) -> None:
    """Train the run whose ticket comes on standard input, and write to a file what the study must
    be told, if anything."""
    die_with_parent()
    line = sys.stdin.buffer
    ticket: Ticket = pickle.load(line)
    number = line.fileno()
    threading.Thread(target=_die_with, args=[number], name="samepath-member", daemon=True).start()
    if status_of(ticket.study, ticket.run) is not None:
        return  # it ended before its last task could say so
    folder = ticket.study / ticket.run.folder
    clear_unbegun(folder)
    request = replace(ticket.request, resume=RunFolder(folder).holds_run)
    os.set_inheritable(words, False)
    with os.fdopen(words, "w") as file:
        train_and_tell(request, lambda kind, text: print(json.dumps([kind, text]), file=file))


def _die_with(line: int) -> None:
    """End this process when the one at the other end of the line has let go of it without asking
    this one to end, or has died."""
    os.read(line, 1)  # no file object: its lock would be taken when this process ends by itself
    os.kill(os.getpid(), signal.SIGKILL)
