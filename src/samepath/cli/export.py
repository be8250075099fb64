"""`samepath export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import status


@click.command(short_help="Write a run's model to a file that needs no samepath.")
@common.run_argument()
@click.option(
    "--to",
    type=common.PATH,
    required=True,
    metavar="FILE",
    help="weights.safetensors, state_dict.pt or model.onnx.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "state_dict", "onnx", "torchscript"]),
    help="What FILE is to be.  [by its ending]",
)
@common.epoch_option
@common.extra_option
@common.json_option
def export(run: Path, to: Path, kind: Any, as_json: bool, **asked: Any) -> None:
    """Write the model of RUN to a file that needs no samepath, and a card beside it.

    The card (FILE.card.md and FILE.card.json) says how the model was trained, on what data, with
    which metrics and digest. Programs (ONNX, TorchScript) are run on training examples, and the
    largest difference to the run's own outputs is printed.

    \b
    Examples:
      samepath export runs/digits-1 --to weights.safetensors
      samepath export runs/nodules-1 --epoch best --to model.onnx
      samepath export runs/digits-1 --to model.pt --format torchscript
    """
    common.announce(f"exporting the model of {run}", into=to)

    from samepath.output.export import export as export_run

    with common.stdout_kept_for_json(as_json), status("exporting ..."):
        made = export_run(run, to, format=kind, **asked)
    facts: dict[str, Any] = {
        "format": made.format,
        "inputs": made.inputs,
        "largest_difference": made.largest_difference,
        "digest": made.digest,
        "weights_digest": made.weights_digest,
        "sha256": made.sha256,
    }
    if as_json:
        common.print_json({"file": str(made.path), "card": str(made.card), **facts})
        return
    for name, value in facts.items():
        if value not in (None, []):
            shown = "; ".join(value) if isinstance(value, list) else value
            click.echo(f"  {name:<18} {shown}")
    click.echo(made.path)
    click.echo(made.card)
