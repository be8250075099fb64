"""`samepath download`: data sets that are too large to come with samepath."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path

import click

from samepath.cli import common
from samepath.console import LiveWatcher, SilentWatcher


@click.command(short_help="Download a data set, check it and unpack it.")
@click.argument("name", type=click.Choice(["cifar10"]))
@click.option(
    "--to",
    type=common.PATH,
    metavar="DIR",
    help="Where to put it.  [default: $SAMEPATH_DATA, else ~/.cache/samepath]",
)
@click.option("--url", metavar="URL", help="Of a mirror; size and MD5 must be the published ones.")
@common.json_option
def download(name: str, to: Path | None, url: str | None, as_json: bool) -> None:
    """Download a data set, check it and unpack it. A download that was cut short goes on.

    cifar10: 60,000 images of 32 x 32 in ten classes, 170 MB (Krizhevsky 2009).

    \b
    Examples:
      samepath download cifar10
      samepath download cifar10 --to /data
    """
    common.announce(f"downloading {name}", into=to)

    from dataclasses import replace

    from samepath.data.download import ARCHIVES, download_folder
    from samepath.data.download import download as fetch

    archive = ARCHIVES[name]
    if url is not None:
        archive = replace(archive, url=url)
    watcher = SilentWatcher() if as_json else LiveWatcher()

    def progress(done: int, total: int) -> None:
        watcher.progress(name, done, total, f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")

    with closing(watcher):
        folder = fetch(archive, to or download_folder(), progress)
    again = f"samepath train {name}" + (f" --data {shlex.quote(str(folder))}" if to else "")
    if as_json:
        common.print_json({"folder": str(folder), "next": again})
    else:
        click.echo(f"{name} is in {folder}\n{again}")
