"""`samepath digest`: the digest of a run, from its newest checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from samepath.cli import common
from samepath.console import say


@click.command(short_help="Recompute a run's digest from its newest checkpoint.")
@common.run_argument()
@common.json_option
def digest(run: Path, as_json: bool) -> None:
    """Recompute the digest of RUN from its newest checkpoint.

    It stands for the names, types, shapes and bytes of weights, buffers and optimizer state: two
    runs with one digest are the same run.

    \b
    Example: samepath digest runs/digits-1
    """
    common.announce(f"computing the digest of {run}")

    from samepath.engine.state.checkpoint import load_newest
    from samepath.engine.state.run_folder import RunFolder
    from samepath.errors import CheckpointDamaged

    folder = RunFolder(run)
    recorded = (folder.read()["result"] or {}).get("digest")
    found = load_newest(folder.checkpoints, say)
    if found is None:
        raise CheckpointDamaged(f"{run} holds no checkpoint that can be read")
    step = found.state.structure["step"]
    if as_json:
        common.print_json(
            {"digest": found.digest, "steps": step, "matches_run": found.digest == recorded}
        )
    else:
        click.echo(f"{found.digest}  step {step}")
    if recorded is not None and recorded != found.digest:
        raise CheckpointDamaged(f"run.json says {recorded}, the newest checkpoint says otherwise")
