"""`samepath curvature`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from samepath.cli.common import (
    parse_epoch,
    parse_workers,
    print_json,
    stdout_kept_for_json,
    workers_option,
)
from samepath.say import say


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@workers_option
@click.option(
    "--examples",
    "num_examples",
    type=int,
    default=256,
    show_default=True,
    metavar="E",
    help="Training examples to measure on, at most.",
)
@click.option(
    "--top", type=int, default=20, show_default=True, metavar="K", help="Eigenvalues to find."
)
@click.option(
    "--grid",
    type=int,
    default=31,
    show_default=True,
    metavar="M",
    help="Points of a line; a plane has half as many each way.",
)
@click.option(
    "--radius",
    type=float,
    default=1.0,
    show_default=True,
    metavar="R",
    help="How far lines and planes go from the weights (along eigenvectors half).",
)
@click.option("--epoch", metavar="E", help="Weights kept after E epochs, or 'best'.  [the newest]")
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="S", help="Sample and directions."
)
@click.option("--save-vectors", is_flag=True, help="Write the eigenvectors too (safetensors).")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def curvature(
    runs: tuple[Path, ...],
    num_workers: str,
    epoch: str | None,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Look at the loss around the weights of RUNs: sharp or flat?

    The largest eigenvalues of the Hessian and its trace, and the loss along random directions and
    along the top eigenvectors, on a sample of the training examples; several runs (small against
    large batch, say) side by side. The numbers are the same bits at every N.

    \b
    Examples:
      samepath curvature runs/digits-1
      samepath curvature runs/batch-32 runs/batch-1024 --examples 1024
      samepath curvature runs/nodules-1 --epoch best --top 5
    """
    from samepath.insight.curvature.curvature import CurvatureRequest, measure_curvature
    from samepath.insight.folder import choose_folder
    from samepath.report.curvature import verdict, write_curvature

    request = CurvatureRequest(
        runs=runs,
        num_workers=parse_workers(num_workers),
        epoch=None if epoch is None else parse_epoch(epoch),
        show=Display,
        **asked,
    )
    folder = choose_folder("curvature", str(runs[0].resolve()), out)
    with stdout_kept_for_json(as_json):
        found = measure_curvature(request, vectors=folder)
        write_curvature(folder, found, sys.argv)
    if as_json:
        print_json(asdict(found) | {"verdict": verdict(found), "folder": str(folder)})
    else:
        _summary(found, folder)


def _summary(found: Any, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from samepath.report.curvature import CAUTION, facts_table, sample_words, verdict

    console = Console()
    head, *rows = facts_table(found)
    table = Table(box=None)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    words = (verdict(found), CAUTION, sample_words(found), *found.notes)
    for text in (*words, f"page: {folder / 'curvature.html'}"):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


class Display:
    """A bar for what is being done on a terminal, a line for what was done elsewhere. Made in the
    worker that leads."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._what = ""
        self._progress: Any = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=console, transient=True)

    def __call__(self, what: str, done: int, expected: int) -> None:
        if what != self._what:
            self._what, self._began = what, time.monotonic()
            if self._progress is not None:
                self._progress.start()
                for task in self._progress.task_ids:
                    self._progress.remove_task(task)
                self._task = self._progress.add_task(what, total=expected)
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=expected)
        if done >= expected:
            if self._progress is not None:
                self._progress.stop()  # gives the cursor back
            else:
                seconds = time.monotonic() - self._began
                say(f"{what}: {seconds:.0f} s")
