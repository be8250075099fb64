"""`samepath study`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from samepath.cli import common
from samepath.cli.config_file import config_option
from samepath.console import LiveWatcher, print_report
from samepath.errors import UserError

if TYPE_CHECKING:
    from samepath.study.opening import StudyRequest
    from samepath.study.results import GridStudy, Study

_OF_A_RACE = (
    *("strategies", "workers", "target", "learning_rate", "network", "batch_size", "patience"),
    *("tune", "studies", "hold", "critical_batch"),
)
_OF_ONE_RECIPE = ("data", "keep", "batch_size", "grain_size", "batch_sizes")
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
    if word in ("auto", "tuned"):
        part = common.parse_number(fraction)
        if not colon:
            return {"target": word}
        if part is not None and 0 < part <= 1:
            return {"target": word, "fraction": part}
    elif (loss := common.parse_number(text)) is not None:
        return {"target": loss}
    raise UserError(f"--target {text}: give a loss, such as 0.003, auto, auto:0.5, or tuned")


@click.command(short_help="Race strategies for many workers to a loss.")
@common.recipe_argument("recipes", nargs=-1, required=True, metavar="RECIPE...")
@config_option
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
    "recipe's batch) comes to after half (or this part) of its epochs; tuned[:FRACTION]: what its "
    "best trial comes to in three quarters, the median over five more seeds. The recipe's when "
    "not given, else auto.",
)
@common.setting("--hold", 1, "H", "Evaluations in a row that must be within the target.")
@common.setting("--seeds", 1, "N", "Runs of each.")
@click.option(
    "--tune",
    type=int,
    metavar="N",
    help="Trials of every strategy at every number of workers, what it prescribes among them; the "
    "best is run again with other seeds.",
)
@common.setting("--studies", 1, "M", "Repeat the whole with other seeds and trials.")
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
    "--critical-batch",
    type=click.Choice(["measured"]),
    help="measured: after the race, also the critical batch, by branches of the sequential run at "
    "several batch sizes (a few trainings; see docs/advise.md).",
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
@common.on_option
@common.other_hardware_option
@common.out_option(
    "The study's folder, with one in it for each of several recipes.  [studies/RECIPE]"
)
@common.json_option
def study(
    recipes: tuple[str, ...],
    strategies: str,
    workers: str,
    target: dict[str, Any] | None,
    seeds: int,
    critical_batch: str | None,
    batch_sizes: str | None,
    learning_rates: list[float] | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Race strategies for k workers to a loss, and say which gets there soonest; with several
    recipes, which does over all of them.

    The workers are virtual: k changes batch, rate and staleness, and runs are trained on what this
    machine has, or on a cluster (--on). Times are measured where k workers fit here, and modelled
    elsewhere. Run it again to go on after an interruption, or to add strategies, workers, seeds or
    epochs.

    \b
    Examples:
      samepath study digits --workers 1,2,4 --target auto
      samepath study my_recipe.py --strategies strong,warmup:epochs=10,lamb --seeds 3
      samepath study nodules-small --learning-rate largest --network 10GbE
      samepath study digits --tune 5 --studies 5 --target tuned
      samepath study digits nodules-small mine.py --tune 5
      samepath study digits --batch-size 64 --critical-batch measured
      samepath study digits --batch-sizes 16,64,256 --learning-rates 0.001,0.003,0.01
      samepath study my_recipe.py --seeds 5 --on dask:slurm,cores=4,memory=8GB,jobs=20
    """
    if len(recipes) > 1:
        _refuse_with_several(target, asked["learning_rate"])
    if learning_rates is not None and batch_sizes is None:
        raise UserError("--learning-rates needs --batch-sizes; for a race, use --learning-rate")
    if batch_sizes is not None:
        common.refuse_given(_OF_A_RACE, _not_of_a_race)
    doing = "training each batch size of" if batch_sizes else "racing strategies of"
    into = asked["out"] or Path("studies") / "+".join(Path(recipe).stem for recipe in recipes)
    common.announce(f"{doing} {', '.join(recipes)}", into=into)

    from samepath.insight.study_batch import plans_for, with_measured_batch
    from samepath.report.study import finish_study, tables_in_short
    from samepath.study.batches import batch_study
    from samepath.study.opening import StudyRequest
    from samepath.study.places.cluster import connected
    from samepath.study.race import race
    from samepath.study.results import to_json

    request = StudyRequest(
        recipe=recipes[0],
        strategies=tuple(common.parse_list("--strategies", strategies)),
        workers=tuple(common.parse_counts("--workers", workers)),
        seeds=common.parse_counts("--seeds", str(seeds))[0],
        command=tuple(sys.argv),
        **(target or {}),
        **asked,
    )
    sizes = [] if batch_sizes is None else common.parse_counts("--batch-sizes", batch_sizes)
    watcher = LiveWatcher(own_thread=False)
    is_measured = critical_batch is not None
    if len(recipes) > 1:
        _study_several(request, recipes, watcher, as_json, is_measured)
        return
    plans = plans_for([request]) if is_measured else []
    with common.to_be_continued(as_json), connected(request):
        found: Study | GridStudy
        if sizes:
            found = batch_study(request, sizes, learning_rates or [], watcher)
        else:
            found = race(request, watcher)
            for plan in plans:
                found = with_measured_batch(found, request, plan, watcher)
        found, page = finish_study(found, request.folder)
    if as_json:
        common.print_json(to_json(found))
    else:
        print_report(tables_in_short(found), found.verdict, page)


def _study_several(
    request: StudyRequest,
    recipes: tuple[str, ...],
    watcher: LiveWatcher,
    as_json: bool,
    is_measured: bool,
) -> None:
    """A study of each recipe, and how strategies stand over all."""
    from samepath.insight.study_batch import plans_for, with_measured_batch
    from samepath.report.study import finish_study
    from samepath.report.study_profile import finish_profiles
    from samepath.study.places.cluster import connected
    from samepath.study.profiles import profiles_of, requests_for, to_json
    from samepath.study.race import race
    from samepath.study.results import Study

    requests = requests_for(request, recipes)
    plans = plans_for(requests) if is_measured else [None] * len(requests)
    studies = []
    with common.to_be_continued(as_json), connected(request):
        for each, plan in zip(requests, plans, strict=True):
            raced = race(each, watcher)
            if plan is not None:
                raced = with_measured_batch(raced, each, plan, watcher)
            found, _ = finish_study(raced, each.folder)
            assert isinstance(found, Study)
            studies.append(found)
        profiles = profiles_of(studies, request.command)
        verdict, tables, page = finish_profiles(profiles, studies, requests[0].folder.parent)
    if as_json:
        common.print_json(to_json(profiles))
    else:
        print_report(tables, verdict, page)


def _refuse_with_several(target: dict[str, Any] | None, rate: float | str | None) -> None:
    """Refuse what can only be meant for one recipe."""

    def why(name: str, option: str) -> str:
        option = "--grain" if name == "grain_size" else option
        return f"{option} is for one recipe; leave it out, or study each recipe alone"

    common.refuse_given(_OF_ONE_RECIPE, why)
    if isinstance(rate, float):
        raise UserError(
            f"--learning-rate {rate:g} is for one recipe; give 'largest', or leave it out"
        )
    if isinstance(target and target["target"], float):
        raise UserError("--target LOSS is for one recipe; give auto or tuned, or leave it out")


def _not_of_a_race(name: str, option: str) -> str:
    instead = _INSTEAD.get(name, f"leave {option} out")
    return f"{option} is for a race of strategies and --batch-sizes is none; {instead}"
