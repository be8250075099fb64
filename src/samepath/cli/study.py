"""`samepath study`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from samepath.cli.common import (
    data_option,
    grain_option,
    json_option,
    keep_option,
    other_hardware_option,
    out_option,
    parse_counts,
    parse_list,
    parse_number,
    parsed_by,
    print_json,
    refuse_given,
    to_be_continued,
)
from samepath.console import LiveWatcher, print_report
from samepath.errors import UserError

if TYPE_CHECKING:
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


def parse_rate(text: str) -> float | Literal["largest"]:
    """Read what --learning-rate is given."""
    if text == "largest":
        return "largest"
    rate = parse_number(text)
    if rate is None or rate <= 0:
        raise UserError(f"--learning-rate {text}: give a rate above 0, or 'largest'")
    return rate


def parse_rates(text: str) -> list[float]:
    """Read what --learning-rates is given."""
    rates = [parse_rate(part) for part in parse_list("--learning-rates", text)]
    if "largest" in rates:
        raise UserError(f"--learning-rates {text}: give numbers separated by commas")
    return [float(rate) for rate in rates]


def parse_target(text: str) -> dict[str, Any]:
    """Read what --target is given, as fields of a StudyRequest."""
    word, colon, fraction = text.partition(":")
    if word == "auto":
        part = parse_number(fraction)
        if not colon:
            return {"target": "auto"}
        if part is not None and 0 < part <= 1:
            return {"target": "auto", "fraction": part}
    elif (loss := parse_number(text)) is not None:
        return {"target": loss}
    raise UserError(f"--target {text}: give a loss, such as 0.003, or auto, or auto:0.5")


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
    callback=parsed_by(parse_target),
    help="Validation loss to race to; auto[:FRACTION]: what the sequential run (one worker, the "
    "recipe's batch) comes to after half (or this part) of its epochs. The recipe's when not "
    "given, else auto.",
)
@click.option("--seeds", type=int, default=1, show_default=True, metavar="N", help="Runs of each.")
@click.option("--max-epochs", type=int, metavar="E", help="Most epochs of a run; the recipe's.")
@click.option(
    "--learning-rate",
    metavar="R",
    callback=parsed_by(parse_rate),
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
@grain_option
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
@click.option(
    "--learning-rates",
    metavar="LIST",
    callback=parsed_by(parse_rates),
    help="at each of these rates.",
)
@other_hardware_option
@out_option("The study's folder; studies/RECIPE.")
@json_option
def study(
    strategies: str,
    workers: str,
    target: dict[str, Any] | None,
    seeds: int,
    batch_sizes: str | None,
    learning_rates: list[float] | None,
    as_json: bool,
    **asked: Any,
) -> None:
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
    from samepath.report.study import finish_study, tables_in_short
    from samepath.study.batches import batch_study
    from samepath.study.opening import StudyRequest
    from samepath.study.race import race
    from samepath.study.results import to_json

    if learning_rates is not None and batch_sizes is None:
        raise UserError("--learning-rates needs --batch-sizes; for a race, use --learning-rate")
    if batch_sizes is not None:
        refuse_given(_OF_A_RACE, _not_of_a_race)
    request = StudyRequest(
        strategies=tuple(parse_list("--strategies", strategies)),
        workers=tuple(parse_counts("--workers", workers)),
        seeds=parse_counts("--seeds", str(seeds))[0],
        command=tuple(sys.argv),
        **(target or {}),
        **asked,
    )
    sizes = [] if batch_sizes is None else parse_counts("--batch-sizes", batch_sizes)
    watcher = LiveWatcher(own_thread=False)
    with to_be_continued(as_json):
        found: Study | GridStudy
        if sizes:
            found = batch_study(request, sizes, learning_rates or [], watcher)
        else:
            found = race(request, watcher)
        found, page = finish_study(found, request.folder)
    if as_json:
        print_json(to_json(found))
    else:
        print_report(tables_in_short(found), found.verdict, page)


def _not_of_a_race(name: str, option: str) -> str:
    instead = _INSTEAD.get(name, f"leave {option} out")
    return f"{option} is for a race of strategies and --batch-sizes is none; {instead}"
