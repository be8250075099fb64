"""`samepath join`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from samepath.cli.common import (
    machine_of,
    machine_options,
    other_hardware_option,
    print_json,
    stdout_kept_for_json,
)
from samepath.terminal import may_be_closed


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@machine_options
@other_hardware_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def join(
    run: Path, here: int | None, interface: str | None, other_hardware: bool, as_json: bool
) -> int:
    """Bring this machine's workers to a run that is under way.

    RUN is the folder of a run that was started with a range of workers, on this machine or on one
    that sees the same folder. Ctrl-C leaves it again: the others go on.

    \b
    Examples:
      samepath train nodules -n 1:8 --out runs/a          on one machine, or in one terminal
      samepath join runs/a --here 2                       in another terminal
      samepath join /shared/runs/a --interface eth0       on another machine
    """
    from samepath.cli.display import LiveDisplay
    from samepath.cli.train import exit_code, summarize
    from samepath.engine.run.train import join as join_run

    with stdout_kept_for_json(as_json):
        machine = machine_of(here, interface)
        result, folder = join_run(run, machine, display=LiveDisplay, other_hardware=other_hardware)
    with may_be_closed():
        if as_json:
            print_json({**asdict(result), "run": str(folder)})
        else:
            summarize("RECIPE", folder, asdict(result))
    return exit_code(asdict(result))
