"""`samepath ui`."""

from __future__ import annotations

from pathlib import Path

import click

from samepath.cli.common import PATH, json_option, print_json


@click.command()
@click.argument("folder", type=PATH, metavar="[DIR]", default=Path())
@click.option("--port", type=int, default=0, metavar="P", help="Port.  [any that is free]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@json_option
def ui(folder: Path, port: int, no_browser: bool, as_json: bool) -> None:
    """See everything under DIR on one page: runs, studies, findings, curations.

    Runs are drawn live while they train, alone or several over one another; studies, advice,
    profiles, curvature and simulations show their reports. Without DIR it is the current folder; a
    folder with nothing in it yet fills as you go. It only looks: nothing is changed. Only this
    machine can reach the page; it needs no network. Ctrl-C ends it.

    \b
    Examples:
      samepath ui
      samepath ui runs --port 8000 --no-browser
    """
    import webbrowser

    from samepath.web.dashboard.app import open_ui

    with open_ui(folder, port) as page:
        if as_json:
            print_json({"address": page.address, "folder": str(folder)})
        else:
            click.echo(page.address)
            click.echo(f"shows {folder.resolve()}; Ctrl-C ends it")
        if not no_browser:
            webbrowser.open(page.address)
        page.run()
