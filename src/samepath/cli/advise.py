"""`samepath advise`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_report
from samepath.errors import UserError

MEASURED = "measured.json"


def parse_compute(text: str) -> float | Path:
    """Read what --compute is given."""
    if (factor := common.parse_number(text)) is not None:
        return factor
    folder = Path(text).parent if Path(text).name == MEASURED else Path(text)
    if not (folder / MEASURED).is_file():
        raise UserError(
            f"--compute {text}: give a factor, such as 12, or a folder that `samepath advise` or "
            f"`samepath profile` wrote on such a computer (it has {MEASURED})"
        )
    return folder


@click.command(short_help="Measure a recipe, and say how many workers and nodes to take.")
@common.recipe_argument()
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
@click.option(
    "--compute",
    metavar="FACTOR|FOLDER",
    callback=common.parsed_by(parse_compute),
    help="How many times as fast as this machine the computers behind other networks are; or an "
    "advice or a profile of the recipe that was measured on one of them.  [1]",
)
@click.option(
    "--workers-per-node",
    type=int,
    metavar="K",
    help="Workers in each computer behind other networks.  [as the network has, else 1]",
)
@click.option(
    "--critical-batch",
    type=click.Choice(["estimated", "measured"]),
    default="estimated",
    show_default=True,
    help="estimated: from the gradient noise scale of a short run. measured: also by branches of "
    "one run at several batch sizes (a few trainings; --minutes does not bound them).",
)
@click.option(
    "--batch-sizes",
    metavar="LIST",
    callback=common.parsed_by(partial(common.parse_counts, "--batch-sizes")),
    help="With measured: batch sizes of branches, multiples of the batch, such as 128,256.  "
    "[doubled while ten steps fit]",
)
@click.option(
    "--branch-at", type=int, metavar="E", help="With measured: epochs before branches.  [half]"
)
@click.option(
    "--branch-epochs",
    type=int,
    metavar="E",
    help="With measured: epochs after which losses are compared.  [a tenth, at least 2]",
)
@common.setting("--branch-seeds", 3, "N", "With measured: orders of the data for each batch size.")
@common.on_option
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
    compute: float | Path | None,
    workers_per_node: int | None,
    critical_batch: str,
    batch_sizes: list[int] | None,
    branch_at: int | None,
    branch_epochs: int | None,
    branch_seeds: int,
    on: str,
    price: float | None,
    minutes: float | None,
    quick: bool,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure RECIPE here for two minutes, and say how many workers and nodes to take, and why.

    Times grains, updates and reductions on real workers; tries learning rates in short runs; trains
    for the gradient noise scale. Times of more workers than this machine has are modelled, for
    computers like this one (or as --compute says) joined by each network, up to --max-workers.
    Writes a folder with advice.json, measured.json (for `samepath simulate`),
    figures and advice.html, in which learning rates and the noise scale are shown too.

    \b
    Examples:
      samepath advise digits
      samepath advise my_recipe.py --quick --floor 0.7
      samepath advise nodules --network 1GbE-pairs --price 0.35
      samepath advise my_recipe.py --network 10GbE --workers-per-node 4
      samepath advise nodules --network dgx-a100 --compute 40
      samepath advise nodules --network 10GbE --compute from-the-cluster/nodules-advice-1
      samepath advise digits --batch-size 64 --critical-batch measured
      samepath advise my_recipe.py --critical-batch measured --on dask:slurm,memory=8GB
      samepath advise cifar10 --data cifar-10-batches-bin --minutes 10
    """
    from samepath.insight.folder import BRANCHES, choose_folder, read_finding

    if quick and minutes is not None:
        raise UserError("--quick is --minutes 1; give one of the two")
    is_measured = critical_batch == "measured"
    if not is_measured:
        only = ("batch_sizes", "branch_at", "branch_epochs", "branch_seeds", "on")
        common.refuse_given(only, lambda _, flag: f"{flag} needs --critical-batch measured")
    folder = choose_folder("advice", recipe, out, begun=BRANCHES if is_measured else None)
    common.announce(f"measuring {recipe} here", into=folder)

    from samepath.insight.advise.advise import MINUTES, NETWORKS, QUICK_MINUTES, AdviseRequest
    from samepath.insight.advise.advise import advise as find_advice
    from samepath.insight.advise.branches import BranchRequest
    from samepath.report.advise import tables_in_short, write_advice
    from samepath.study.opening import StudyRequest
    from samepath.study.places.cluster import connected

    branches = BranchRequest(
        at=branch_at,
        epochs=branch_epochs,
        batch_sizes=tuple(batch_sizes or ()),
        seeds=branch_seeds,
        on=on,
    )
    request = AdviseRequest(
        recipe=recipe,
        data=data,
        keep=keep,
        **asked,
        networks=networks or NETWORKS,
        floor=floor,
        compute=compute if isinstance(compute, float) else 1.0,
        compute_from=compute if isinstance(compute, Path) else None,
        workers_per_node=workers_per_node,
        price_per_worker_hour=price,
        minutes=minutes if minutes is not None else QUICK_MINUTES if quick else MINUTES,
        branches=branches if is_measured else None,
        folder=folder,
        command=tuple(sys.argv),
    )
    kept = common.to_be_continued if is_measured else common.stdout_kept_for_json
    with kept(as_json), connected(StudyRequest(recipe=recipe, out=folder, on=on)):
        found, measured = find_advice(request, LiveWatcher())
        page = write_advice(found, measured, folder, recipe=recipe, command=request.command)
    if as_json:
        common.print_json(read_finding(folder, "advice"))
    else:
        *scaling, batch = found.verdict.splitlines()
        print_report(tables_in_short(found), batch, page, first=scaling)
