"""`samepath verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, count, print_table
from samepath.errors import UserError

if TYPE_CHECKING:
    from samepath.engine.verify.compare import Values
    from samepath.engine.verify.script import ScriptDifference, ScriptVerdict
    from samepath.engine.verify.verify import Counted, Difference, Trained, Verdict

_OTHERWISE_CALLED = {"grain_size": "--grain", "virtual_workers": "--as-workers"}
_OF_RECIPES = (
    *("data", "keep", "steps", "batch_size", "max_workers", "seed", "threads", "compile"),
    *("loader_workers", "strategy", *_OTHERWISE_CALLED),
)


@click.command(short_help="Train at several worker counts, and compare every bit.")
@common.recipe_argument(metavar="RECIPE|SCRIPT")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@common.data_option
@common.keep_option
@click.option(
    "-n",
    "counts",
    metavar="N,N,...",
    help="Worker counts, compared with the first.  [default: those of 1,2,3,5 that fit the batch; "
    "1,2,3 of a script]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="S",
    help="Steps to take at every count. Long data are made shorter, so that an epoch ends in them.",
)
@common.shaping_options
@common.strategy_option
@click.option(
    "--as-workers",
    "virtual_workers",
    type=int,
    metavar="K",
    help="k of the strategy; the largest N when not given.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="PATH",
    help="A file or folder that SCRIPT finds in the empty folder it is run in.",
)
@common.json_option
def verify(
    recipe: str,
    arguments: tuple[str, ...],
    links: tuple[str, ...],
    data: str | None,
    keep: str | None,
    counts: str | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Train RECIPE, or run SCRIPT, at several worker counts and compare every bit.

    Every run is what samepath train does at that count (one worker: without a launcher), through an
    epoch's end, its short last batch and its evaluation; one more run is saved, and continued at
    other counts. Compared are final digests, the log, all metrics and, after every step, weights,
    buffers, optimizer state and losses. When they do not agree, the runs are repeated up to where
    they part, to find the first step, tensor and module that differ and the likely cause. Exit code
    0: the same path in every run; 1: not.

    A SCRIPT with a loop of its own (one that calls samepath.start()) is run whole at every count,
    each time in a new, empty folder: its trainers are compared before and after every step, and
    then what its first worker prints and the files it writes. ARGUMENTS are the script's.

    \b
    Examples:
      samepath verify digits -n 1,2,3,5
      samepath verify my_recipe.py -n 1,4 --steps 100
      samepath verify my_recipe.py -n 1,1     is it repeatable at all?
      samepath verify my_loop.py -n 1,2,3 --link data -- --epochs 2
    """
    from samepath.engine.verify.what import is_script

    given = None if counts is None else common.parse_counts("-n", counts)
    if is_script(recipe):
        common.refuse_given(
            _OF_RECIPES,
            lambda name, option: (
                f"{_OTHERWISE_CALLED.get(name, option)} is for recipes, and {recipe} decides that "
                "itself; "
                "leave it out, or give it to the script, after --"
            ),
        )
        return _verify_script(recipe, arguments, links, given, as_json=as_json)
    if arguments or links:
        what = " ".join(arguments) or "--link"
        raise UserError(f"{what}: only a script takes that, and {recipe} is a recipe; leave it out")
    common.announce(f"verifying {recipe} on {_counts_words(given)}")

    from samepath.engine.verify.verify import VerifyRequest
    from samepath.engine.verify.verify import verify as verify_request

    request = VerifyRequest(
        recipe=recipe,
        data=data,
        keep=keep,
        counts=given,
        **asked,
        tell=lambda text: click.echo(text, err=True),
        display=LiveWatcher,
    )
    with common.stdout_kept_for_json(as_json):
        verdict = verify_request(request)
    if as_json:
        common.print_json(_as_json(verdict))
    else:
        _show(verdict)
    return 0 if verdict.equal else 1


def _counts_words(counts: list[int] | None) -> str:
    return "several worker counts" if counts is None else f"{','.join(map(str, counts))} workers"


