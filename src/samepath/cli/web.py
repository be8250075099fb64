"""`samepath explore`, `samepath turing` and `samepath ui`: pages in the browser, served on this
machine alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from samepath.cli import common
from samepath.console import status

if TYPE_CHECKING:
    from samepath.web.server import LocalPage

serving_options = common.all_of(
    click.option("--port", type=int, default=0, metavar="P", help="Port.  [any that is free]"),
    click.option("--no-browser", is_flag=True, help="Only print the address."),
)


@click.command(short_help="Look at a curation in the browser, and correct it.")
@click.argument("folder", type=common.PATH, metavar="DIR")
@click.option(
    "--keep",
    type=common.PATH,
    metavar="FILE",
    help="Keep-list to begin from.  [the newest in DIR, or the one with unsaved edits]",
)
@serving_options
@click.option(
    "--export",
    "out",
    type=common.PATH,
    metavar="OUT",
    help="Write one self-contained page (.html) or a table (.csv, .parquet) instead of serving.",
)
@common.json_option
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
    common.announce(f"opening {folder}", into=out)

    from samepath.web.explorer.app import open_explorer
    from samepath.web.explorer.explorer import Explorer
    from samepath.web.explorer.exports import write_export

    opening = status("opening the map ...")
    if out is not None:
        with opening:
            write_export(Explorer(folder, keep, read_only=True), out)
        common.print_json({"export": str(out)}) if as_json else click.echo(out)
        return
    with ExitStack() as stack:
        with opening:
            explorer, page = stack.enter_context(open_explorer(folder, keep, port))
        said = f"shows {explorer.keep}; Ctrl-C ends it, unsaved edits are kept"
        _serve(page, said, {"keep": str(explorer.keep)}, no_browser=no_browser, as_json=as_json)


@click.command(short_help="See runs, studies and findings in the browser.")
@click.argument("folder", type=common.PATH, metavar="[DIR]", default=Path())
@serving_options
@common.json_option
def ui(folder: Path, port: int, no_browser: bool, as_json: bool) -> None:
    """See everything under DIR on one page: runs, studies, findings, curations.

    Runs are drawn live while they train, alone or several over one another; studies, advice,
    profiles, curvature and simulations show their reports. Without DIR it is the current folder; a
    folder with nothing in it yet fills as you go. Runs are not changed; a note that you write on
    one goes to note.txt in its folder. Only this machine can reach the page; it needs no network.
    Ctrl-C ends it.

    \b
    Examples:
      samepath ui
      samepath ui runs --port 8000 --no-browser
    """
    common.announce(f"opening what is under {folder.resolve()}")

    from samepath.web.dashboard.app import open_ui

    with open_ui(folder, port) as page:
        said = f"shows {folder.resolve()}; Ctrl-C ends it"
        _serve(page, said, {"folder": str(folder)}, no_browser=no_browser, as_json=as_json)


@click.command(short_help="Ask a reader which cubes are real and which generated.")
@click.argument("real", type=common.PATH, metavar="REAL")
@click.argument("generated", type=common.PATH, metavar="GENERATED")
@common.setting("--count", 50, None, "Cubes of each kind that are shown.")
@common.setting("--seed", 0, "S", "Which cubes, and their order.")
@common.out_option("The file of votes; turing.json.")
@serving_options
@common.json_option
def turing(
    real: Path,
    generated: Path,
    count: int,
    seed: int,
    out: Path | None,
    port: int,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Ask a reader which cubes are real: REAL and GENERATED (.npz) mixed, one at a time.

    Opens a page with central slices, a viewer with scrolling, window and level, and two buttons.
    Every vote is saved at once; the same command goes on with the test. At its end the page, and
    this command when it is stopped, say how often the reader was right, with an exact interval.

    \b
    Examples:
      samepath turing ct_nodules32.npz new.npz
      samepath turing ct_nodules32.npz new.npz --count 100 --seed 1 --out anna.json
    """
    out = out or Path("turing.json")
    common.announce(f"opening {real} and {generated}", into=out)

    from samepath.console import print_table
    from samepath.web.turing.app import open_turing

    with open_turing(real, generated, out, count=count, seed=seed, port=port) as (test, page):
        said = f"{len(test.votes)} of {len(test)} votes in {out}; Ctrl-C ends it, votes are kept"
        _serve(page, said, {"votes": str(out)}, no_browser=no_browser, as_json=as_json)
        if as_json:
            return
        if not test.has_ended:
            click.echo(
                f"{len(test.votes)} of {len(test)} votes in {out}; go on by the same command"
            )
            return
        rows = [["", "right", "votes", "share", "95% interval", "p of guessing"]]
        for score in test.scores():
            share, interval = f"{score.share:.3f}", f"{score.low:.3f} to {score.high:.3f}"
            counts = str(score.num_right), str(score.num_votes)
            rows.append([score.what, *counts, share, interval, f"{score.p:.2g}"])
        print_table(rows)


def _serve(
    page: LocalPage, said: str, content: dict[str, str], *, no_browser: bool, as_json: bool
) -> None:
    """Print the address, open the browser, and answer it until Ctrl-C."""
    import webbrowser

    if as_json:
        common.print_json({"address": page.address, **content})
    else:
        click.echo(page.address)
        click.echo(said)
    if not no_browser:
        webbrowser.open(page.address)
    page.run()
