"""`samepath worth`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_report


@click.command(short_help="Measure what generated nodules are worth to a classifier.")
@click.argument("generator", metavar="GENERATOR")
@click.option(
    "--data",
    required=True,
    metavar="PATH",
    help="Real nodules with two classes: an .npz with volume and label (or category), perhaps mask "
    "and patient; or a folder of NIfTI pairs with facts.csv.",
)
@common.setting(
    "--classifier", "nodules-classifier", "RECIPE", "Trained on each arm; judged on real nodules."
)
@common.setting(
    "--arms",
    "real,augmented,generated,both,synthetic",
    "A,B",
    "What classifiers are trained on: real; real augmented; real and generated; both; generated "
    "alone (synthetic).",
    callback=common.parsed_by(lambda text: tuple(common.parse_list("--arms", text))),
)
@common.setting(
    "--percents",
    "25,50,100",
    "P,Q",
    "Shares of the real training nodules.",
    callback=common.parsed_by(lambda text: tuple(common.parse_counts("--percents", text))),
)
@common.setting("--folds", 5, "K", "Parts that are held out in turn, by patient where known.")
@common.setting("--seeds", 5, "S", "Classifiers for each fold, arm and share.")
@common.setting("--times", 1.0, "T", "Generated nodules for each real one.")
@click.option(
    "--epochs",
    type=int,
    metavar="E",
    help="Of a classifier on the largest share; others make about as many steps.",
)
@click.option("--generator-epochs", type=int, metavar="E", help="Of a generator, likewise.")
@common.setting("--seed", 0, "S", "Of the split, the generators and what they generate.")
@click.option(
    "-n",
    "num_workers",
    default="auto",
    show_default=True,
    metavar="N",
    callback=common.parsed_by(common.parse_workers),
    help="Workers of all runs under way together. auto: all of this machine's cores (or GPUs). Not "
    "with --on, which has its own.",
)
@common.on_option
@common.other_hardware_option
@common.out_option("The folder; worth/GENERATOR.")
@common.json_option
def worth(
    classifier: str,
    data: str,
    num_workers: Any,
    on: str,
    other_hardware: bool,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure what nodules of GENERATOR are worth to a classifier of real ones.

    GENERATOR is a recipe (nodules-small), or a run of one, whose recipe and epochs are taken: its
    weights are not, for they have seen all data. In each fold a generator learns from the training
    part alone, at each share from that share; classifiers are trained with and without what it
    makes, and judged on real nodules that neither has seen. Run it again to go on after an
    interruption.

    \b
    Examples:
      samepath worth runs/ct --data ct_nodules32.npz
      samepath worth nodules-small --data ct_nodules32.npz --folds 2 --seeds 2 --percents 100 \\
        --epochs 5 --generator-epochs 5
    """
    common.refuse_workers_elsewhere(num_workers, on)
    out = out or Path("worth") / Path(asked["generator"]).stem
    what = f"measuring what nodules of {asked['generator']} are worth to {classifier}"
    common.announce(what, on=num_workers, into=out)

    from samepath.recipes.nodules.worth.page import finish_worth, tables_in_short
    from samepath.recipes.nodules.worth.runs import WorthRequest, measure_worth, to_json
    from samepath.study.opening import StudyRequest
    from samepath.study.places.cluster import connected

    wanted = WorthRequest(**asked)
    request = StudyRequest(
        recipe=classifier,
        data=data,
        out=out,
        on=on,
        other_hardware=other_hardware,
        command=tuple(sys.argv),
    )
    with common.to_be_continued(as_json), connected(request):
        watcher = LiveWatcher(own_thread=False)
        found = measure_worth(request, wanted, watcher, num_workers=num_workers)
        page = finish_worth(found, request.folder)
    if as_json:
        common.print_json(to_json(found))
    else:
        print_report(tables_in_short(found), found.verdict, page)