def _verify_script(
    script: str,
    arguments: tuple[str, ...],
    links: tuple[str, ...],
    counts: list[int] | None,
    *,
    as_json: bool,
) -> int:
    common.announce(f"verifying the script {script} on {_counts_words(counts)}")

    from dataclasses import asdict

    from samepath.engine.verify.script import COUNTS, ScriptRequest, verify_script

    request = ScriptRequest(
        script=script,
        arguments=arguments,
        links=links,
        counts=counts or COUNTS,
        tell=lambda text: click.echo(text, err=True),
    )
    with common.stdout_kept_for_json(as_json):
        verdict = verify_script(request)
    if as_json:
        common.print_json({"equal": verdict.equal, **asdict(verdict)})
    else:
        _show_script(verdict)
    return 0 if verdict.equal else 1


def _show_script(verdict: ScriptVerdict) -> None:
    rows = [["workers", "steps", "digest", "printed lines", "files", "path"]]
    for place, run in enumerate(verdict.runs):
        path = "differs" if run.parts else "the same" if place else "reference"
        steps, digests = "+".join(map(str, run.steps)), " ".join(d[:16] for d in run.digests[:3])
        more = " ..." if len(run.digests) > 3 else ""
        rows.append(
            [
                str(run.num_workers),
                steps,
                digests + more,
                str(run.num_lines),
                str(run.num_files),
                path,
            ]
        )
    print_table(rows)
    click.echo()
    if verdict.difference is not None:
        _show_script_difference(verdict.difference)
    else:
        counts = [str(run.num_workers) for run in verdict.runs]
        trainers = len(verdict.runs[0].digests)
        of = "" if trainers == 1 else f" of all {trainers} trainers"
        click.echo(
            f"The same path on {', '.join(counts[:-1])} and {counts[-1]} workers: weights, "
            f"buffers, optimizer state, losses and metrics{of} agree to the last bit after every "
            "step, and so does what is printed and written."
        )
    if verdict.unsteady:
        click.echo(
            "Not compared, for they change from run to run at one worker count too: "
            + ", ".join(verdict.unsteady)
        )


def _show_script_difference(difference: ScriptDifference) -> None:
    one, other = (count(n, "worker") for n in difference.num_workers)
    who = f"two runs on {one}" if one == other else f"{one} and {other}"
    if difference.trainer is None:
        where = difference.name
    else:
        when = {
            "prepare": "when it is prepared",
            "end": "at the end",
            "begin": "before step {next}",
        }
        after = {"step": "in step {step}", "evaluate": "in an evaluation after step {step}"}
        words = (when | after).get(difference.kind, "after step {step}")
        step = difference.step or 0
        where = f"trainer {difference.trainer}, {words.format(step=step, next=step + 1)}"
    whose = f" (seen on worker {difference.worker})" if difference.worker else ""
    click.echo(f"Not the same path: {who} part at {where}{whose}.\n")
    lines = {"first": _first(difference.name, difference.values)}
    if difference.trainer is None:
        lines = {}
    lines["seen"] = difference.cause.found
    lines["likely cause"] = difference.cause.likely
    lines["remedy"] = difference.cause.remedy
    for label, text in lines.items():
        click.echo(f"{label:<14}{text}")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    from dataclasses import asdict

    content = asdict(verdict)
    return {"equal": verdict.equal, **content.pop("options"), **content}


def _show(verdict: Verdict) -> None:
    click.echo(f"{_trained(verdict.trained, verdict.runs[0])}\n")
    rows = [["workers", "steps", "digest", "path"]]
    for place, run in enumerate(verdict.runs):
        path = "the same" if place else "reference"
        if run.parts_at is not None:
            path = f"differs from {f'step {run.parts_at}' if run.parts_at else 'the start'} on"
        if run.status != "finished":
            path += f" ({run.status})"
        workers = " then ".join(str(leg.num_workers) for leg in run.route)
        rows.append([workers, str(run.steps), run.digest[:16], path])
    print_table(rows)
    click.echo()
    if verdict.difference is not None:
        _show_difference(verdict.difference)
    elif verdict.equal:
        counts = [str(run.num_workers) for run in verdict.runs if len(run.route) == 1]
        continued = ", and when saved and continued" if verdict.trained.resumed_at else ""
        click.echo(
            f"The same path on {', '.join(counts[:-1])} and {counts[-1]} workers{continued}: "
            "weights, buffers, optimizer state, losses and metrics agree to the last bit after "
            "every step."
        )
        click.echo(f"digest {verdict.runs[0].digest}")
    else:
        click.echo(
            "Not the same path: the runs ended differently though no difference was found in them. "
            "Please report it with this recipe: it is a bug in samepath."
        )


