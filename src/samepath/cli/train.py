"""`samepath train`."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from samepath.cli.common import (
    data_option,
    keep_option,
    machine_of,
    machine_options,
    other_hardware_option,
    parse_range,
    parse_target,
    parse_workers,
    print_json,
    shaping_options,
    stdout_kept_for_json,
)
from samepath.errors import UserError
from samepath.terminal import may_be_closed

_SHOWN = (
    "steps",
    "train_loss",
    "valid_loss",
    "step_seconds",
    "num_workers",
    "staleness_mean",
    "staleness_max",
    "digest",
)


@click.command()
@click.argument("recipe")
@data_option
@keep_option
@click.option(
    "-n",
    "num_workers",
    default="auto",
    show_default=True,
    metavar="N",
    help="Workers. auto: all of this machine's cores (or GPUs). A range, such as 1:8: the run goes "
    "on with whoever is left and takes in whoever comes (see docs/reliability.md).",
)
@machine_options
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
    "--target", metavar="LOSS", help="Validation loss at which it ends; none: not before the end."
)
@shaping_options
@click.option(
    "--exact",
    type=click.Choice(["on", "off"]),
    help="off: each worker computes its share at once; the same path up to rounding.",
)
@click.option("--learning-rate", type=float, metavar="R", help="In place of the recipe's.")
@click.option("--weight-decay", type=float, metavar="D", help="In place of the recipe's.")
@click.option(
    "--strategy",
    metavar="NAME",
    help="How batch, rate and synchronisation change with k workers (see docs/strategies.md).",
)
@click.option(
    "--as-workers",
    "virtual_workers",
    type=int,
    metavar="K",
    help="k of the strategy; N when not given.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder.")
@click.option("--resume", is_flag=True, help="Continue the run in --out, at any N.")
@other_hardware_option
@click.option("--checkpoint-steps", type=click.IntRange(1), metavar="S", help="Save every S steps.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard event files too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def train(
    recipe: str,
    data: str | None,
    keep: str | None,
    num_workers: str,
    target: str | None,
    exact: str | None,
    out: Path | None,
    resume: bool,
    other_hardware: bool,
    checkpoint_steps: int | None,
    tensorboard: bool,
    as_json: bool,
    here: int | None,
    interface: str | None,
    timeout_seconds: float | None,
    strategy: str | None,
    virtual_workers: int | None,
    learning_rate: float | None,
    **asked: Any,
) -> int:
    """Train RECIPE (a built-in name, or a Python file with a recipe() function).

    The result is the same bits at every N, so the default is to use everything there is.

    \b
    Examples:
      samepath train digits
      samepath train my_recipe.py -n 4 --epochs 20 --out runs/a
      samepath train my_recipe.py -n 8 --epochs 40 --out runs/a --resume
      samepath train nodules -n 1:8 --out runs/b
      samepath train nodules --data my_volumes.npz
      samepath train cifar10 --keep curated/keep.csv
      samepath train nodules --strategy warmup:epochs=10 --as-workers 8
      samepath train nodules --strategy asynchronous:bound=4 -n 4
    """
    from samepath.cli.display import LiveDisplay
    from samepath.data.loaders import TIMEOUT_SECONDS
    from samepath.engine.comm.environment import read_place
    from samepath.engine.elastic.machine import WorkerRange
    from samepath.engine.run.options import Asked
    from samepath.engine.run.train import Request
    from samepath.engine.run.train import train as train_request

    workers: Any = num_workers
    machine = None
    if ":" in num_workers:
        least, most = parse_range(num_workers)
        workers, machine = WorkerRange(least=least, most=most), machine_of(here, interface)
    elif here is not None or interface is not None:
        raise UserError(
            f"--here and --interface are for a range of workers, and -n is {num_workers}; "
            "give a range, such as -n 1:8"
        )
    else:
        workers = parse_workers(num_workers)
    request = Request(
        recipe=recipe,
        data=data,
        keep=keep,
        num_workers=workers,
        machine=machine,
        timeout_seconds=timeout_seconds or TIMEOUT_SECONDS,
        asked=Asked(
            **asked,
            strategy=strategy,
            virtual_workers=virtual_workers,
            learning_rate=learning_rate,
            target=None if target is None else parse_target(target),
            exact=None if exact is None else exact == "on",
        ),
        out=out,
        resume=resume,
        other_hardware=other_hardware,
        checkpoint_steps=checkpoint_steps,
        tensorboard=tensorboard,
        command=tuple(sys.argv),
        display=LiveDisplay,
    )
    with stdout_kept_for_json(as_json):
        result, folder = train_request(request)
    if read_place(os.environ).worker == 0:  # under mpirun every worker comes here
        with may_be_closed():
            if as_json:
                print_json({**asdict(result), "run": str(folder)})
            else:
                summarize(recipe, folder, asdict(result))
    return exit_code(asdict(result))


def exit_code(result: dict[str, Any]) -> int:
    """Of a run that has ended, or was stopped."""
    if result["status"] == "interrupted":
        return 128 + int(result["signal"] or signal.SIGINT)
    return 3 if result["status"] == "diverged" else 0


def summarize(recipe: str, folder: Path, result: dict[str, Any]) -> None:
    from samepath.report.words import noise_words

    again = f"samepath train {recipe} --out {folder} --resume"
    words = {
        "finished": "finished",
        "target": "target reached",
        "stuck": "the validation loss no longer moves",
        "diverged": str(result["message"]),
        "interrupted": f"stopped; continue with: {again}",
    }
    click.echo(f"{words[str(result['status'])]}")
    for name in _SHOWN:
        value = result[name]
        if value is not None:
            click.echo(
                f"  {name:<14} {value:.6g}" if isinstance(value, float) else f"  {name:<14} {value}"
            )
    noise = [result[f"noise_{name}"] for name in ("scale", "low", "high")]
    if noise[0] is not None:
        click.echo(f"  {'noise_scale':<14} {noise_words(*noise)}")
    click.echo(f"  {'run':<14} {folder}")
