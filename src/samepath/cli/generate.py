"""`samepath generate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--count", type=int, default=100, show_default=True, help="How many.")
@click.option("--category", help="benign, indeterminate or malignant.  [all, as trained on]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="name.npz: one file. Otherwise a folder of .nii.gz files.",
)
@click.option("--side", type=int, metavar="V", help="Voxels along a side.  [as trained on]")
@click.option("--seed", type=int, default=0, show_default=True, help="Other seed, other nodules.")
@click.option(
    "--epoch",
    metavar="E",
    help="Weights kept after E epochs, or best: at the lowest validation loss.  [newest]",
)
@click.option("--judge/--no-judge", default=True, help="Compare with real ones (half a minute).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def generate(
    run: Path,
    count: int,
    category: str | None,
    out: Path,
    side: int | None,
    seed: int,
    epoch: str | None,
    judge: bool,
    as_json: bool,
) -> None:
    """Generate new nodules from RUN, a run of DeepDensity, and judge them.

    They are drawn from a density over the codes of the training nodules, of one category or of
    all, and compared with held-out real ones: measures, distance to the nearest training nodule,
    and a classifier that tries to tell them apart.

    \b
    Examples:
      samepath generate runs/nodules-1 --count 1000 --category malignant --out new.npz
      samepath generate runs/nodules-1 --count 20 --epoch best --side 64 --out new.nii.gz
    """
    from rich.console import Console
    from rich.table import Table

    from samepath.cli.common import parse_epoch, print_json, stdout_kept_for_json
    from samepath.recipes.nodules.generation import GenerateRequest
    from samepath.recipes.nodules.generation import generate as generate_nodules

    with stdout_kept_for_json(as_json), Console(stderr=True).status("opening the run") as status:
        result = generate_nodules(
            GenerateRequest(
                run=run,
                out=out,
                count=count,
                category=category,
                side=side,
                seed=seed,
                epoch=None if epoch is None else parse_epoch(epoch),
                judge=judge,
                tell=status.update,
            )
        )
    if as_json:
        print_json(
            {
                "out": str(result.out),
                "files": [str(path) for path in result.files],
                "count": count,
                "judgement": None if result.judgement is None else result.judgement.as_dict(),
                "why_not_judged": result.why_not_judged,
            }
        )
        return
    if result.table:
        head, *rows = result.table
        shown = Table(*head, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            shown.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 160).print(shown)  # whole lines in files
    elif judge:
        click.echo(f"not judged: {result.why_not_judged}")
    for path in [result.out, *result.files]:
        click.echo(path)
