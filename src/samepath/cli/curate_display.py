"""What a person sees while a curation is under way: a bar on a terminal, a line elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from samepath.curation.watch import Watcher
from samepath.say import say

QUIET_SECONDS = 2.0


class CurateDisplay(Watcher):
    """One bar at a time. Made anew in the worker that shows something."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None

    def begin(self, what: str, total: int) -> None:
        self._what, self._began, self._left = what, time.monotonic(), total
        self._total = total
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task(what, total=total)
            self._progress.start()

    def advance(self, done: int) -> None:
        self._left = self._total - done
        if self._progress is not None:
            self._progress.update(self._task, completed=done)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()  # gives the cursor back
            self._progress = None
        seconds = time.monotonic() - self._began
        if seconds > QUIET_SECONDS and not self._left:  # it was not interrupted
            self.note(f"{self._what}: {seconds:.0f} s")

    def note(self, text: str) -> None:
        say(text)
