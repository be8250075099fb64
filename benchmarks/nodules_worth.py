"""What generated nodules are worth to a classifier of real CT nodules (docs/nodules.md).

    python benchmarks/nodules_worth.py ../shared/data/ct_nodules32.npz --work ../shared/worth

15 generators, then 375 classifiers: about an hour and a half on two idle cores. Ctrl-C (or
--minutes) ends a sitting; the same command goes on: what is finished is in --work and never
repeated, and what was under way goes on from its checkpoint. With --side 16, cubes of 32 are
averaged over 2 x 2 x 2 voxels (and masks with them) first, at an eighth of the cost. When all is
done it writes benchmarks/results/nodules_worth.json, in which tables of other settings stay, in
short, as what was tried. Then: python scripts/write_nodules_docs.py
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from about import commit
from samepath.console import LiveWatcher, print_report
from samepath.engine.launch.reports import Interrupted
from samepath.files import finite
from samepath.output.predict import write_npz
from samepath.recipes.nodules.worth.page import finish_worth, tables_in_short
from samepath.recipes.nodules.worth.runs import WorthRequest, measure_worth, to_json
from samepath.study.opening import StudyRequest

RESULTS = Path(__file__).parent / "results" / "nodules_worth.json"
SETTINGS = (
    *("generator", "generator_epochs", "epochs", "side", "folds", "seeds", "percents", "times"),
    *("num_examples", "recipe"),
)
"""What makes one table another."""


def smaller(source: Path, out: Path, side: int) -> Path:
    """Cubes averaged down to a side; a mask's voxel is set where half of it was."""
    if out.exists():
        return out
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


def in_short(content: dict[str, Any]) -> dict[str, Any]:
    """A table's settings, and what generated nodules changed at its largest share."""
    percents = sorted({each["percent"] for each in content["arms"]})
    asked = [
        pair
        for pair in content["pairs"]
        if pair["p_corrected"] is not None and pair["percent"] == percents[-1]
    ]
    return {
        **{name: content[name] for name in SETTINGS if name != "percents"},
        "percents": percents,
        "pairs": asked,
        "commit": content["commit"],
    }


def tried_before(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables in the file of results that have other settings than this one."""
    if not RESULTS.exists():
        return []
    before = json.loads(RESULTS.read_text(encoding="utf-8"))
    ours = in_short(content)
    tables = [*before.get("tried", []), in_short(before)]
    return [each for each in tables if any(each[name] != ours[name] for name in SETTINGS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--generator", default="nodules-ct")
    parser.add_argument("--classifier", default="nodules-classifier")
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--percents", default="25,50,100")
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--generator-epochs", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True, help="What is finished is kept here.")
    parser.add_argument("--minutes", type=float, help="End this sitting after so many.")
    parser.add_argument("--other-hardware", action="store_true", help="Go on on another machine.")
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
        other_hardware=asked.other_hardware,
        command=tuple(sys.argv),
    )
    wanted = WorthRequest(
        generator=asked.generator,
        percents=tuple(int(part) for part in asked.percents.split(",")),
        folds=asked.folds,
        seeds=asked.seeds,
        times=asked.times,
        epochs=asked.epochs,
        generator_epochs=asked.generator_epochs,
    )
    if asked.minutes is not None:
        stop = threading.Timer(60 * asked.minutes, os.kill, (os.getpid(), signal.SIGINT))
        stop.daemon = True
        stop.start()
    watcher = LiveWatcher(own_thread=False)
    try:
        found = measure_worth(request, wanted, watcher, num_workers=asked.workers)
    except (KeyboardInterrupt, Interrupted):
        sys.exit("this sitting is over; the same command goes on")
    page = finish_worth(found, request.folder)
    print_report(tables_in_short(found), found.verdict, page)
    content = to_json(found)
    content.pop("runs")  # their digests are in the study's own file
    content |= {"commit": commit(), "side": asked.side}
    content["tried"] = tried_before(content)
    RESULTS.write_text(json.dumps(finite(content), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
