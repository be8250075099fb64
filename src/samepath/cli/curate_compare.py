"""`samepath curate compare`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from samepath.cli.common import (
    data_option,
    other_hardware_option,
    print_json,
    stdout_kept_for_json,
)
from samepath.cli.study import parse_counts, parse_list, print_tables
from samepath.errors import UserError


@click.command()
@click.argument("recipe")
@data_option
@click.option("--keep", required=True, type=click.Path(path_type=Path), help="The keep-list.")
@click.option(
    "--random",
    "control",
    type=click.Path(path_type=Path),
    help="A keep-list with as many kept at random; random.csv beside the other when not given.",
)
@click.option("--batch-sizes", metavar="LIST", help="The recipe's when not given.")
@click.option("--weight-decays", metavar="LIST", help="The recipe's when not given.")
@click.option("--seeds", type=int, default=4, show_default=True, metavar="N", help="Runs of each.")
@click.option("--max-epochs", type=int, metavar="E", help="Epochs of every run; the recipe's.")
@other_hardware_option
@click.option(
    "--out", type=click.Path(path_type=Path), help="The folder; compare beside the keep-list."
)
@click.option("--json", "as_json", is_flag=True, help="Print comparison.json and nothing else.")
def compare(
    recipe: str,
    data: str | None,
    keep: Path,
    control: Path | None,
    batch_sizes: str | None,
    weight_decays: str | None,
    seeds: int,
    max_epochs: int | None,
    other_hardware: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Did it help? Train RECIPE on all its data, on what a keep-list keeps, and on as many
    examples kept at random.

    Every kind of data at every batch size and weight decay with every seed. Run it again to go on
    after an interruption, or to add batch sizes, decays, seeds or epochs.

    \b
    Example:
      samepath curate compare cifar10-small --keep curated/keep.csv --batch-sizes 64,256,1024
    """
    from samepath.cli.study_display import StudyDisplay
    from samepath.curation.compare import Wanted, to_json
    from samepath.curation.compare import compare as compare_all
    from samepath.engine.launch.reports import Interrupted
    from samepath.report.curation import comparison_table, finish_comparison
    from samepath.study.opening import StudyRequest

    request = StudyRequest(
        recipe=recipe,
        data=data,
        seeds=parse_counts("--seeds", str(seeds))[0],
        max_epochs=max_epochs,
        out=out or keep.parent / "compare",
        command=tuple(sys.argv),
        other_hardware=other_hardware,
    )
    wanted = Wanted(
        filtered=keep,
        random=control or keep.with_name("random.csv"),
        batch_sizes=tuple(parse_counts("--batch-sizes", batch_sizes) if batch_sizes else ()),
        weight_decays=tuple(parse_decays(weight_decays) if weight_decays else ()),
    )
    watcher = StudyDisplay()
    with stdout_kept_for_json(as_json):
        try:
            found = compare_all(request, wanted, watcher)
        except Interrupted as stopped:
            watcher.note("stopped; the same command goes on from here")
            return stopped.exit_code
        found, page = finish_comparison(found, request.folder)
    if as_json:
        print_json(to_json(found))
    else:
        title = f"{found.metric} after {found.epochs} epochs"
        print_tables([(title, comparison_table(found), "")], found.verdict, page)
    return 0


def parse_decays(text: str) -> list[float]:
    decays = []
    for part in parse_list("--weight-decays", text):
        with suppress(ValueError):
            if 0 <= float(part) < float("inf"):
                decays.append(float(part))
                continue
        raise UserError(
            f"--weight-decays {text}: {part!r} is no number of at least 0; give numbers separated "
            "by commas, such as 0.0005,0.005"
        )
    return decays
