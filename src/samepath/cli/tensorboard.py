"""`samepath tensorboard`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUN|DIR")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="LOGDIR",
    help="Folder for the event files, one below it for each run.  [RUN/tensorboard]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
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
    from rich.console import Console

    from samepath.cli.common import print_json
    from samepath.web.dashboard.tensorboard import convert

    console = Console(stderr=True)
    with console.status("writing event files ...") as status:
        done = convert(folder, out, tell=lambda text: status.update(f"writing {text} ..."))
    if as_json:
        print_json({"logdir": str(done.logdir), "files": done.files, "skipped": done.skipped})
        return
    for name, why in done.skipped.items():
        console.print(f"left out {name}: {why}", markup=False, highlight=False)
    click.echo(f"{len(done.files)} run{'s' * (len(done.files) != 1)}; look at them with:")
    click.echo(f"tensorboard --logdir {done.logdir}")
