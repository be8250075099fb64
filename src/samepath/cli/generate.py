"""`samepath generate`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import print_table, print_text, status
from samepath.errors import UserError


def parse_range(text: str) -> tuple[float, float]:
    """Read '8:12'."""
    low, _, high = text.partition(":")
    ends = common.parse_number(low), common.parse_number(high)
    if ends[0] is None or ends[1] is None or ends[0] > ends[1]:
        raise UserError(f"{text!r} is no range; give LOW:HIGH, such as 8:12")
    return ends[0], ends[1]


def parse_fact(text: str) -> tuple[str, tuple[float, float]]:
    """Read 'malignancy=4:5'."""
    name, _, ends = text.partition("=")
    return name, parse_range(ends)


class _Generate(click.Command):
    """`samepath generate`, which knows the names that people look for below it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Answer `samepath generate worth` and `samepath generate turing` with what to type."""
        if args and args[0] in ("worth", "turing") and not Path(args[0]).exists():
            raise UserError(f"{args[0]} is a command of its own; type: samepath {shlex.join(args)}")
        return super().parse_args(ctx, args)


@click.command(cls=_Generate, short_help="Generate new nodules from a run, and judge them.")
@common.run_argument()
@common.setting("--count", 100, None, "How many.")
@click.option("--category", help="A class: malignant, say.  [all, as trained on]")
@click.option(
    "--diameter",
    metavar="LOW:HIGH",
    callback=common.parsed_by(parse_range),
    help="Of CT nodules: in the data's mm, else in voxels.",
)
@click.option(
    "--fact",
    "facts",
    metavar="NAME=LOW:HIGH",
    multiple=True,
    help="Of CT nodules: another number that the data know (intensity, malignancy).",
)
@click.option(
    "--into",
    type=common.PATH,
    metavar="PATH",
    help="Of CT nodules: cubes to put them into (.npz, or a folder of NIfTI pairs).  [the run's "
    "training cubes]",
)
@common.out_option(
    "name.npz: one file. Otherwise a folder of .nii.gz files.",
    default=Path("new.npz"),
    show_default=True,
)
@click.option("--side", type=int, metavar="V", help="Voxels along a side.  [as trained on]")
@common.setting("--seed", 0, "S", "Other seed, other nodules.")
@common.epoch_option
@click.option("--judge/--no-judge", default=True, help="Compare with real ones (half a minute).")
@common.json_option
def generate(
    as_json: bool,
    diameter: tuple[float, float] | None,
    facts: tuple[str, ...],
    into: Path | None,
    **asked: Any,
) -> None:
    """Generate new nodules from RUN, a run of DeepDensity, and judge them.

    They are drawn from a density over the codes of the training nodules, of one category or of
    all, and compared with held-out real ones: measures, distance to the nearest training nodule,
    and a classifier that tries to tell them apart.

    A run of nodules-ct makes CT cubes and masks: new nodules in the surroundings of real cubes, in
    the place of the nodules there, if any. Its diameters are measured and lie in --diameter. Then
    samepath pairs writes NIfTI or DICOM, worth measures whether they help, turing asks a reader.

    \b
    Examples:
      samepath generate runs/nodules-1 --count 1000 --category malignant --out new.npz
      samepath generate runs/nodules-1 --count 20 --epoch best --side 64 --out new.nii.gz
      samepath generate runs/ct --category 1 --diameter 8:12 --into cubes.npz
    """
    common.announce(f"generating {asked['count']} nodules from {asked['run']}", into=asked["out"])

    from samepath.engine.state.reopen import reopen
    from samepath.recipes.nodules.ct_files import makes_cubes

    wish = dict(map(parse_fact, facts)) | ({} if diameter is None else {"diameter": diameter})
    if makes_cubes(reopen(asked["run"]).recipe):
        if asked.pop("side") is not None:
            raise UserError("--side: CT nodules are as large as the cubes they are put into")
        _generate_cubes(as_json, wish=wish, into=into, **asked)
        return
    if wish or into is not None:
        option = "--into" if into is not None else "--diameter" if diameter else "--fact"
        raise UserError(f"{option}: only a run of nodules-ct knows it; leave it out")
    _generate_shapes(as_json, **asked)


def _generate_cubes(as_json: bool, **asked: Any) -> None:
    from samepath.recipes.nodules.ct_files import CubesRequest, write_cubes

    with common.stdout_kept_for_json(as_json), status("opening the run") as line:
        result = write_cubes(CubesRequest(tell=line.update, **asked))
    if as_json:
        common.print_json(
            {
                "out": str(result.out),
                "files": [str(result.picture)],
                "count": len(result.made.volumes),
                "parents": result.made.num_parents,
                "held_out": result.num_held_out,
                "nearest": result.nearest,
                "told": result.told,
                "notes": result.notes,
            }
        )
        return
    print_table(result.table)
    for note in result.notes:
        print_text(note)
    for path in (result.out, result.picture):
        click.echo(path)


def _generate_shapes(as_json: bool, count: int, **asked: Any) -> None:
    from samepath.recipes.nodules.generation import GenerateRequest
    from samepath.recipes.nodules.generation import generate as generate_nodules

    with common.stdout_kept_for_json(as_json), status("opening the run") as line:
        result = generate_nodules(GenerateRequest(count=count, tell=line.update, **asked))
    if as_json:
        common.print_json(
            {
                "out": str(result.out),
                "files": [str(path) for path in result.files],
                "count": count,
                "judgement": None if result.judgement is None else result.judgement.as_dict(),
                "why_not_judged": result.why_not_judged,
            }
        )
        return
    if result.table:
        print_table(result.table)
    elif asked["judge"]:
        click.echo(f"not judged: {result.why_not_judged}")
    for path in [result.out, *result.files]:
        click.echo(path)
