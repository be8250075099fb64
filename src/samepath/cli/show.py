"""`samepath show`."""

from __future__ import annotations

from pathlib import Path

import click

from samepath.cli import common
from samepath.console import status


@click.command(short_help="Draw what a run learned, on one page.")
@common.run_argument()
@common.run_argument("others", nargs=-1)
@common.out_option("Folder to draw into.  [RUN/show]")
@common.json_option
def show(run: Path, others: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Draw what RUN learned: loss curves, and what its recipe has to show, on one page.

    Works on runs that have ended and on runs under way. For the nodules: originals against
    estimates, the mixtures as ellipsoids, and how reconstructions sharpen over epochs.

    OTHERS are runs whose loss curves are drawn beside RUN's.

    \b
    Examples:
      samepath show runs/nodules-1
      samepath show runs/one-worker runs/two-workers
    """
    common.announce(f"drawing {run}", into=out or run / "show")

    from samepath.report.page import pictures_in
    from samepath.report.show import show_run

    with common.stdout_kept_for_json(as_json), status("drawing ..."):
        page = show_run(run, out, others)
    pictures = [str(path) for path in pictures_in(page.parent)]
    if as_json:
        common.print_json({"page": str(page), "pictures": pictures})
    else:
        for picture in pictures:
            click.echo(picture)
        click.echo(page)
