"""Under load: data larger than memory, a million examples, 2,048 grains a step, 32 workers, and
steps without end. Quick versions of `benchmarks/load.py`, with the same recipe."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samepath.engine.train import Request, train

LIMIT_SECONDS = 300
RECIPE = Path(__file__).parents[2] / "benchmarks" / "load_recipe.py"
MIB = 1 << 20
Lines = list[dict[str, Any]]


def run(
    folder: Path, num_workers: int, steps: int, checkpoint_steps: int | None = None, **load: Any
) -> tuple[str, list[Lines]]:
    """The digest, and what each worker took down after its steps."""
    place = folder / f"{num_workers}-{load['num_examples']}"
    place.mkdir()
    settings = place / "load.json"
    settings.write_text(json.dumps({"watch": str(place), **load}))
    result, _ = train(
        Request(
            recipe=str(RECIPE),
            data=str(settings),
            num_workers=num_workers,
            steps=steps,
            out=place / "run",
            checkpoint_steps=checkpoint_steps,
        )
    )
    assert result.steps == steps
    files = sorted(place.glob("worker-*.jsonl"))
    assert len(files) == num_workers
    return result.digest, [[json.loads(x) for x in f.read_text().splitlines()] for f in files]


def cached_bytes(file: Path) -> int:
    """How much of a file the system has in memory."""
    whole = np.memmap(file, np.uint8, "r+")
    pages = np.zeros(-(-len(whole) // mmap.PAGESIZE), np.uint8)
    address, size = whole.ctypes.data, len(whole)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.mincore(
        ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
    )
    assert not failed, os.strerror(ctypes.get_errno())
    return int((pages & 1).sum()) * mmap.PAGESIZE


def test_a_file_larger_than_memory(tmp_path: Path) -> None:
    """20 GiB in rows of 16 KiB: of those only the ones of the steps taken are read, by nobody more
    than once, and nobody keeps a copy."""
    file = tmp_path / "data.bin"
    file.touch()
    os.truncate(file, 20 << 30)
    load: dict[str, Any] = {
        "num_examples": (20 << 30) // 16384,
        "width": 4096,
        "batch_size": 64,
        "grain_size": 16,
        "file": str(file),
        "kind": "tuple",
    }
    wanted = 4 * 64 * 16384
    alone, _ = run(tmp_path, 1, 4, **load)
    assert cached_bytes(file) <= 2 * wanted
    digest, workers = run(tmp_path, 2, 4, **load, loader_workers=1)
    assert digest == alone
    assert cached_bytes(file) <= 4 * wanted, "loaders may be a few grains ahead"
    for lines in workers:
        assert max(line["anonymous_mib"] for line in lines) < 600
    assert file.stat().st_blocks == 0, "it was not written to"


@pytest.mark.alone
def test_a_million_examples_cost_what_few_do(tmp_path: Path) -> None:
    load = {"batch_size": 64, "grain_size": 32}
    seconds = {}
    for num_examples in (10_000, 1_000_000):
        _, (lines,) = run(tmp_path, 1, 60, num_examples=num_examples, **load)
        seconds[num_examples] = statistics.median(line["cpu_seconds"][0] for line in lines[5:])
        assert lines[0]["cpu_seconds"][0] < 5, "with the order of the epoch"
        assert lines[-1]["anonymous_mib"] - lines[5]["anonymous_mib"] < 4
    assert seconds[1_000_000] < 2.5 * seconds[10_000]


def test_two_thousand_grains_a_step(tmp_path: Path) -> None:
    load = {"num_examples": 1 << 17, "batch_size": 1 << 16, "grain_size": 32}
    digests = {n: run(tmp_path, n, 2, **load)[0] for n in (1, 2)}
    assert len(set(digests.values())) == 1


def test_thirty_two_workers(tmp_path: Path) -> None:
    load = {"num_examples": 4096, "batch_size": 256, "grain_size": 4}
    alone, _ = run(tmp_path, 1, 6, **load)
    digest, workers = run(tmp_path, 32, 6, **load)
    assert digest == alone
    for lines in workers:
        # in the last step some workers may have left already
        assert len({line["descriptors"] for line in lines[:-1]}) == 1
        assert lines[-1]["anonymous_mib"] < 600


@pytest.mark.alone
@pytest.mark.parametrize("num_workers", [1, 2])
def test_steps_without_end(num_workers: int, tmp_path: Path) -> None:
    """With evaluations and checkpoints: nothing is left behind by a step."""
    _, workers = run(
        tmp_path,
        num_workers,
        1500,
        checkpoint_steps=200,
        num_examples=1000,
        batch_size=32,
        grain_size=8,
        num_valid=64,
        every=100,
    )
    for lines in workers:
        begun, ended = lines[10], lines[-1]  # by then the times of a thousand steps are kept
        steps = 100 * (len(lines) - 11)
        assert ended["anonymous_mib"] - begun["anonymous_mib"] < 1
        assert (ended["python_blocks"] - begun["python_blocks"]) / steps < 0.6
        for what in ("descriptors", "threads"):  # at the last step another may have left already
            assert len({line[what] for line in lines[1:-1]}) == 1
        cpu = [statistics.median(line["cpu_seconds"]) for line in lines[1:]]
        third = len(cpu) // 3
        assert min(cpu[-third:]) < 1.6 * statistics.median(cpu[:third])
