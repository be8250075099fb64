"""`samepath join`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from samepath.cli.common import (
    PATH,
    json_option,
    machine_of,
    machine_options,
    other_hardware_option,
    stdout_kept_for_json,
)
from samepath.cli.train import exit_code, print_result
from samepath.console import LiveWatcher


@click.command()
@click.argument("run", type=PATH)
@machine_options
@other_hardware_option
@json_option
def join(
    run: Path, here: int | None, interface: str | None, other_hardware: bool, as_json: bool
) -> int:
    """Bring this machine's workers to a run that is under way.

    RUN is the folder of a run that was started with a range of workers, on this machine or on one
    that sees the same folder. Ctrl-C leaves the run: its other workers go on.

    \b
    Examples:
      samepath train nodules -n 1:8 --out runs/a          on one machine, or in one terminal
      samepath join runs/a --here 2                       in another terminal
      samepath join /shared/runs/a --interface eth0       on another machine
    """
    from samepath.engine.train import join as join_run

    with stdout_kept_for_json(as_json):
        machine = machine_of(here, interface)
        result, folder = join_run(run, machine, display=LiveWatcher, other_hardware=other_hardware)
    print_result("RECIPE", folder, asdict(result), as_json)
    return exit_code(asdict(result))
