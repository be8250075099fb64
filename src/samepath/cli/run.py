"""`samepath run`: a script of one's own on several workers."""

from __future__ import annotations

import click

from samepath.cli.common import workers_option


@click.command(context_settings={"ignore_unknown_options": True})
@workers_option
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(num_workers: str, script: str, arguments: tuple[str, ...]) -> None:
    """Run a Python script that calls samepath.start() on several workers.

    The same script runs under torchrun, mpirun and srun, and alone.

    \b
    Example: samepath run -n 2 examples/own_loop.py
    """
    from samepath.cli.common import parse_workers
    from samepath.engine.launch.launch import launch_script
    from samepath.engine.run.request import available_workers

    workers = parse_workers(num_workers)
    launch_script([script, *arguments], available_workers() if workers == "auto" else workers)
