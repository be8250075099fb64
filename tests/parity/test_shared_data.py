"""Data in memory is held once per machine: real workers, the same values, one copy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launches import Everything, Found, launch_at
from torch.utils.data import Dataset

from samepath.engine.comm.shared_data import LEAST_BYTES
from samepath.engine.run.session import Link, start

ROWS, WIDTH = 8, 1 << 20
"""8 tensors and 8 arrays of 4 MiB."""


class Cached(Dataset[Any]):
    """Keeps items as a cache does."""

    def __init__(self, first: float) -> None:
        self.cache: list[dict[str, Any]] = [
            {"image": torch.full((4, WIDTH // 4), first + row).t(), "n": row} for row in range(ROWS)
        ]
        self.arrays = {row: np.full(WIDTH, row, np.float32) for row in range(ROWS)}
        self.view = self.cache[0]["image"][:2]
        self.small = torch.zeros(3)


def held_alone() -> int:
    """Bytes of memory that are this process's own."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def body(link: Link, folder: str) -> None:
    with start(seed=7, link=link) as session:
        data = Cached(1.0)
        before = held_alone()
        moved = session.share(data)
        freed = before - held_alone()
        session.collective.agree(True)
        copied = copy.deepcopy(data.cache[3]["image"])
        found: dict[str, Any] = {
            "moved": moved,
            "freed": freed,
            "values": [float(item["image"].sum()) / WIDTH for item in data.cache],
            "strides": data.cache[0]["image"].stride(),
            "arrays": [float(array.mean()) for array in data.arrays.values()],
            "copied bytes": copied.untyped_storage().nbytes(),
        }
        if session.is_first:
            data.cache[0]["image"].fill_(9.0)
            data.arrays[0].fill(9.0)
        session.collective.agree(True)
        found["written"] = [float(data.view[0, 0]), float(data.arrays[0][0])]
        differs = Cached(1.0 + session.worker)
        found["moved of others"] = session.share(differs)
        found["others"] = float(differs.cache[0]["image"][0, 0])
        found["little"] = session.share(torch.zeros(LEAST_BYTES // 8))
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return launch_at([(2, "auto"), (3, "network")], body, tmp_path_factory)


def every(found: Everything) -> list[tuple[int, Found]]:
    return [(number, w) for workers in found.values() for number, w in enumerate(workers)]


def test_workers_hold_one_copy_with_the_same_values(found: Everything) -> None:
    for _, worker in every(found):
        seen: Any = worker
        assert seen["moved"] == 2 * ROWS * 4 * WIDTH
        assert seen["freed"] > 0.9 * seen["moved"]
        assert seen["values"] == [1.0 + row for row in range(ROWS)]
        assert seen["arrays"] == list(range(ROWS))
        assert seen["strides"] == [1, WIDTH // 4]
        assert seen["copied bytes"] == 4 * WIDTH, "a copy of an item is not one of everything"


def test_what_a_worker_writes_stays_its_own(found: Everything) -> None:
    for number, worker in every(found):
        written: Any = worker["written"]
        assert written == ([9.0, 9.0] if number == 0 else [1.0, 0.0])


def test_data_that_differs_stays_each_workers_own(found: Everything) -> None:
    for number, worker in every(found):
        seen: Any = worker
        assert seen["others"] == 1.0 + number
        half = ROWS * 4 * WIDTH
        assert seen["moved of others"] >= half, "the arrays are alike"
        assert (seen["moved of others"] == 2 * half) == (number == 0)
        assert seen["little"] == 0
