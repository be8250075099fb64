"""`samepath download`: data sets that are too large to come with samepath."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click


@click.command()
@click.argument("name", type=click.Choice(["cifar10"]))
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where to put it.  [default: $SAMEPATH_DATA, else ~/.cache/samepath]",
)
@click.option("--url", metavar="URL", help="Of a mirror; size and MD5 must be the published ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def download(name: str, to: Path | None, url: str | None, as_json: bool) -> None:
    """Download a data set, check it and unpack it. What was cut goes on where it stopped.

    cifar10: 60,000 images of 32 x 32 in ten classes, 170 MB (Krizhevsky 2009).

    \b
    Examples:
      samepath download cifar10
      samepath download cifar10 --to /data
    """
    from dataclasses import replace

    from samepath.cli.common import print_json
    from samepath.data.download import ARCHIVES, download_folder
    from samepath.data.download import download as fetch

    archive = ARCHIVES[name]
    if url is not None:
        archive = replace(archive, url=url)
    with _progress_bar(name, hidden=as_json) as progress:
        folder = fetch(archive, to or download_folder(), progress)
    again = f"samepath train {name}" + (f" --data {shlex.quote(str(folder))}" if to else "")
    if as_json:
        print_json({"folder": str(folder), "next": again})
    else:
        click.echo(f"{name} is in {folder}\n{again}")


@contextmanager
def _progress_bar(name: str, *, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    ) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
