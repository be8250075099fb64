"""`samepath cubes`: scans and volumes of any shape as cubes to learn from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

SHOWN = 5


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The folder to make (new)."
)
@click.option("--side", type=int, default=16, show_default=True, help="Voxels along each side.")
@click.option(
    "--mm",
    type=float,
    metavar="MM",
    help="Millimetres along each side.  [default: 32 for LUNA16, each image's longest side else]",
)
@click.option(
    "--window",
    metavar="LOW,HIGH",
    help="Values that become 0 and 1.  [default: -1000,400; values in 0..1 and bytes keep theirs]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def cubes(
    source: Path, out: Path, side: int, mm: float | None, window: str | None, as_json: bool
) -> None:
    """Make a folder of equal cubes of SOURCE, for samepath train nodules --data.

    SOURCE is a LUNA16 folder (annotations.csv, .mhd scans anywhere below: one cube around each
    nodule), a folder of NIfTI images (one cube of each, around its centre), or an .npz or .npy
    file of volumes (padded to cubes). Scans that cannot be read are listed, not fatal.

    \b
    Examples:
      samepath cubes LUNA16 --out luna-cubes
      samepath cubes crops --out crop-cubes --side 32 --window -1000,400
      samepath cubes volumes.npz --out cubes --window 0,4095
    """
    from samepath.cli.common import print_json
    from samepath.data.formats.cubes import make_cubes
    from samepath.data.formats.cutting import CubeSettings

    settings = CubeSettings(side=side, mm=mm, window=_parse_window(window))
    with _progress_bar(as_json) as progress:
        report = make_cubes(source, out, settings, progress)
    again = f"samepath train nodules --data {shlex.quote(str(out))}"
    if as_json:
        print_json(
            {
                "folder": str(out),
                "cubes": report.num_cubes,
                "asked": report.num_asked,
                "flat": report.num_flat,
                "side": side,
                "failed": report.failed,
                "next": again,
            }
        )
        return
    click.echo(f"{_count(report.num_cubes, 'cube')} of {side} x {side} x {side} voxels in {out}")
    if report.num_flat:
        click.echo(
            f"{_count(report.num_flat, 'cube')} with one single value: does --window fit the data?"
        )
    if report.failed:
        click.echo(
            f"{_count(report.num_asked - report.num_cubes, 'cube')} could not be made "
            f"({_count(len(report.failed), 'reason')}, all in {out / 'cubes.json'}):"
        )
        for failure in report.failed[:SHOWN]:
            click.echo(f"  {failure['name']}: {failure['reason']}")
        if len(report.failed) > SHOWN:
            click.echo(f"  and {len(report.failed) - SHOWN} more")
    click.echo(again)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _parse_window(text: str | None) -> tuple[float, float] | None:
    from samepath.errors import UserError

    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--window {text}: give LOW,HIGH, such as -1000,400") from None
    return low, high


@contextmanager
def _progress_bar(hidden: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # Drawn between images only: while one is read, standard error is not the terminal
    with Progress(
        console=console,
        transient=True,
        auto_refresh=False,
        disable=hidden or not console.is_terminal,
    ) as bar:
        task = bar.add_task("cubes", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total, refresh=True)
