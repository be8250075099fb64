"""`samepath tensorboard`."""

from __future__ import annotations

from pathlib import Path

import click

from samepath.cli import common
from samepath.console import count, say, status


@click.command(short_help="Write TensorBoard event files of runs.")
@click.argument("folder", type=common.PATH, metavar="RUN|DIR")
@common.out_option(
    "Folder for the event files, one below it for each run.  [RUN/tensorboard]", metavar="LOGDIR"
)
@common.json_option
def tensorboard(folder: Path, out: Path | None, as_json: bool) -> None:
    """Write TensorBoard event files of a run, or of all runs under a folder.

    For runs that were trained without --tensorboard. Written again they replace the older ones;
    the runs themselves are not changed. A run that is training now is only converted with --out:
    its own folder is its own.

    \b
    Examples:
      samepath tensorboard runs/digits-1
      samepath tensorboard runs --out /tmp/logs
    """
    common.announce(f"writing event files of {folder}", into=out)

    from samepath.web.dashboard.tensorboard import convert

    with status("writing event files ...") as line:
        done = convert(folder, out, tell=lambda text: line.update(f"writing {text} ..."))
    if as_json:
        common.print_json(
            {"logdir": str(done.logdir), "files": done.files, "skipped": done.skipped}
        )
        return
    for name, why in done.skipped.items():
        say(f"left out {name}: {why}")
    click.echo(f"{count(len(done.files), 'run')}; look at them with:")
    click.echo(f"tensorboard --logdir {done.logdir}")
