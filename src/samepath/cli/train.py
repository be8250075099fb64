"""`samepath train` and `samepath join`, and what a person sees of a run."""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from samepath.cli import common
from samepath.cli.config_file import config_option
from samepath.console import LiveWatcher, may_be_closed
from samepath.errors import UserError

_SHOWN = ("step_seconds", "num_workers", "staleness_mean", "staleness_max", "digest")


def parse_target(text: str) -> float | Literal["none"]:
    """Read what --target is given."""
    if text == "none":
        return "none"
    if (loss := common.parse_number(text)) is None:
        raise UserError(f"--target {text}: give a loss, such as 0.003, or 'none'")
    return loss


def parse_range(text: str) -> tuple[int, int]:
    """Read the two ends of a range of workers."""
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal()) or not 1 <= int(least) <= int(most):
        raise UserError(f"-n {text}: give a range as MIN:MAX, such as 1:8")
    return int(least), int(most)


@click.command(short_help="Train a recipe on any number of workers.")
@common.recipe_argument()
@config_option
@common.data_option
@common.keep_option
@click.option(
    "-n",
    "num_workers",
    default="auto",
    show_default=True,
    metavar="N",
    help="Workers. auto: all of this machine's cores (or GPUs). A range, such as 1:8: workers may "
    "leave and join while the run goes on (see docs/reliability.md).",
)
@common.machine_options
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=1.0),
    metavar="S",
    help="A worker that does not answer for so many seconds counts as lost.  [default: 600]",
)
@click.option("--epochs", type=int, metavar="E", help="Where the run ends, also when resumed.")
@click.option("--steps", type=int, metavar="S", help="Where the run ends, counted in steps.")
@click.option(
    "--target",
    metavar="LOSS",
    callback=common.parsed_by(parse_target),
    help="Validation loss at which it ends; none: not before the end.",
)
@click.option(
    "--patience",
    "stop_patience",
    type=int,
    metavar="E",
    help="End when --monitor has not been better for E epochs; the best weights are kept.",
)
@click.option(
    "--monitor",
    metavar="METRIC",
    help="Validation metric that says which weights are the best: loss, or dice:max (the highest).",
)
@click.option(
    "--keep-best", is_flag=True, default=None, help="Keep the best weights, by --monitor."
)
@common.shaping_options
@click.option(
    "--exact",
    type=click.Choice(["on", "off"]),
    callback=common.parsed_by(lambda text: text == "on"),
    help="off: each worker computes its share at once; the same path up to rounding.",
)
@click.option("--learning-rate", type=float, metavar="R", help="In place of the recipe's.")
@click.option("--weight-decay", type=float, metavar="D", help="In place of the recipe's.")
@common.strategy_option
@click.option(
    "--as-workers",
    "virtual_workers",
    type=int,
    metavar="K",
    help="k of the strategy; N when not given.",
)
@common.out_option("The run's folder.")
@click.option("--resume", is_flag=True, help="Continue the run in --out, at any N.")
@click.option(
    "--overwrite", is_flag=True, help="Delete the run in --out and begin anew; asks before it does."
)
@click.option("--yes", is_flag=True, help="Do not ask (with --overwrite).")
@common.other_hardware_option
@click.option("--checkpoint-steps", type=click.IntRange(1), metavar="S", help="Save every S steps.")
@click.option("--tensorboard", is_flag=True, help="The same as --log tensorboard.")
@click.option(
    "--log",
    metavar="NAMES",
    help="Log to tensorboard, wandb, mlflow or trackio too (several: with commas).",
)
@common.json_option
def train(
    recipe: str,
    data: str | None,
    keep: str | None,
    num_workers: str,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    yes: bool,
    other_hardware: bool,
    checkpoint_steps: int | None,
    tensorboard: bool,
    log: str | None,
    as_json: bool,
    here: int | None,
    interface: str | None,
    timeout_seconds: float | None,
    **asked: Any,
) -> int:
    """Train RECIPE (a built-in name, or a Python file with a recipe() function).

    The result is the same bits at every N, so the default is to use everything there is.

    \b
    Examples:
      samepath train digits
      samepath train my_recipe.py -n 4 --epochs 20 --out runs/a
      samepath train my_recipe.py -n 8 --epochs 40 --out runs/a --resume
      samepath train digits -n 1:8 --out runs/b
      samepath train digits --log wandb
      samepath train --config my_run.toml --epochs 40
      samepath train nodules --data my_volumes.npz
      samepath train cifar10 --keep curated/keep.csv
      samepath train nodules --strategy warmup:epochs=10 --as-workers 8
      samepath train nodules --strategy asynchronous:bound=4 -n 4
    """
    workers: Any = num_workers
    ends = None
    if ":" in num_workers:
        ends = parse_range(num_workers)
    elif here is not None or interface is not None:
        raise UserError(
            f"--here and --interface are for a range of workers, and -n is {num_workers}; "
            "give a range, such as -n 1:8"
        )
    elif dashed := re.fullmatch(r"(\d+)(?:-|\.\.)(\d+)", num_workers):
        right = ":".join(dashed.groups())
        raise UserError(f"-n {num_workers}: type a range of workers as -n {right}")
    else:
        workers = common.parse_workers(num_workers)
    if overwrite and out is not None and not yes:
        confirm_overwrite(out)
    doing = f"continuing the run of {recipe}" if resume else f"training {recipe}"
    common.announce(doing, on=workers, into=out)

    from samepath.data.loaders import TIMEOUT_SECONDS
    from samepath.engine.comm.environment import read_place
    from samepath.engine.elastic.machine import WorkerRange
    from samepath.engine.train import Request
    from samepath.engine.train import train as train_request

    machine = None
    if ends is not None:
        workers = WorkerRange(least=ends[0], most=ends[1])
        machine = common.machine_of(here, interface)
    request = Request(
        recipe=recipe,
        data=data,
        keep=keep,
        num_workers=workers,
        machine=machine,
        timeout_seconds=timeout_seconds or TIMEOUT_SECONDS,
        **asked,
        out=out,
        resume=resume,
        overwrite=overwrite,
        other_hardware=other_hardware,
        checkpoint_steps=checkpoint_steps,
        tensorboard=tensorboard,
        log=log,
        command=tuple(sys.argv),
        display=LiveWatcher,
        says_gain=not as_json,
    )
    with common.stdout_kept_for_json(as_json):
        result, folder = train_request(request)
    if read_place(os.environ).worker == 0:  # under mpirun every worker comes here
        print_result(recipe, folder, asdict(result), as_json)
    return exit_code(asdict(result))


