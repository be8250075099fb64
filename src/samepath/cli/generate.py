"""`samepath generate`."""

from __future__ import annotations

from typing import Any

import click

from samepath.cli import common
from samepath.console import print_table, status


@click.command()
@click.argument("run", type=common.PATH)
@common.setting("--count", 100, None, "How many.")
@click.option("--category", help="benign, indeterminate or malignant.  [all, as trained on]")
@common.out_option("name.npz: one file. Otherwise a folder of .nii.gz files.", required=True)
@click.option("--side", type=int, metavar="V", help="Voxels along a side.  [as trained on]")
@common.setting("--seed", 0, "S", "Other seed, other nodules.")
@common.epoch_option
@click.option("--judge/--no-judge", default=True, help="Compare with real ones (half a minute).")
@common.json_option
def generate(as_json: bool, count: int, **asked: Any) -> None:
    """Generate new nodules from RUN, a run of DeepDensity, and judge them.

    They are drawn from a density over the codes of the training nodules, of one category or of
    all, and compared with held-out real ones: measures, distance to the nearest training nodule,
    and a classifier that tries to tell them apart.

    \b
    Examples:
      samepath generate runs/nodules-1 --count 1000 --category malignant --out new.npz
      samepath generate runs/nodules-1 --count 20 --epoch best --side 64 --out new.nii.gz
    """
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
