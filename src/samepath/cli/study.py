"""`samepath study`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_report
from samepath.errors import UserError

if TYPE_CHECKING:
    from samepath.study.results import GridStudy, Study

_OF_A_RACE = (
    *("strategies", "workers", "target", "learning_rate", "network", "batch_size", "patience"),
)
_INSTEAD = {
    "learning_rate": "give --learning-rates",
    "batch_size": "give all sizes to --batch-sizes",
}


def parse_rate(text: str) -> float | Literal["largest"]:
    """Read what --learning-rate is given."""
    if text == "largest":
        return "largest"
    rate = common.parse_number(text)
    if rate is None or rate <= 0:
        raise UserError(f"--learning-rate {text}: give a rate above 0, or 'largest'")
    return rate


def parse_rates(text: str) -> list[float]:
    """Read what --learning-rates is given."""
    rates = [parse_rate(part) for part in common.parse_list("--learning-rates", text)]
    if "largest" in rates:
        raise UserError(f"--learning-rates {text}: give numbers separated by commas")
    return [float(rate) for rate in rates]


def parse_target(text: str) -> dict[str, Any]:
    """Read what --target is given, as fields of a StudyRequest."""
    word, colon, fraction = text.partition(":")
    if word == "auto":
        part = common.parse_number(fraction)
        if not colon:
            return {"target": "auto"}
        if part is not None and 0 < part <= 1:
            return {"target": "auto", "fraction": part}
    elif (loss := common.parse_number(text)) is not None:
        return {"target": loss}
    raise UserError(f"--target {text}: give a loss, such as 0.003, or auto, or auto:0.5")


@click.command()
@click.argument("recipe")
@common.data_option
@common.keep_option
@common.setting(
    "--strategies",
    "strong,weak,linear,warmup,sqrt",
    "LIST",
    "Which to race (docs/strategies.md has them all).",
)
@common.setting("--workers", "1,2,4,8,16,32", "LIST", "For how many.")
@click.option(
    "--target",
    metavar="LOSS",
    callback=common.parsed_by(parse_target),
    help="Validation loss to race to; auto[:FRACTION]: what the sequential run (one worker, the "
    "recipe's batch) comes to after half (or this part) of its epochs. The recipe's when not "
    "given, else auto.",
)
@common.setting("--seeds", 1, "N", "Runs of each.")
@click.option("--max-epochs", type=int, metavar="E", help="Most epochs of a run; the recipe's.")
@click.option(
    "--learning-rate",
    metavar="R",
    callback=common.parsed_by(parse_rate),
    help="In place of the recipe's; largest: the largest at which one worker still converges.",
)
@common.setting(
    "--network",
    "1GbE",
    "NAME",
    "Link that times are modelled for: 1GbE, 10GbE, 100Gb, NVLink, here (measured between two "
    "workers of this machine), or one you measured, such as 940Mbit/s:60us.",
)
@click.option("--batch-size", type=int, metavar="B", help="Of the sequential run.")
@common.grain_options
@common.setting(
    "--patience", 10, "E", "A run ends when its validation loss has not moved for E epochs."
)
@click.option(
    "--batch-sizes", metavar="LIST", help="Instead of a race: accuracy against batch size,"
)
@click.option(
    "--learning-rates",
    metavar="LIST",
    callback=common.parsed_by(parse_rates),
    help="at each of these rates.",
)
@common.other_hardware_option
@common.out_option("The study's folder; studies/RECIPE.")
@common.json_option
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
        common.refuse_given(_OF_A_RACE, _not_of_a_race)
    request = StudyRequest(
        strategies=tuple(common.parse_list("--strategies", strategies)),
        workers=tuple(common.parse_counts("--workers", workers)),
        seeds=common.parse_counts("--seeds", str(seeds))[0],
        command=tuple(sys.argv),
        **(target or {}),
        **asked,
    )
    sizes = [] if batch_sizes is None else common.parse_counts("--batch-sizes", batch_sizes)
    watcher = LiveWatcher(own_thread=False)
    with common.to_be_continued(as_json):
        found: Study | GridStudy
        if sizes:
            found = batch_study(request, sizes, learning_rates or [], watcher)
        else:
            found = race(request, watcher)
        found, page = finish_study(found, request.folder)
    if as_json:
        common.print_json(to_json(found))
    else:
        print_report(tables_in_short(found), found.verdict, page)


def _not_of_a_race(name: str, option: str) -> str:
    instead = _INSTEAD.get(name, f"leave {option} out")
    return f"{option} is for a race of strategies and --batch-sizes is none; {instead}"
