"""`samepath profile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_report, say


@click.command(short_help="Show where the time of a recipe's steps goes.")
@common.recipe_argument()
@common.data_option
@common.keep_option
@common.workers_option
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="NAMES",
    help="samepath, ddp or queue; several separated by commas, or given again. "
    "samepath when not given.",
)
@common.setting("--steps", 10, "S", "How many to time of each engine, after warming up.")
@common.setting("--cycle-ms", 5.0, "MS", "How often the engine queue asks its coordinator.")
@common.setting("--fusion-mib", 64.0, "MIB", "How much the engine queue packs together.")
@click.option("--no-measure", is_flag=True, help="Leave out measured.json (half a minute).")
@common.shaping_options
@common.out_option("The folder; insight/RECIPE-profile-1.")
@common.json_option
def profile(
    recipe: str,
    data: str | None,
    keep: str | None,
    num_workers: int | Literal["auto"],
    engines: tuple[str, ...],
    steps: int,
    cycle_ms: float,
    fusion_mib: float,
    no_measure: bool,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Show where the time of RECIPE's steps goes on real workers, engine by engine.

    A timeline of every worker (load, forward, backward, each bucket's reduction, waiting, update),
    as a Chrome trace and a figure; how much communication hides behind computing, and how much
    waiting is for the slowest worker. Engines get the same batches: samepath is ours; ddp is
    torch's DistributedDataParallel; queue is Horovod's way, written here. Also takes a step apart
    (measured.json), for `samepath simulate`.

    \b
    Examples:
      samepath profile digits -n 2
      samepath profile nodules -n 2 --engine samepath,ddp,queue
      samepath profile my_recipe.py -n 4 --engine queue --cycle-ms 1 --steps 30
    """
    from samepath.insight.folder import choose_folder, read_finding

    folder = choose_folder("profile", recipe, out)
    common.announce(f"profiling {recipe}", on=num_workers, into=folder)

    from samepath.insight.profile.profile import ProfileRequest
    from samepath.insight.profile.profile import profile as profile_recipe
    from samepath.insight.profile.queue_reduction import QueueSettings
    from samepath.report.profile import (
        OPEN,
        summary,
        tables_in_short,
        trace_name,
        write_profile,
    )

    request = ProfileRequest(
        recipe=recipe,
        data=data,
        keep=keep,
        num_workers=num_workers,
        engines=tuple(common.parse_list("--engine", ",".join(engines)))
        if engines
        else ("samepath",),
        timed_steps=steps,
        **asked,
        queue=QueueSettings(
            cycle_seconds=cycle_ms / 1e3, fusion_bytes=round(fusion_mib * (1 << 20))
        ),
        measure=not no_measure,
        watcher=LiveWatcher,
    )
    with common.stdout_kept_for_json(as_json):
        found = profile_recipe(request, say)
        if found is None:  # a launcher's worker: the first one writes
            return
        page = write_profile(found, folder, recipe=recipe, command=sys.argv)
    if as_json:
        common.print_json({**read_finding(folder, "profile"), "folder": str(folder)})
        return
    print_report(tables_in_short(found), summary(found), page)
    traces = [str(folder / trace_name(each.engine)) for each in found.timelines]
    click.echo(f"trace{'s' if len(traces) > 1 else ''}: {', '.join(traces)}; {OPEN}")
