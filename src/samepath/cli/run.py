"""`samepath run`: a script of one's own on several workers."""

from __future__ import annotations

from typing import Literal

import click

from samepath.cli import common


@click.command(
    context_settings={"ignore_unknown_options": True},
    short_help="Run a script of your own on several workers.",
)
@common.workers_option
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(num_workers: int | Literal["auto"], script: str, arguments: tuple[str, ...]) -> None:
    """Run a Python script that calls samepath.start() on several workers.

    The same script runs under torchrun, mpirun and srun, and alone.

    \b
    Example: samepath run -n 2 examples/own_loop.py
    """
    common.announce(f"running {script}", on=num_workers)

    from samepath.engine.launch.launch import launch_script
    from samepath.engine.run.request import available_workers

    workers = available_workers() if num_workers == "auto" else num_workers
    launch_script([script, *arguments], workers)
