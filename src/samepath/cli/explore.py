"""`samepath explore`."""

from __future__ import annotations

from pathlib import Path

import click

from samepath.cli.common import PATH, json_option, print_json
from samepath.console import status


@click.command()
@click.argument("folder", type=PATH, metavar="DIR")
@click.option(
    "--keep",
    type=PATH,
    metavar="FILE",
    help="Keep-list to begin from.  [the newest in DIR, or the one with unsaved edits]",
)
@click.option("--port", type=int, default=0, metavar="P", help="Port.  [any that is free]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option(
    "--export",
    "out",
    type=PATH,
    metavar="OUT",
    help="Write one self-contained page (.html) or a table (.csv, .parquet) instead of serving.",
)
@json_option
def explore(
    folder: Path,
    keep: Path | None,
    port: int,
    no_browser: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Look at DIR, which `samepath curate` wrote, and correct what it decided.

    Opens a page in the browser: the map of all examples, their images, what is dropped and why.
    Keep or drop by hand, change the clustering, save a new keep-list beside the old one. Only this
    machine can reach the page; it needs no network. Ctrl-C ends it; unsaved edits are kept.

    \b
    Examples:
      samepath explore curated/digits
      samepath explore curated/digits --export digits.html
    """
    import webbrowser
    from contextlib import ExitStack

    from samepath.web.explorer.app import open_explorer
    from samepath.web.explorer.explorer import Explorer
    from samepath.web.explorer.exports import write_export

    opening = status("opening the map ...")
    if out is not None:
        with opening:
            write_export(Explorer(folder, keep, read_only=True), out)
        print_json({"export": str(out)}) if as_json else click.echo(out)
        return
    with ExitStack() as stack:
        with opening:
            explorer, page = stack.enter_context(open_explorer(folder, keep, port))
        if as_json:
            print_json({"address": page.address, "keep": str(explorer.keep)})
        else:
            click.echo(page.address)
            click.echo(f"shows {explorer.keep}; Ctrl-C ends it, unsaved edits are kept")
        if not no_browser:
            webbrowser.open(page.address)
        page.run()
