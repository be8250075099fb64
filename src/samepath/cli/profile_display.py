"""What a person sees while engines are profiled: a bar on a terminal, lines elsewhere.

Lives on worker 0.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from samepath.insight.profile.profile import Watcher
from samepath.say import say

QUIET_SECONDS = 10.0


class ProfileDisplay(Watcher):
    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._spoke = time.monotonic()

    def step(self, engine: str, done: int, all_steps: int) -> None:
        if not self._console.is_terminal:
            if time.monotonic() - self._spoke > QUIET_SECONDS:
                self._spoke = time.monotonic()
                say(f"{done} of {all_steps} steps")
            return
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<8}"),
                BarColumn(),
                TextColumn("step {task.completed} of {task.total}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task(engine, total=all_steps)
            self._progress.start()
        self._progress.update(self._task, completed=done, description=engine)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()  # gives the cursor back
