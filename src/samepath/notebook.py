"""`samepath.train` and `samepath.verify`: the commands, for notebooks and scripts.

In: a recipe's name or path, and the command's settings by name. Out: what came of it. Progress is
drawn in the notebook's cell, or in the terminal, also where workers are processes of their own:
they tell it to this process through a socket in a folder that only this user can open.
"""

from __future__ import annotations

import difflib
import html
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from samepath.console import LiveWatcher, SilentWatcher, Watcher
from samepath.engine.run.options import Overrides
from samepath.engine.state.progress import RunResult
from samepath.engine.train import Request
from samepath.engine.train import train as train_request
from samepath.engine.verify.verify import Verdict, VerifyRequest
from samepath.engine.verify.verify import verify as verify_request
from samepath.errors import UserError
from samepath.owners import owned_folder

DRAW_SECONDS = 0.2
LAST_WORDS_SECONDS = 1.0
_MORE = {
    "train": (
        *("data", "keep", "resume", "overwrite", "checkpoint_steps", "tensorboard"),
        *("log", "other_hardware", "timeout_seconds"),
    ),
    "verify": ("data", "keep"),
}
"""Settings beside those that replace the recipe's."""
_NOT_FOR_PEOPLE = {"patience", "hold"}
"""Those of studies; what a person calls patience is `stop_patience`."""
_TOLD = ("progress", "end", "note", "close")


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended, or was stopped."""

    folder: Path
    result: RunResult

    def metrics(self) -> list[dict[str, Any]]:
        """The run's log: a line for each step and evaluation."""
        from samepath.engine.state.run_folder import RunFolder

        return RunFolder(self.folder).read_metrics()


def train(
    recipe: str | Path,
    *,
    num_workers: int | Literal["auto"] = "auto",
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train a recipe, as `samepath train` does; `settings` are its options (`epochs=20`,
    `learning_rate=0.01`, `resume=True`, ...)."""
    with _progress(shown=progress) as display:
        request = _request(
            *(Request, "train", settings),
            recipe=str(recipe),
            num_workers=num_workers,
            out=None if out is None else Path(out),
            display=display,
            command=tuple(sys.argv),
        )
        result, folder = train_request(request)
    return TrainedRun(folder, result)


def verify(
    recipe: str | Path,
    counts: Sequence[int] | None = None,
    *,
    progress: bool = True,
    **settings: Any,
) -> Verdict:
    """Train a recipe at several numbers of workers and compare, as `samepath verify` does; the
    verdict's `equal` says whether all were the same bits."""
    with _progress(shown=progress) as display:
        return verify_request(
            _request(
                *(VerifyRequest, "verify", settings),
                recipe=str(recipe),
                counts=counts,
                display=display,
            )
        )


def _request(kind: Callable[..., Any], name: str, settings: dict[str, Any], **given: Any) -> Any:
    allowed = sorted({*Overrides.__dataclass_fields__, *_MORE[name]} - _NOT_FOR_PEOPLE)
    for setting in settings:
        if setting not in allowed:
            near = difflib.get_close_matches(setting, allowed, 1)
            hint = f"do you mean {near[0]!r}?" if near else f"it takes {', '.join(allowed)}"
            raise UserError(f"samepath.{name}() has no setting {setting!r}; {hint}")
    return kind(**given, **settings)


# ---- progress


class NotebookWatcher(Watcher):
    """Shows progress in a notebook's cell."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._parts = HTML, dict[str, tuple[float, float | None, str]]()
        self._notes: list[str] = []
        self._drawn = 0.0
        self._cell = display(HTML(""), display_id=True)

    def progress(self, what: str, done: float, total: float | None, facts: str = "") -> None:
        self._parts[what] = (done, total, facts)
        if time.monotonic() - self._drawn > DRAW_SECONDS:
            self._draw()

    def end(self, what: str, said: str | None = None) -> None:
        self._parts.pop(what, None)
        if said is not None:
            self._notes.append(said)
        self._draw()

    def note(self, text: str) -> None:
        self._notes.append(text)
        self._draw()

    def close(self) -> None:
        self._parts.clear()
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        rows = [f"<div>{html.escape(note)}</div>" for note in self._notes]
        for what, (done, total, facts) in self._parts.items():
            bar = "" if total is None else f'<progress value="{done}" max="{total}"></progress> '
            rows.append(f"<div>{html.escape(what)} {bar}{html.escape(facts)}</div>")
        self._cell.update(self._html("".join(rows)))


def in_notebook() -> bool:
    """Whether this process is a notebook's."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Relay(Watcher):
    """Tells the process that asked, in whichever process a worker is."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)

    def _tell(self, *words: Any) -> None:
        with suppress(OSError):  # who asked is gone; training goes on
            self._socket.sendall(json.dumps(words).encode() + b"\n")

    def progress(self, what: str, done: float, total: float | None, facts: str = "") -> None:
        self._tell("progress", what, float(done), None if total is None else float(total), facts)

    def end(self, what: str, said: str | None = None) -> None:
        self._tell("end", what, said)

    def note(self, text: str) -> None:
        self._tell("note", text)

    def close(self) -> None:
        self._tell("close")
        self._socket.close()


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[], Watcher]]:
    """What a worker makes to show its progress here."""
    if not shown:
        yield SilentWatcher
        return
    watcher = NotebookWatcher() if in_notebook() else LiveWatcher()
    with owned_folder("progress-") as folder, socket.socket(socket.AF_UNIX) as door:
        path = str(Path(folder, "socket"))
        door.bind(path)
        door.listen()
        listener = threading.Thread(target=_listen, args=(door, watcher), daemon=True)
        listener.start()
        try:
            yield partial(_Relay, path)
        finally:
            door.shutdown(socket.SHUT_RDWR)
            listener.join(LAST_WORDS_SECONDS)
            watcher.close()


def _listen(door: socket.socket, watcher: Watcher) -> None:
    """Show what workers tell, one after the other (`verify` starts several runs), until the door is
    closed. A worker's last word is `close`."""
    while True:
        try:
            worker, _ = door.accept()
        except OSError:
            return
        with worker, worker.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                name, *words = json.loads(line)
                if name in _TOLD:
                    getattr(watcher, name)(*words)
                if name == "close":
                    break
