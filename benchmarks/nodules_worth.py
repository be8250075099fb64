"""What generated nodules are worth to a classifier of real CT nodules (docs/nodules.md).

    python benchmarks/nodules_worth.py ../shared/data/ct_nodules32.npz --generator nodules-small \
        --side 16 --folds 5 --seeds 3 --percents 25,100 --work /tmp/worth

Run it again with the same options to go on after an interruption. With --side 16, cubes of 32 are
averaged over 2 x 2 x 2 voxels (and masks with them) first, at an eighth of the cost. Writes
benchmarks/results/nodules_worth.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from about import commit
from samepath.console import LiveWatcher, print_report
from samepath.files import finite
from samepath.output.predict import write_npz
from samepath.recipes.nodules.worth.page import arms_table, finish_worth, tables_in_short
from samepath.recipes.nodules.worth.runs import WorthRequest, measure_worth, to_json
from samepath.study.opening import StudyRequest

RESULTS = Path(__file__).parent / "results" / "nodules_worth.json"


def smaller(source: Path, out: Path, side: int) -> Path:
    """Cubes averaged down to a side; a mask's voxel is set where half of it was."""
    with np.load(source) as given:
        arrays = dict(given)
    times = arrays["volume"].shape[-1] // side
    for name in ("volume", "mask"):
        if name in arrays:
            number = len(arrays[name])
            parts = arrays[name].reshape(number, side, times, side, times, side, times)
            mean = parts.mean((2, 4, 6))
            arrays[name] = mean >= 0.5 if name == "mask" else np.rint(mean).astype(np.uint8)
    if "mask" in arrays:  # a nodule smaller than half a voxel keeps its middle
        empty = ~arrays["mask"].any((1, 2, 3))
        arrays["mask"][empty, side // 2, side // 2, side // 2] = True
    write_npz(out, arrays)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--generator", default="nodules-small")
    parser.add_argument("--classifier", default="nodules-classifier")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--percents", default="25,50,100")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--generator-epochs", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--work", type=Path, required=True)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    data = asked.data
    with np.load(data) as given:
        if given["volume"].shape[-1] != asked.side:
            data = smaller(data, asked.work / f"cubes{asked.side}.npz", asked.side)
    request = StudyRequest(
        recipe=asked.classifier,
        data=str(data),
        out=asked.work / "study",
        command=tuple(sys.argv),
    )
    wanted = WorthRequest(
        generator=asked.generator,
        percents=tuple(int(part) for part in asked.percents.split(",")),
        folds=asked.folds,
        seeds=asked.seeds,
        epochs=asked.epochs,
        generator_epochs=asked.generator_epochs,
    )
    watcher = LiveWatcher(own_thread=False)
    found = measure_worth(request, wanted, watcher, num_workers=asked.workers)
    page = finish_worth(found, request.folder)
    print_report(tables_in_short(found), found.verdict, page)
    content = to_json(found)
    content.pop("runs")  # their digests are in the study's own file
    content |= {"commit": commit(), "side": asked.side, "table": arms_table(found)}
    RESULTS.write_text(json.dumps(finite(content), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