@click.command(short_help="Bring this machine's workers to a run under way.")
@common.run_argument()
@common.machine_options
@common.other_hardware_option
@common.json_option
def join(
    run: Path, here: int | None, interface: str | None, other_hardware: bool, as_json: bool
) -> int:
    """Bring this machine's workers to a run that is under way.

    RUN is the folder of a run that was started with a range of workers, on this machine or on one
    that sees the same folder. Ctrl-C leaves the run: its other workers go on.

    \b
    Examples:
      samepath train digits -n 1:8 --out runs/a           on one machine, or in one terminal
      samepath join runs/a --here 2                       in another terminal
      samepath join /shared/runs/a --interface eth0       on another machine
    """
    common.announce(f"joining the run in {run}")

    from samepath.engine.train import join as join_run

    with common.stdout_kept_for_json(as_json):
        machine = common.machine_of(here, interface)
        result, folder = join_run(run, machine, display=LiveWatcher, other_hardware=other_hardware)
    print_result("RECIPE", folder, asdict(result), as_json)
    return exit_code(asdict(result))


def confirm_overwrite(out: Path) -> None:
    """Ask whether the run in a folder may go; raise if it may not."""
    from samepath.engine.state.run_folder import RunFolder

    folder = RunFolder(out)
    if not folder.holds_run or not folder.has_steps:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"--overwrite would delete the run in {out}, and there is no terminal to ask at; "
            "add --yes"
        )
    content = folder.read()
    what = f"{content['config']['recipe']}, {content['status']}"
    if not click.confirm(f"Delete the run in {out} ({what})?", err=True):
        raise UserError(f"the run in {out} stays; give another folder")


def exit_code(result: dict[str, Any]) -> int:
    """Exit code of a run that has ended, or was stopped."""
    if result["status"] == "interrupted":
        return 128 + int(result["signal"] or signal.SIGINT)
    return 3 if result["status"] == "diverged" else 0


def print_result(recipe: str, folder: Path, result: dict[str, Any], as_json: bool) -> None:
    """Print how a run ended."""
    with may_be_closed():
        if as_json:
            common.print_json({**result, "run": str(folder)})
        else:
            _summarize(recipe, folder, result)


def _summarize(recipe: str, folder: Path, result: dict[str, Any]) -> None:
    from samepath.engine.state.run_folder import RunFolder
    from samepath.report.words import duration, noise_words

    again = f"samepath train {recipe} --out {folder} --resume"
    words = {
        "finished": "finished",
        "target": "target reached",
        "early": str(result["message"]),
        "stuck": "the validation loss no longer moves",
        "diverged": str(result["message"]),
        "interrupted": f"stopped; continue with: {again}",
    }
    said = words[str(result["status"])]
    target = RunFolder(folder).read()["config"].get("target")
    if result["status"] == "target":
        said += f": a validation loss of {result['valid_loss']:.6g}, at most {target:g}"
    click.echo(said)
    shown: dict[str, Any] = {name: result[name] for name in ("steps", "train_loss")}
    shown |= {f"train_{name}": value for name, value in result["train_metrics"].items()}
    shown |= {"valid_loss": result["valid_loss"], "target": target}
    shown |= {f"valid_{name}": value for name, value in result["metrics"].items()}
    shown["elapsed"] = duration(result["seconds"])
    shown |= {name: result[name] for name in _SHOWN}
    noise = [result[f"noise_{name}"] for name in ("scale", "low", "high")]
    if noise[0] is not None:
        shown["noise_scale"] = noise_words(*noise)
    known = {name: value for name, value in shown.items() if value is not None} | {"run": folder}
    width = max(map(len, known))
    for name, value in known.items():
        click.echo(f"  {name:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
