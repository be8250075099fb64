"""What a person sees while a study is under way: bars on a terminal, a line a run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from samepath.say import say
from samepath.study.runner import PlannedRun, StudyProgress

QUIET_SECONDS = 30.0
WORDS = {
    "target": "reached the target",
    "diverged": "diverged",
    "stuck": "got stuck",
    "finished": "came to the epoch limit",
}


class StudyDisplay(StudyProgress):
    """Runs done, epochs, the most time that is left."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None

    def begin(self, waiting: Sequence[PlannedRun], done: int) -> None:
        self._began = self._spoke = time.monotonic()
        self._jobs, self._done = len(waiting) + done, done
        self._left = {job.folder: job.options.epochs for job in waiting}
        self._finished_epochs = 0.0
        self._running: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[facts]}"),
                console=self._console,
                transient=True,
                auto_refresh=False,  # its thread and our lines would overwrite each other
            )
            self._all = self._progress.add_task("all runs", total=self._jobs, facts="")
            self._progress.start()

    def look(self, running: Sequence[tuple[PlannedRun, int, float | None]]) -> None:
        self._running = {job.folder: float(epochs) for job, epochs, _ in running}
        if self._progress is None:
            if time.monotonic() - self._spoke > QUIET_SECONDS and self._jobs > 1:
                self._say(f"{self._done} of {self._jobs} runs{self._time_left()}")
            return
        for job, epochs, loss in running:
            if job.folder not in self._tasks:
                self._tasks[job.folder] = self._progress.add_task(
                    job.label, total=job.options.epochs, facts=""
                )
            known = "" if loss is None else f"  valid loss {loss:.5g}"
            self._progress.update(
                self._tasks[job.folder],
                completed=epochs,
                facts=f"epoch {epochs}/{job.options.epochs}{known}",
            )
        self._progress.update(
            self._all,
            completed=self._done,
            facts=f"{self._done} of {self._jobs}{self._time_left()}",
        )
        self._progress.refresh()

    def end(self, job: PlannedRun, status: str, epochs: float, loss: float | None) -> None:
        self._done += 1
        self._finished_epochs += epochs
        self._left.pop(job.folder, None)
        self._running.pop(job.folder, None)
        if self._progress is not None and job.folder in self._tasks:
            self._progress.remove_task(self._tasks.pop(job.folder))
        known = "" if loss is None else f", valid loss {loss:.5g}"
        self._say(
            f"{job.label}: {WORDS[status]} after {epochs:.3g} epochs{known} "
            f"({self._done} of {self._jobs}{self._time_left()})"
        )

    def note(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()  # gives the cursor back
            self._progress = None

    def _time_left(self) -> str:
        """If every run that is left goes on to its epoch limit."""
        done = self._finished_epochs + sum(self._running.values())
        waited = time.monotonic() - self._began
        if done < 1 or not self._left:
            return ""
        left = sum(self._left.values()) - sum(self._running.values())
        minutes = waited / done * max(left, 0.0) / 60
        return f", at most {minutes:.0f} min left" if minutes >= 1 else ", less than a minute left"

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            say(text)
