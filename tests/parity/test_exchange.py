"""Sums over the tree between 2 to 16 real workers: the total of one worker, bit for bit, whichever
way a bucket goes (whole, as a plain all-reduce, in chunks, through shared memory)."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from samepath.engine.comm.collective import Alone, Collective
from samepath.engine.comm.tree_sum import TreeSum
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Link, start
from samepath.keys import key
from samepath.plan.tree import WHOLE_BYTES, reduction, whole_bytes

LENGTHS = (7, 6_000, WHOLE_BYTES // 4 + 5)
"""Of float32: whole at few workers, whole at two alone, never whole."""


def total(collective: Collective, num_grains: int, length: int) -> str:
    """Add one tensor a grain, of numbers whose sum depends on the order of additions; the sum's
    SHA-256."""
    how = reduction(num_grains, collective.num_workers)
    adding = TreeSum(collective, [torch.empty(length)], exact=True)
    adding.begin(how)
    for grain in how.runs[collective.worker]:
        drawn = np.random.default_rng(key("exchange", num_grains, length, grain))
        values = drawn.normal(size=length) * 10.0 ** drawn.integers(-6, 6, length)
        adding.add([torch.from_numpy(values.astype(np.float32))])
    adding.launch()
    (found,) = adding.finish()
    assert found is not None
    return hashlib.sha256(found.numpy().tobytes()).hexdigest()


def grains_for(num_workers: int) -> list[int]:
    """Of batches: too short for all, one each, one more, several, a power of two."""
    return [num_workers - 1, num_workers, num_workers + 1, 3 * num_workers - 1, 32]


def add_everything(link: Link, folder: str) -> None:
    """The body of every worker."""
    with start(link=link) as session:
        found = {
            f"{num_grains} of {length}": total(session.collective, num_grains, length)
            for num_grains in grains_for(session.num_workers)
            for length in LENGTHS
        }
        Path(folder, str(session.worker)).write_text(json.dumps(found))


@functools.cache
def alone(num_grains: int, length: int) -> str:
    """The total of one worker, in this process."""
    return total(Alone(torch.device("cpu")), num_grains, length)


COUNTS = (2, 3, 4, 5, 6, 7, 8, 16)


@pytest.mark.parametrize(
    ("num_workers", "link"), [*((n, "network") for n in COUNTS), (2, "auto"), (5, "auto")]
)
def test_the_total_is_that_of_one_worker(num_workers: int, link: Link, tmp_path: Path) -> None:
    launch(add_everything, (link, str(tmp_path)), num_workers)
    expected = {
        f"{num_grains} of {length}": alone(num_grains, length)
        for num_grains in grains_for(num_workers)
        for length in LENGTHS
    }
    for worker in range(num_workers):
        assert json.loads((tmp_path / str(worker)).read_text()) == expected, worker


def test_every_way_is_taken() -> None:
    """Of the sizes above, by worker count: some go whole and some in chunks."""
    for num_workers in COUNTS:
        limits = [whole_bytes(reduction(g, num_workers).num_sums) for g in grains_for(num_workers)]
        assert 4 * LENGTHS[0] <= min(limits)
        assert max(limits) < 4 * LENGTHS[2]
    assert 4 * LENGTHS[1] <= whole_bytes((1, 1)) == WHOLE_BYTES
    assert 4 * LENGTHS[1] > whole_bytes((1,) * 4)
