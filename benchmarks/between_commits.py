"""Is a step as quick as it was? Two commits side by side, in one run.

Checks both commits out, then trains recipes with each in turn, every training in processes of its
own, and compares the median seconds of a step. Prints the ratio (above 1: the second is quicker)
with its spread over the rounds.

    python benchmarks/between_commits.py 7a8652e HEAD --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASES = (("nodules", 1, 40), ("nodules", 2, 60), ("digits", 1, 300), ("digits", 2, 300))
"""Recipe, workers, steps."""


def check_out(commit: str, folder: Path) -> None:
    """Write a commit's sources to a folder."""
    folder.mkdir()
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)


def step_seconds(sources: Path, recipe: str, workers: int, steps: int) -> float:
    """Train with the sources of one commit; the median seconds of a step."""
    with tempfile.TemporaryDirectory() as out:
        ended = subprocess.run(
            [
                sys.executable, "-c", "from samepath.cli import main; main()", "train", recipe,
                "-n", str(workers), "--steps", str(steps), "--target", "none",
                "--out", f"{out}/run", "--json",
            ],
            env={**os.environ, "PYTHONPATH": str(sources / "src")},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(json.loads(ended.stdout)["step_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        trees = [Path(place, name) for name in ("first", "second")]
        for commit, tree in zip(given.commits, trees, strict=True):
            check_out(commit, tree)
        for recipe, workers, steps in CASES:
            ratios = []
            for number in range(given.rounds):
                order = trees if number % 2 == 0 else trees[::-1]
                seconds = {tree: step_seconds(tree, recipe, workers, steps) for tree in order}
                ratios.append(seconds[trees[0]] / seconds[trees[1]])
            print(
                f"{recipe:8} {workers} workers: {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