def _trained(trained: Trained, first: Counted) -> str:
    """Describe what the runs were made of, in a sentence or two."""
    per_epoch, steps = trained.steps_per_epoch, first.steps
    of = f"{trained.num_examples:,} examples"
    if trained.num_examples < trained.all_examples:
        of = f"{trained.num_examples:,} of {trained.all_examples:,} examples"
    epochs, more = divmod(steps, per_epoch)
    parts = [count(steps, "step") + ":"]
    if steps < trained.steps:
        parts = [f"{steps:,} of {count(trained.steps, 'step')} ({first.status}):"]
    if not epochs:
        hint = " (to see one end, give more --steps)" if steps == trained.steps else ""
        parts.append(f"a part of an epoch of {of}{hint}")
    else:
        which = "one epoch" if epochs == 1 else f"{epochs} epochs"
        last = f"the last batch of {trained.last_batch}"
        parts.append(f"{which} of {of} ({count(per_epoch, 'step')}, {last})")
    if trained.num_valid is not None:
        of = f"{trained.num_valid:,}"
        if trained.num_valid < (trained.all_valid or 0):
            of = f"{trained.num_valid:,} of {trained.all_valid:,}"
        parts[-1] += f", evaluation on {of} examples"
    if epochs and more:
        parts[-1] += f", {count(more, 'step')} of the next"
    text = " ".join(parts) + "."
    if saved := [step for step in trained.resumed_at if step < steps]:
        places = " and ".join(map(str, saved))
        which = "step" if len(saved) == 1 else "steps"
        text += f" One run is saved after {which} {places}, and continued in new processes."
    if trained.loader_workers:
        text += f" Loader processes per worker: {trained.loader_workers}."
    return text


def _show_difference(difference: Difference) -> None:
    one, other = (count(n, "worker") for n in difference.num_workers)
    where = f"step {difference.step}" if difference.step else "the start, before the first step"
    whose = f" (seen on worker {difference.worker})" if difference.worker else ""
    who = f"two runs on {one}" if one == other else f"{one} and {other}"
    if difference.resumed_at is not None:
        who = f"a run on {one} and one that was saved after step {difference.resumed_at} and "
        who += f"continued on {other}"
    click.echo(f"Not the same path: {who} part at {where}{whose}.\n")
    again = "yes: the same count gives the same bits again"
    if not difference.repeatable:
        again = "no: even the same count gives other bits when run again"
    label = "first tensor" if difference.values else "first"
    lines = {label: _first(difference.name, difference.values)}
    if difference.module is not None:
        name = difference.module or "the model itself"
        label = "first module" if difference.cause.where == "module" else "module"
        lines[label] = f"{name} ({difference.module_kind})"
    lines["seen"] = difference.cause.found
    lines["repeatable"] = again
    lines["likely cause"] = difference.cause.likely
    lines["remedy"] = difference.cause.remedy
    for label, text in lines.items():
        click.echo(f"{label:<14}{text}")


_NAMES = {
    "groups": "the optimizer's settings (learning rate and the like)",
    "schedule": "the schedule's state",
    "loss": "the training loss",
    "metrics of the loss": "what loss() returned beside the loss",
    "added": "groups of parameters that were added to the optimizer",
    "scaling": "the scale of the loss (float16)",
    "extra": "the recipe's extra state",
    "grain losses": "the losses of single grains",
    "gradient norm": "the gradient's norm",
    "learning rate": "the learning rate",
    "noise scale": "the gradient noise scale",
    "epoch loss": "the training loss of the epoch",
    "status": "one run ends and the other goes on, or ends for another reason",
    "model": "which tensors the model has",
    "buffers": "which buffers outside its state_dict() the model has",
    "optimizer": "values of the optimizer's state other than tensors",
    "underway": "losses of batches that wait for their update",
    "message": "what the runs say of their end",
    "digest": "the final digest",
}


def _first(name: str, values: Values | None) -> str:
    if values is None:
        return _NAMES.get(name, name)
    text = f"{name}: {values.num_different:,} of {values.num_values:,} values differ, "
    if values.max_ulps is None:
        text += "one of each pair is not a number"
    else:
        units = "unit" if values.max_ulps == 1 else "units"
        text += f"by up to {values.max_ulps:,} {units} in the last place"
    place = f"[{', '.join(map(str, values.first_index))}]: " if values.first_index else ""
    return f"{text} (first {place}{values.first_pair[0]:.9g} against {values.first_pair[1]:.9g})"
