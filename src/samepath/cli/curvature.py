"""`samepath curvature`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_table, print_text


@click.command(short_help="Look at the loss around a run's weights: sharp or flat?")
@common.run_argument("runs", nargs=-1, required=True, metavar="RUN...")
@common.workers_option
@click.option(
    "--examples",
    "num_examples",
    type=int,
    default=256,
    show_default=True,
    metavar="E",
    help="Training examples to measure on, at most.",
)
@common.setting("--top", 20, "K", "Eigenvalues to find.")
@common.setting("--grid", 31, "M", "Points of a line; a plane has half as many each way.")
@common.setting(
    "--radius", 1.0, "R", "How far lines and planes go from the weights (along eigenvectors half)."
)
@common.epoch_option
@common.setting("--seed", 0, "S", "Sample and directions.")
@click.option("--save-vectors", is_flag=True, help="Write the eigenvectors too (safetensors).")
@common.out_option("The folder to write.")
@common.json_option
def curvature(runs: tuple[Path, ...], out: Path | None, as_json: bool, **asked: Any) -> None:
    """Look at the loss around the weights of RUNs: sharp or flat?

    The largest eigenvalues of the Hessian and its trace, and the loss along random directions and
    along the top eigenvectors, on a sample of the training examples; several runs (small against
    large batch, say) side by side. The numbers are the same bits at every N.

    \b
    Examples:
      samepath curvature runs/digits-1
      samepath curvature runs/batch-32 runs/batch-1024 --examples 1024
      samepath curvature runs/nodules-1 --epoch best --top 5
    """
    from samepath.insight.folder import choose_folder

    folder = choose_folder("curvature", str(runs[0].resolve()), out)
    whose = ", ".join(map(str, runs))
    common.announce(f"measuring the loss around {whose}", on=asked["num_workers"], into=folder)

    from samepath.insight.curvature.curvature import CurvatureRequest, measure_curvature
    from samepath.report.curvature import verdict, write_curvature

    request = CurvatureRequest(runs=runs, watcher=LiveWatcher, **asked)
    with common.stdout_kept_for_json(as_json):
        found = measure_curvature(request, vectors=folder)
        write_curvature(folder, found, sys.argv)
    if as_json:
        common.print_json(asdict(found) | {"verdict": verdict(found), "folder": str(folder)})
    else:
        _summary(found, folder)


def _summary(found: Any, folder: Path) -> None:
    from samepath.report.curvature import CAUTION, facts_table, sample_words, verdict

    print_table(facts_table(found))
    for text in (verdict(found), CAUTION, sample_words(found), *found.notes):
        print_text(text)
    click.echo(f"page: {folder / 'curvature.html'}")
