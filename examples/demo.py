"""`make demo`: real lung-nodule shapes, trained at 1 and at 2 workers, with one result.

Takes about a minute on two cores. Writes the runs, a picture and a page to demo/.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from samepath.console import LiveWatcher
from samepath.engine.train import Request, train
from samepath.report.show import draw_loss_curves, show_run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="nodules-small")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    options = parser.parse_args()
    console = Console()
    console.print(
        f"Training [bold]{options.recipe}[/] (DeepDensity on LIDC lung-nodule shapes) for "
        f"{options.epochs} epochs, first on 1 worker, then on 2."
    )
    results = {}
    for num_workers in (1, 2):
        folder = options.out / f"{num_workers}-workers"
        shutil.rmtree(folder, ignore_errors=True)
        results[num_workers], _ = train(
            Request(
                recipe=options.recipe,
                num_workers=num_workers,
                epochs=options.epochs,
                out=folder,
                command=tuple(sys.argv),
                display=LiveWatcher,
            )
        )
    table = Table()
    for column in ("workers", "steps", "validation loss", "ms/step", "digest"):
        table.add_column(column, justify="left" if column == "digest" else "right")
    for num_workers, result in results.items():
        assert result.valid_loss is not None
        assert result.step_seconds is not None
        table.add_row(
            str(num_workers),
            str(result.steps),
            repr(result.valid_loss),
            f"{1000 * result.step_seconds:.0f}",
            result.digest[:16] + "…",
        )
    console.print(table)
    one, two = results[1], results[2]
    assert one.step_seconds is not None
    assert two.step_seconds is not None
    equal = one.digest == two.digest
    console.print(
        f"Digests of weights, buffers and optimizer state: "
        f"{'[bold green]equal[/]' if equal else '[bold red]DIFFERENT[/]'}. "
        f"Speed-up at 2 workers: {one.step_seconds / two.step_seconds:.2f}x."
    )
    picture = options.out / "loss.png"
    draw_loss_curves(
        {f"{n} worker{'s' if n > 1 else ''}": options.out / f"{n}-workers" for n in results},
        picture,
        title=f"{options.recipe}: the same path at 1 and 2 workers",
    )
    console.print(f"The two loss curves lie on each other: {picture}")
    page = show_run(options.out / "2-workers")
    console.print(f"What it learned, nodule by nodule: {page}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
