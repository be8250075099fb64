"""`samepath curate compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from samepath.cli.common import (
    PATH,
    data_option,
    json_option,
    other_hardware_option,
    out_option,
    parse_counts,
    parse_list,
    parse_number,
    parsed_by,
    print_json,
    to_be_continued,
)
from samepath.console import LiveWatcher, print_report
from samepath.errors import UserError


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read what --batch-sizes is given."""
    return tuple(parse_counts("--batch-sizes", text))


def parse_decays(text: str) -> tuple[float, ...]:
    """Read what --weight-decays is given."""
    decays = []
    for part in parse_list("--weight-decays", text):
        if (decay := parse_number(part, least=0)) is None:
            raise UserError(
                f"--weight-decays {text}: {part!r} is no number of at least 0; give numbers "
                "separated by commas, such as 0.0005,0.005"
            )
        decays.append(decay)
    return tuple(decays)


@click.command()
@click.argument("recipe")
@data_option
@click.option("--keep", required=True, type=PATH, help="The keep-list.")
@click.option(
    "--random",
    "control",
    type=PATH,
    help="A keep-list with as many kept at random; random.csv beside the other when not given.",
)
@click.option(
    "--batch-sizes",
    metavar="LIST",
    callback=parsed_by(parse_sizes),
    help="The recipe's when not given.",
)
@click.option(
    "--weight-decays",
    metavar="LIST",
    callback=parsed_by(parse_decays),
    help="The recipe's when not given.",
)
@click.option("--seeds", type=int, default=4, show_default=True, metavar="N", help="Runs of each.")
@click.option("--max-epochs", type=int, metavar="E", help="Epochs of every run; the recipe's.")
@other_hardware_option
@out_option("The folder; compare beside the keep-list.")
@json_option
def compare(
    keep: Path,
    control: Path | None,
    batch_sizes: tuple[int, ...] | None,
    weight_decays: tuple[float, ...] | None,
    seeds: int,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Train RECIPE on all its data, on what a keep-list keeps, and on as many examples kept at
    random: did curation help?

    Every kind of data at every batch size and weight decay with every seed. Run it again to go on
    after an interruption, or to add batch sizes, decays, seeds or epochs.

    \b
    Example:
      samepath curate compare cifar10-small --keep curated/keep.csv --batch-sizes 64,256,1024
    """
    from samepath.curation.compare import Wanted, to_json
    from samepath.curation.compare import compare as compare_all
    from samepath.report.curation import comparison_table, finish_comparison
    from samepath.study.opening import StudyRequest

    request = StudyRequest(
        seeds=parse_counts("--seeds", str(seeds))[0],
        out=out or keep.parent / "compare",
        command=tuple(sys.argv),
        **asked,
    )
    wanted = Wanted(
        filtered=keep,
        random=control or keep.with_name("random.csv"),
        batch_sizes=batch_sizes or (),
        weight_decays=weight_decays or (),
    )
    with to_be_continued(as_json):
        found = compare_all(request, wanted, LiveWatcher(own_thread=False))
        found, page = finish_comparison(found, request.folder)
    if as_json:
        print_json(to_json(found))
    else:
        title = f"{found.metric} after {found.epochs} epochs"
        print_report([(title, comparison_table(found), "")], found.verdict, page)
