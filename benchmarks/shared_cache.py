"""Memory of a MONAI CacheDataset at 1, 2 and 4 workers: held once per machine, or once per worker.

    python benchmarks/shared_cache.py

Each worker makes a cache of 400 MiB (100 volumes of 4 MiB). Measured is the sum over all workers of
their proportional set size, before and after `session.share`, above what they take without data.
Prints a table and writes benchmarks/results/shared_cache.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from about import commit
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import start

VOLUMES, SIDE = 100, 1 << 20
RESULT = Path(__file__).parent / "results" / "shared_cache.json"


def pss_megabytes() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(folder: str) -> None:
    """The body of every worker."""
    from monai.data import CacheDataset
    from monai.transforms import Compose, EnsureTyped, RandGaussianNoised

    with start(seed=0) as session:
        meet = session.collective.agree
        meet(True)
        found = [pss_megabytes()]
        keys = ["image"]
        items = [{"image": torch.full((1, SIDE), float(row))} for row in range(VOLUMES)]
        transform = Compose([EnsureTyped(keys), RandGaussianNoised(keys)])
        data = CacheDataset(items, transform, progress=False, num_workers=1)
        del items
        meet(True)
        found.append(pss_megabytes())
        meet(True)
        session.share(data)
        meet(True)
        found.append(pss_megabytes())
        meet(True)
        Path(folder, f"{session.worker}.json").write_text(json.dumps(found))


def main() -> None:
    rows = []
    for workers in (1, 2, 4):
        with TemporaryDirectory() as folder:
            launch(measure, (folder,), workers)
            found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
        without, before, after = (sum(column) for column in zip(*found, strict=True))
        rows.append(
            {
                "workers": workers,
                "cache_megabytes": VOLUMES * SIDE * 4 >> 20,
                "before_megabytes": round(before - without),
                "after_megabytes": round(after - without),
            }
        )
        print(rows[-1], flush=True)
    RESULT.write_text(json.dumps({"commit": commit(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
