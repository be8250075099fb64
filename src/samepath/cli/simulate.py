"""`samepath simulate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import print_report, say, status
from samepath.errors import UserError

_FOR_MEASURING = ("data", "keep", "threads", "seconds", "profile")
MOST_WORKERS = 100_000


def parse_worker_range(text: str) -> list[int]:
    """Read '1,2,96', or '1:1536' (also '1,...,1536'): doubled from the first to the last."""
    found: list[int] = []
    for part in common.parse_list("--workers", text.replace(" ", "").replace(",...,", ":")):
        first, colon, last = part.partition(":")
        ends = [first, last] if colon else [first]
        if not all(end.isdecimal() and 1 <= int(end) <= MOST_WORKERS for end in ends):
            raise UserError(
                f"--workers {text}: {part!r} is no number of workers from 1 to {MOST_WORKERS:,}; "
                "give a list such as 1,2,4,96, or a range such as 1:1536"
            )
        number, stop = int(ends[0]), int(ends[-1])
        if number > stop:
            raise UserError(
                f"--workers {text}: {part!r} ends before it begins; try {stop}:{number}"
            )
        while number < stop:
            found.append(number)
            number *= 2
        found.append(stop)
    return sorted(set(found))


@click.command(short_help="Simulate a recipe's step on machines you do not have.")
@click.argument("source", metavar="RECIPE|FOLDER")
@common.data_option
@common.keep_option
@click.option(
    "--workers",
    metavar="LIST",
    callback=common.parsed_by(parse_worker_range),
    help="Numbers of workers: 1,2,4,96, or 1:1536 for 1, 2, 4 and so on to 1536.  [1:1536, or to "
    "where all grains of the batch have a worker]",
)
@common.setting(
    "--network",
    "10GbE",
    "LIST",
    "Links or machines: 1GbE, 10GbE, 100Gb, NVLink, 1GbE-pairs, 10GbE-racks, summit, "
    "dgx-a100, here (measured between workers of this machine), or your own, such as "
    "940Mbit/s:60us.",
)
@common.setting(
    "--policy",
    "samepath,queue",
    "LIST",
    "How gradients come together: samepath (its buckets), queue (Horovod's), ddp; each "
    "with :ring or :tree to reduce that way (samepath:tree).",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    default="strong",
    show_default=True,
    help="Workers share one batch, or have one each.",
)
@click.option("--batch-size", type=int, metavar="B", help="Of a step (weak: of each worker's).")
@common.grain_options
@click.option("--threads", type=int, metavar="T", help="Threads per worker, for measuring.")
@common.setting(
    "--stragglers",
    0.0,
    "SIGMA",
    "Workers differ in a step by this much (standard deviation of the logarithm).",
)
@common.setting("--seed", 0, "S", "Of the random draws.")
@common.setting("--trials", 200, None, "Steps simulated of each.")
@common.setting("--seconds", 30.0, "T", "For measuring, about.")
@click.option(
    "--profile",
    type=common.PATH,
    metavar="FOLDER",
    help="A profile or an advice of the recipe, instead of measuring it again.",
)
@common.out_option("Folder to write.")
@common.json_option
def simulate(
    source: str,
    workers: list[int] | None,
    network: str,
    policy: str,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Simulate a recipe's step on machines you do not have, to thousands of workers.

    A RECIPE is measured first, here; a FOLDER is what `samepath profile`, `advise` or `simulate`
    wrote. What comes out is modelled, and says so; docs/advise.md has how far it can be believed.

    \b
    Examples:
      samepath simulate nodules --network 1GbE-pairs --workers 1,2,4,8,16,32
      samepath simulate cifar10-small --scaling weak --network summit --policy ddp:tree,queue:tree
      samepath simulate insight/nodules-advice-1 --network 1GbE,10GbE --stragglers 0.1
    """
    from samepath.insight.folder import choose_folder

    from_folder = Path(source).is_dir()
    if from_folder:
        common.refuse_given(
            _FOR_MEASURING,
            lambda name, option: (
                f"{option} is for a recipe, but {source} has been measured already; leave it out"
            ),
        )
    folder = choose_folder("simulation", Path(source).name if from_folder else source, out)
    doing = "simulating" if from_folder else "measuring and simulating"
    common.announce(f"{doing} {source}", into=folder)

    from samepath.insight.simulate import SimulationRequest, run_simulation, verdict
    from samepath.report.simulate import NOTE, PAGE, curve_table, write_simulation

    request = SimulationRequest(
        source=source,
        workers=tuple(workers or ()),
        networks=tuple(dict.fromkeys(common.parse_list("--network", network))),
        policies=tuple(dict.fromkeys(common.parse_list("--policy", policy))),
        **asked,
    )
    with common.stdout_kept_for_json(as_json), status("measuring and simulating"):
        simulation = run_simulation(request, say)
        content = write_simulation(folder, simulation, sys.argv)
    if as_json:
        common.print_json({"folder": str(folder), **content})
        return
    tables = [(f"{c.name} (modelled)", curve_table(c), "") for c in simulation.curves]
    *others, (title, rows, _) = tables
    print_report([*others, (title, rows, NOTE)], verdict(simulation), folder / PAGE)
