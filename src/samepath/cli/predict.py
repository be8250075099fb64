"""`samepath predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, count


@click.command(short_help="Write what a run's model says of data.")
@click.argument("run", type=common.PATH)
@click.option(
    "--data",
    default="valid",
    show_default=True,
    metavar="WHAT",
    help="train or valid: the recipe's own. FILE.npy or FILE.npz: inputs. FILE.py or "
    "FILE.py:train: another recipe's data.",
)
@common.out_option("name.npz: arrays. name.csv: a line per example.", required=True)
@common.workers_option
@common.epoch_option
@common.extra_option
@common.json_option
def predict(run: Path, data: str, out: Path, as_json: bool, **asked: Any) -> None:
    """Write what the model of RUN says of data, one row per example, in order. Of a folder of
    `samepath folds`: the mean of what all its models say.

    The file has the same bytes at every N. The model is in evaluation mode. It is called as the
    recipe's loss calls it, or as the recipe's predict= says.

    \b
    Examples:
      samepath predict runs/digits-1 --out predictions.npz
      samepath predict runs/digits-1 --data new_images.npy --out predictions.csv -n 4
      samepath predict folds/digits --data new_images.npy --out ensemble.npz
    """
    common.announce(f"writing predictions of {run} for {data}", on=asked["num_workers"], into=out)

    from samepath.output.predict import predict_to

    with common.stdout_kept_for_json(as_json):
        made = predict_to(out, run, data, display=LiveWatcher, **asked)
    if as_json:
        common.print_json(
            {
                "out": str(made.out),
                "num_examples": made.num_examples,
                "shapes": made.shapes,
                "sha256": made.sha256,
                "num_workers": made.num_workers,
                "weights": made.weights,
            }
        )
        return
    shapes = ", ".join(
        f"{name} {' x '.join(map(str, shape))}" for name, shape in made.shapes.items()
    )
    click.echo(f"{count(made.num_examples, 'example')}: {shapes}")
    click.echo(f"  {'weights':<8} {made.weights}")
    click.echo(f"  {'sha256':<8} {made.sha256}")
    click.echo(made.out)
