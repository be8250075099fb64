"""`samepath study`."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from samepath.cli.common import (
    data_option,
    keep_option,
    other_hardware_option,
    print_json,
    stdout_kept_for_json,
)
from samepath.errors import UserError

if TYPE_CHECKING:
    from samepath.report.words import Rows
    from samepath.study.results import GridStudy, Study

_OF_A_RACE = (
    "strategies",
    "workers",
    "target",
    "learning_rate",
    "network",
    "batch_size",
    "patience",
)
_INSTEAD = {
    "learning_rate": "give --learning-rates",
    "batch_size": "give all sizes to --batch-sizes",
}


@click.command()
@click.argument("recipe")
@data_option
@keep_option
@click.option(
    "--strategies",
    default="strong,weak,linear,warmup,sqrt",
    show_default=True,
    metavar="LIST",
    help="Which to race (docs/strategies.md has them all).",
)
@click.option(
    "--workers", default="1,2,4,8,16,32", show_default=True, metavar="LIST", help="For how many."
)
@click.option(
    "--target",
    metavar="LOSS",
    help="Validation loss to race to; auto[:FRACTION]: what the sequential run comes to after half "
    "(or this part) of its epochs. The recipe's when not given, else auto.",
)
@click.option("--seeds", type=int, default=1, show_default=True, metavar="N", help="Runs of each.")
@click.option("--max-epochs", type=int, metavar="E", help="Most epochs of a run; the recipe's.")
@click.option(
    "--learning-rate",
    metavar="R",
    help="In place of the recipe's; largest: the largest at which one worker still converges.",
)
@click.option(
    "--network",
    default="1GbE",
    show_default=True,
    metavar="NAME",
    help="Link that times are modelled for: 1GbE, 10GbE, 100Gb, NVLink, here (measured between two "
    "workers of this machine), or one you measured, such as 940Mbit/s:60us.",
)
@click.option("--batch-size", type=int, metavar="B", help="Of the sequential run.")
@click.option("--grain", "grain_size", type=int, metavar="G", help="Examples computed at once.")
@click.option(
    "--patience",
    type=int,
    default=10,
    show_default=True,
    metavar="E",
    help="A run ends when its validation loss has not moved for E epochs.",
)
@click.option(
    "--batch-sizes", metavar="LIST", help="Instead of a race: accuracy against batch size,"
)
@click.option("--learning-rates", metavar="LIST", help="at each of these rates.")
@other_hardware_option
@click.option("--out", type=click.Path(path_type=Path), help="The study's folder; studies/RECIPE.")
@click.option("--json", "as_json", is_flag=True, help="Print study.json and nothing else.")
def study(
    recipe: str,
    data: str | None,
    keep: str | None,
    strategies: str,
    workers: str,
    target: str | None,
    seeds: int,
    max_epochs: int | None,
    learning_rate: str | None,
    network: str,
    batch_size: int | None,
    grain_size: int | None,
    patience: int,
    batch_sizes: str | None,
    learning_rates: str | None,
    other_hardware: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Race strategies for k workers to a loss, and say which gets there soonest.

    The workers are virtual: k changes batch, rate and staleness, and runs are trained on what this
    machine has. Times are measured where k workers fit here, and modelled elsewhere. Run it again
    to go on after an interruption, or to add strategies, workers, seeds or epochs.

    \b
    Examples:
      samepath study digits --workers 1,2,4 --target auto
      samepath study my_recipe.py --strategies strong,warmup:epochs=10,lamb --seeds 3
      samepath study nodules-small --learning-rate largest --network 10GbE
      samepath study digits --batch-sizes 16,64,256 --learning-rates 0.001,0.003,0.01
    """
    from samepath.cli.study_display import StudyDisplay
    from samepath.engine.launch.reports import Interrupted
    from samepath.report.study import finish_study, tables_in_short
    from samepath.study.batches import batch_study
    from samepath.study.opening import StudyRequest
    from samepath.study.race import race
    from samepath.study.results import to_json

    if learning_rates is not None and batch_sizes is None:
        raise UserError("--learning-rates needs --batch-sizes; for a race, use --learning-rate")
    if batch_sizes is not None:
        refuse_of_a_race()
    loss, fraction = parse_study_target(target)
    request = StudyRequest(
        recipe=recipe,
        data=data,
        keep=keep,
        strategies=tuple(parse_list("--strategies", strategies)),
        workers=tuple(parse_counts("--workers", workers)),
        target=loss,
        **({} if fraction is None else {"fraction": fraction}),
        seeds=parse_counts("--seeds", str(seeds))[0],
        max_epochs=max_epochs,
        learning_rate=None if learning_rate is None else parse_rate(learning_rate),
        network=network,
        batch_size=batch_size,
        grain_size=grain_size,
        patience=patience,
        out=out,
        command=tuple(sys.argv),
        other_hardware=other_hardware,
    )
    sizes = [] if batch_sizes is None else parse_counts("--batch-sizes", batch_sizes)
    rates = [] if learning_rates is None else parse_rates(learning_rates)
    watcher = StudyDisplay()
    with stdout_kept_for_json(as_json):
        found: Study | GridStudy
        try:
            grid = sizes and batch_study(request, sizes, rates, watcher)
            found = grid or race(request, watcher)
        except Interrupted as stopped:
            watcher.note("stopped; the same command goes on from here")
            return stopped.exit_code
        found, page = finish_study(found, request.folder)
    if as_json:
        print_json(to_json(found))
    else:
        print_tables(tables_in_short(found), found.verdict, page)
    return 0


