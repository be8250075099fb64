"""Is a large batch's minimum sharper, and does it generalise worse? Digits, batch 32 against 1024.

Both batch sizes train for the same epochs at the recipe's rate and schedule, so the large batch
takes fewer steps: what the tutorial's figures compare. Several seeds, because one pair of runs is
no evidence. Prints a table and the ratios, writes JSON, and the first seed's figures and page.

    python benchmarks/curvature.py FIGURES
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from samepath.engine.checks.fingerprints import versions
from samepath.engine.train import Request, train
from samepath.insight.curvature.curvature import (
    CurvatureRequest,
    RunCurvature,
    measure_curvature,
)
from samepath.report.curvature import facts_table, verdict, write_curvature

HERE = Path(__file__).parent
BATCHES = (32, 1024)
EPOCHS = 40
SEEDS = 3
EXAMPLES = 512


def trained(folder: Path, batch_size: int, seed: int, epochs: int) -> Path:
    out = folder / f"seed-{seed}" / f"batch-{batch_size}"
    # grains of 16: a batch of 32 has work for two workers
    train(
        Request(
            recipe="digits",
            num_workers=2,
            batch_size=batch_size,
            grain_size=16,
            epochs=epochs,
            seed=seed,
            out=out,
        )
    )
    return out


def facts(run: RunCurvature) -> dict[str, Any]:
    return {
        "batch size": run.batch_size,
        "steps": run.steps,
        "training loss": run.loss,
        "validation loss": run.valid["loss"],
        "accuracy": run.valid["accuracy"],
        "gap": run.gap,
        "top eigenvalue": run.eigenvalues[0],
        "trace": run.trace,
        "trace standard error": run.trace_error,
        "rise": run.rise.mean,
        "rise standard error": run.rise.standard_error,
        "eigenvalues": run.eigenvalues,
        "products": run.num_products,
        "seconds": run.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("figures", type=Path, help="folder for the first seed's figures and page")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "curvature.json")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    options = parser.parse_args()
    pairs: list[list[dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="samepath-benchmark-") as folder:
        for seed in range(options.seeds):
            runs = tuple(trained(Path(folder), size, seed, options.epochs) for size in BATCHES)
            found = measure_curvature(
                CurvatureRequest(runs=runs, num_workers=2, num_examples=options.examples)
            )
            if not pairs:
                write_curvature(options.figures, found, sys.argv)
            pairs.append([facts(run) for run in found.runs])
            print(f"seed {seed}")
            for name, *cells in facts_table(found):
                print(f"  {name:<20}" + "".join(f"{cell:>20}" for cell in cells))
            print(f"  {verdict(found)}")
    ratios: dict[str, list[float]] = {
        name: [large[name] / small[name] for small, large in pairs]
        for name in ("top eigenvalue", "trace", "rise", "gap")
    }
    for name, values in ratios.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name}, batch 1024 over 32: {middle:.2f} ({low:.2f} to {high:.2f})")
    content = {
        "epochs": options.epochs,
        "examples": options.examples,
        "runs": pairs,
        "batch 1024 over 32": ratios,
        "versions": versions(),
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {options.out}; figures in {options.figures}")


if __name__ == "__main__":
    main()
