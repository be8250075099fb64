"""`samepath verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from samepath.cli.common import data_option, keep_option, shaping_options

if TYPE_CHECKING:
    from rich.console import Console

    from samepath.engine.verify import Difference, Verdict


@click.command()
@click.argument("recipe")
@data_option
@keep_option
@click.option(
    "-n",
    "counts",
    metavar="N,N,...",
    help="Worker counts, compared with the first.  [default: those of 1,2,3,5 that fit the batch]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="S",
    help="Steps to take at every count.",
)
@shaping_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def verify(
    recipe: str,
    data: str | None,
    keep: str | None,
    counts: str | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Train RECIPE at several worker counts and compare every bit.

    Compared after every step: weights, buffers, optimizer state, losses, metrics. When they do not
    agree, the runs are repeated up to where they part, to find the first step, tensor and module
    that differ and the likely cause. Exit code 0: the same path at every count; 1: not.

    \b
    Examples:
      samepath verify digits -n 1,2,3,5
      samepath verify my_recipe.py -n 1,4 --steps 100
      samepath verify my_recipe.py -n 1,1     is it repeatable at all?
    """
    from samepath.cli.common import parse_counts, print_json, stdout_kept_for_json
    from samepath.cli.display import LiveDisplay
    from samepath.engine.options import Asked
    from samepath.engine.verify import VerifyRequest
    from samepath.engine.verify import verify as verify_request

    request = VerifyRequest(
        recipe=recipe,
        data=data,
        keep=keep,
        counts=None if counts is None else parse_counts(counts),
        asked=Asked(**asked, exact=None),
        tell=lambda text: click.echo(text, err=True),
        display=LiveDisplay,
    )
    with stdout_kept_for_json(as_json):
        verdict = verify_request(request)
    if as_json:
        print_json(_as_json(verdict))
    else:
        _show(verdict)
    return 0 if verdict.equal else 1


def _as_json(verdict: Verdict) -> dict[str, Any]:
    from dataclasses import asdict

    content = asdict(verdict)
    return {"equal": verdict.equal, **content.pop("options"), **content}


def _show(verdict: Verdict) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("workers", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("digest")
    table.add_column("path")
    for place, run in enumerate(verdict.runs):
        path = "the same" if place else "reference"
        if run.parts_at is not None:
            path = f"differs from {f'step {run.parts_at}' if run.parts_at else 'the start'} on"
        if run.status != "finished":
            path += f" ({run.status})"
        table.add_row(str(run.num_workers), str(run.steps), run.digest[:16], path)
    console.print(table)
    console.print()
    if verdict.difference is None:
        counts = [str(run.num_workers) for run in verdict.runs]
        console.print(
            f"The same path on {', '.join(counts[:-1])} and {counts[-1]} workers: weights, "
            "buffers, optimizer state, losses and metrics agree to the last bit after every step."
        )
        console.print(f"digest {verdict.runs[0].digest}", soft_wrap=True)
    else:
        _show_difference(verdict.difference, console)


def _show_difference(difference: Difference, console: Console) -> None:
    from rich.table import Table

    one, other = (f"{n} {'worker' if n == 1 else 'workers'}" for n in difference.num_workers)
    where = f"step {difference.step}" if difference.step else "the start, before the first step"
    whose = f" (seen on worker {difference.worker})" if difference.worker else ""
    who = f"two runs on {one}" if one == other else f"{one} and {other}"
    console.print(f"Not the same path: {who} part at {where}{whose}.")
    console.print()
    again = "yes: the same count gives the same bits again"
    if not difference.repeatable:
        again = "no: even the same count gives other bits when run again"
    lines = Table.grid(padding=(0, 2))
    lines.add_row("first tensor" if difference.values else "first", _first(difference))
    if difference.module is not None:
        name = difference.module or "the model itself"
        label = "first module" if difference.cause.where == "module" else "module"
        lines.add_row(label, f"{name} ({difference.module_kind})")
    lines.add_row("seen", difference.cause.found)
    lines.add_row("repeatable", again)
    lines.add_row("likely cause", difference.cause.likely)
    lines.add_row("remedy", difference.cause.remedy)
    console.print(lines)


_NAMES = {
    "groups": "the optimizer's settings (learning rate and the like)",
    "schedule": "the schedule's state",
    "loss": "the training loss",
    "grain losses": "the losses of single grains",
    "status": "one run ends and the other goes on",
}


def _first(difference: Difference) -> str:
    values = difference.values
    if values is None:
        return _NAMES.get(difference.name, difference.name)
    text = f"{difference.name}: {values.num_different:,} of {values.num_values:,} values differ, "
    if values.max_ulps is None:
        text += "one of each pair is not a number"
    else:
        units = "unit" if values.max_ulps == 1 else "units"
        text += f"by up to {values.max_ulps:,} {units} in the last place"
    place = f"[{', '.join(map(str, values.first_index))}]: " if values.first_index else ""
    return f"{text} (first {place}{values.first_pair[0]:.9g} against {values.first_pair[1]:.9g})"
