"""`samepath advise`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_report
from samepath.errors import UserError


@click.command()
@click.argument("recipe")
@common.data_option
@common.keep_option
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="NAME",
    help="Machines to advise for, one table each; here (this machine), 1GbE and 10GbE when not "
    "given. Also 100Gb, NVLink, 1GbE-pairs, 10GbE-racks, summit, dgx-a100, or a link you measured, "
    "such as 940Mbit/s:60us. May be given again.",
)
@common.setting(
    "--floor", 0.8, "F", "The least efficiency (speed-up / workers) that is worth its cost."
)
@click.option("--price", type=float, metavar="P", help="Price of a worker-hour; adds a column.")
@click.option("--minutes", type=float, metavar="M", help="About how long it may take.  [2]")
@click.option("--quick", is_flag=True, help="Take about one minute.")
@click.option("--steps", type=int, metavar="S", help="The most steps of each short run.")
@common.shaping_options
@common.out_option("The folder; insight/RECIPE-advice-1.")
@common.json_option
def advise(
    recipe: str,
    data: str | None,
    keep: str | None,
    networks: tuple[str, ...],
    floor: float,
    price: float | None,
    minutes: float | None,
    quick: bool,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure RECIPE here for two minutes, and say how many workers to take, and why.

    Times grains, updates and reductions on real workers; tries learning rates in short runs; trains
    for the gradient noise scale. Times of more workers than this machine has are modelled, for
    computers like this one joined by each network, up to --max-workers. Writes a folder with
    advice.json, measured.json (for `samepath simulate`), a figure and advice.html.

    \b
    Examples:
      samepath advise digits
      samepath advise my_recipe.py --quick --floor 0.7
      samepath advise nodules --network 1GbE-pairs --price 0.35
      samepath advise cifar10 --data cifar-10-batches-bin --minutes 10
    """
    from samepath.insight.advise.advise import MINUTES, NETWORKS, QUICK_MINUTES, AdviseRequest
    from samepath.insight.advise.advise import advise as find_advice
    from samepath.insight.folder import choose_folder, read_finding
    from samepath.report.advise import tables_in_short, write_advice

    if quick and minutes is not None:
        raise UserError("--quick is --minutes 1; give one of the two")
    request = AdviseRequest(
        recipe=recipe,
        data=data,
        keep=keep,
        **asked,
        networks=networks or NETWORKS,
        floor=floor,
        price_per_worker_hour=price,
        minutes=minutes if minutes is not None else QUICK_MINUTES if quick else MINUTES,
        command=tuple(sys.argv),
    )
    folder = choose_folder("advice", recipe, out)
    with common.stdout_kept_for_json(as_json):
        found, measured = find_advice(request, LiveWatcher())
        page = write_advice(found, measured, folder, recipe=recipe, command=request.command)
    if as_json:
        common.print_json(read_finding(folder, "advice"))
    else:
        print_report(tables_in_short(found), found.verdict, page)
