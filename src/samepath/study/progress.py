"""Progress of the runs of a study: how many are done, each run's epochs, the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence

from samepath.console import Watcher
from samepath.study.grid import Job

ALL = "all runs"
WORDS = {
    "target": "reached the target",
    "diverged": "diverged",
    "stuck": "got stuck",
    "finished": "came to the epoch limit",
}


class JobsProgress:
    """Reports the jobs of a study to a watcher."""

    def __init__(self, watcher: Watcher, waiting: Sequence[Job], num_done: int) -> None:
        self._watcher = watcher
        self._began = time.monotonic()
        self._num_jobs, self._num_done = len(waiting) + num_done, num_done
        self._left = {job.folder: job.options.epochs for job in waiting}
        self._finished_epochs = 0.0
        self._running: dict[str, float] = {}

    def look(self, running: Sequence[tuple[Job, int, float | None]]) -> None:
        """Report every running job, its epochs and its last validation loss."""
        self._running = {job.folder: float(epochs) for job, epochs, _ in running}
        if self._num_jobs > 1:
            self._watcher.progress(ALL, self._num_done, self._num_jobs, self._how_far())
        for job, epochs, loss in running:
            known = "" if loss is None else f"  valid loss {loss:.5g}"
            most = job.options.epochs
            self._watcher.progress(job.label, epochs, most, f"epoch {epochs} of {most}{known}")

    def end(self, job: Job, status: str, epochs: float, loss: float | None) -> None:
        """Report how a job ended."""
        self._num_done += 1
        self._finished_epochs += epochs
        self._left.pop(job.folder, None)
        self._running.pop(job.folder, None)
        known = "" if loss is None else f", valid loss {loss:.5g}"
        self._watcher.end(
            job.label,
            f"{job.label}: {WORDS[status]} after {epochs:.3g} epochs{known} ({self._how_far()})",
        )

    def _how_far(self) -> str:
        """How many runs are done, and the time left if each of the others goes to its limit."""
        text = f"{self._num_done} of {self._num_jobs}"
        done = self._finished_epochs + sum(self._running.values())
        if done < 1 or not self._left:
            return text
        left = max(sum(self._left.values()) - sum(self._running.values()), 0.0)
        minutes = (time.monotonic() - self._began) / done * left / 60
        if minutes < 1:
            return f"{text}, less than a minute left"
        return f"{text}, at most {minutes:.0f} min left"