def refuse_of_a_race() -> None:
    """What a study of batch sizes has no use for is not silently left aside."""
    context = click.get_current_context()
    for name in _OF_A_RACE:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            instead = _INSTEAD.get(name, f"leave {option} out")
            raise UserError(
                f"{option} is for a race of strategies and --batch-sizes is none; {instead}"
            )


def print_tables(tables: list[tuple[str, Rows, str]], verdict: str, page: Path) -> None:
    """Titles, tables and a note below each; then the verdict, and where to see more."""
    from rich.console import Console

    console = Console()
    for title, rows, note in tables:
        console.print(_table(title, rows))
        console.print(f"{note}\n" if note else "", markup=False, highlight=False)
    console.print(verdict, markup=False, highlight=False)
    console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)


def _table(title: str, rows: list[list[str]]) -> object:
    from rich.table import Table

    head, *body = rows
    table = Table(title=title, title_justify="left", box=None)
    for name in head:
        table.add_column(name, justify="right")
    for row in body:
        table.add_row(*row)
    return table


def parse_list(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option} {text!r} names nothing; give a list, separated by commas")
    return parts


def parse_counts(option: str, text: str) -> list[int]:
    parts = parse_list(option, text)
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise UserError(
                f"{option} {text}: {part!r} is not a whole number of at least 1; give numbers "
                "separated by commas, such as 1,2,4"
            )
    return [int(part) for part in parts]


def parse_rate(text: str) -> float | Literal["largest"]:
    if text == "largest":
        return "largest"
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise UserError(f"--learning-rate {text}: give a rate above 0, or 'largest'")


def parse_rates(text: str) -> list[float]:
    rates = [parse_rate(part) for part in parse_list("--learning-rates", text)]
    if "largest" in rates:
        raise UserError(f"--learning-rates {text}: give numbers separated by commas")
    return [float(rate) for rate in rates]


def parse_study_target(
    text: str | None,
) -> tuple[float | Literal["auto"] | None, float | None]:
    """A loss or auto, and the fraction that auto was given."""
    if text is None:
        return None, None
    word, colon, fraction = text.partition(":")
    with suppress(ValueError):
        if word == "auto" and not colon:
            return "auto", None
        if word == "auto" and 0 < float(fraction) <= 1:
            return "auto", float(fraction)
        if math.isfinite(float(text)):
            return float(text), None
    raise UserError(f"--target {text}: give a loss, such as 0.003, or auto, or auto:0.5")
