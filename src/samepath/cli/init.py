"""`samepath init`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from samepath.cli import common
from samepath.console import print_text
from samepath.errors import UserError


def is_interactive() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@click.command(short_help="Write a recipe for your data or your training script.")
@click.argument("data", required=False)
@click.option(
    "--kind",
    type=click.Choice(["images", "csv", "numpy", "volumes", "huggingface", "monai", "script"]),
    help="What DATA is.  [by looking]",
)
@click.option("--target", metavar="NAME", help="The column or array to find.  [by its name]")
@common.out_option("The recipe to write.  [my_recipe.py]")
@common.json_option
def init(
    data: str | None, kind: str | None, target: str | None, out: Path | None, as_json: bool
) -> None:
    """Write a recipe that runs, with comments, for DATA: what you have.

    Pictures in folders, a CSV table, NumPy arrays, NIfTI or DICOM volumes, a Hugging Face data set,
    a MONAI bundle or data list, or an existing training script (which is read, never run). Without
    DATA it asks.

    \b
    Examples:
      samepath init photos/                       photos/cat/1.jpg, photos/dog/2.jpg, ...
      samepath init patients.csv --target outcome
      samepath init train.py --out my_recipe.py   what can be found in your script
    """
    from samepath.init.init import KINDS, write_recipe

    if data is None:
        if as_json or not is_interactive():
            raise UserError(
                "init needs to know what you have; type: samepath init PATH (photos/, table.csv, "
                "arrays.npz, train.py, ...)"
            )
        click.echo("What do you have?")
        for number, (name, words) in enumerate(KINDS.items(), start=1):
            click.echo(f"  {number}  {name:<12} {words}")
        chosen = click.prompt("Number", type=click.IntRange(1, len(KINDS)))
        kind = list(KINDS)[chosen - 1]
        data = click.prompt("Where is it (a path; for huggingface a name will do)")
        out = out or Path(click.prompt("Recipe to write", default="my_recipe.py"))
    written = write_recipe(data, out or Path("my_recipe.py"), kind=kind, target=target)
    if as_json:
        facts = {"kind": written.kind, "found": written.found, "look": written.look}
        common.print_json({"out": str(written.out), **facts, "commands": written.commands})
        return
    print_text(f"{written.out}: {written.kind}, {written.found}")
    for words in written.look:
        print_text(f"  look at: {words}", 4)
    click.echo("Try:")
    for command in written.commands:
        click.echo(f"  {command}")
