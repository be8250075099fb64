"""`samepath folds`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_report


@click.command(short_help="Cross-validate a recipe: train it K times.")
@common.recipe_argument()
@common.data_option
@common.setting("--folds", 5, "K", "Parts that are held out in turn.")
@click.option(
    "--groups",
    metavar="FACT",
    help="Examples that share it (a patient, a scan) are never on both sides: a fact of the "
    "recipe, or FILE.csv:COLUMN.",
)
@click.option(
    "--stratify",
    metavar="FACT",
    help="Balance it over the folds: label, a fact of the recipe, or FILE.csv:COLUMN.",
)
@common.setting("--repeats", 1, "R", "Repeat it with other folds.")
@common.setting(
    "--examples",
    "all",
    None,
    "What is split: all (training and validation data together), or the training data alone.",
    type=click.Choice(["all", "train"]),
)
@click.option(
    "-n",
    "num_workers",
    default="auto",
    show_default=True,
    metavar="N",
    callback=common.parsed_by(common.parse_workers),
    help="Workers of all folds under way together. auto: all of this machine's cores (or GPUs). "
    "Not with --on, which has its own.",
)
@click.option("--epochs", "max_epochs", type=int, metavar="E", help="In place of the recipe's.")
@click.option("--batch-size", type=int, metavar="B", help="In place of the recipe's.")
@click.option("--seed", type=int, metavar="S", help="Of the split, and of every run.")
@common.on_option
@common.other_hardware_option
@common.out_option("The folder; folds/RECIPE.")
@common.json_option
def folds(
    recipe: str,
    folds: int,
    groups: str | None,
    stratify: str | None,
    repeats: int,
    examples: Any,
    num_workers: Any,
    seed: int | None,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Cross-validate RECIPE: train it K times, and judge each time what was held out.

    Folds are trained side by side; each ends with the same bits at every N. The folder then has
    predictions.npz (of every example, by the model that has not seen it), and `samepath predict`
    takes it as an ensemble. Run it again to go on after an interruption.

    \b
    Examples:
      samepath folds digits --stratify label
      samepath folds my_recipe.py --folds 10 --groups patient -n 8
      samepath folds my_recipe.py --groups patients.csv:patient --stratify label --repeats 3
      samepath predict folds/my_recipe --data new_images.npy --out ensemble.npz
    """
    common.refuse_workers_elsewhere(num_workers, asked["on"])
    out = out or Path("folds") / Path(recipe).stem
    common.announce(f"training {folds} folds of {recipe}", on=num_workers, into=out)

    from samepath.report.folds import finish_folds, tables_in_short
    from samepath.study.folds import cross_validate, to_json
    from samepath.study.opening import StudyRequest
    from samepath.study.places.cluster import connected
    from samepath.study.splits import SplitRequest

    split = SplitRequest(
        folds=folds, groups=groups, stratify=stratify, repeats=repeats, examples=examples
    )
    request = StudyRequest(recipe=recipe, out=out, command=tuple(sys.argv), **asked)
    with common.to_be_continued(as_json), connected(request):
        watcher = LiveWatcher(own_thread=False)
        found = cross_validate(request, split, watcher, seed=seed, num_workers=num_workers)
        found, page = finish_folds(found, request.folder)
    if as_json:
        common.print_json(to_json(found))
    else:
        print_report(tables_in_short(found), found.verdict, page)
    return 3 if any(run.ended == "diverged" for run in found.runs) else 0
