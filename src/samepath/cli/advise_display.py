"""What a person sees while a recipe is measured: a live line on a terminal, plain lines elsewhere.

Parts are run by other processes and bounded in time, so what moves is the clock.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from samepath.insight.advise.advise import AdviseProgress
from samepath.say import say


class _Clock(ProgressColumn):
    """How much of the part's time has gone."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        return Text(f"{task.elapsed or 0.0:.0f} of about {task.total or 0.0:.0f} s")


class AdviseDisplay(AdviseProgress):
    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None

    def begin(self, what: str, seconds: float) -> None:
        self.close()
        if not self._console.is_terminal:
            self.note(f"{what}, about {seconds:.0f} s")
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            _Clock(),
            console=self._console,
            transient=True,
        )
        self._progress.add_task(what, total=seconds)
        self._progress.start()

    def note(self, text: str) -> None:
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            say(text)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()  # gives the cursor back
            self._progress = None
