"""What a person sees while a run is under way: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from samepath.engine.run.options import Options
from samepath.engine.state.progress import Display
from samepath.engine.step.settings import StepResult
from samepath.say import say
from samepath.terminal import may_be_closed

QUIET_SECONDS = 5.0


class LiveDisplay(Display):
    """Progress, loss, examples per second, time left. Lives on worker 0."""

    def __init__(self, options: Options, num_workers: int) -> None:
        self._options = options
        self._workers = f"{num_workers} {'worker' if num_workers == 1 else 'workers'}"
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._began = self._spoke = time.monotonic()
        self._examples = self._steps = self._staleness = 0

    def step(self, result: StepResult, steps: int, epochs: float) -> None:
        self._examples += result.num_examples
        self._steps += 1
        self._staleness += result.staleness
        rate = self._examples / max(time.monotonic() - self._began, 1e-9)
        if not self._console.is_terminal:
            return
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("epoch {task.completed:.1f}/{task.total}"),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task(
                f"{self._options.recipe} on {self._workers}",
                total=self._options.epochs,
                completed=int(epochs),
                facts="",
            )
            with may_be_closed():
                self._progress.start()
        facts = f"step {steps}  loss {result.loss:.5g}  {rate:.0f} examples/s"
        if self._options.server:
            facts += f"  staleness {self._staleness / self._steps:.2f}"
        self._progress.update(self._task, completed=epochs, facts=facts)

    def epoch(self, epoch: int, train_loss: float | None, metrics: dict[str, float]) -> None:
        """A line now and then where there is no terminal to draw on."""
        if self._console.is_terminal or time.monotonic() - self._spoke < QUIET_SECONDS:
            return
        self._spoke = time.monotonic()
        found = "  ".join(f"valid {name} {value:.5g}" for name, value in metrics.items())
        text = f"epoch {epoch + 1}/{self._options.epochs}  train loss {train_loss:.5g}  {found}"
        with may_be_closed():
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._progress is not None:
            with may_be_closed():
                self._progress.stop()  # gives the cursor back

    def note(self, text: str) -> None:
        say(text)
