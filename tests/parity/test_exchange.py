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
from samepath.plan import bucket_bytes, parse_speed, reduction, whole_bytes
from samepath.plan.link import WHOLE_BYTES

LENGTHS = (7, 6_000, WHOLE_BYTES // 4 + 5)
"""Of float32: whole at few workers, whole at two alone, never whole."""
SIZES = (*((length,) for length in LENGTHS), tuple(3 * LENGTHS))
"""Of the tensors of a sum: one of each, and nine that are cut into buckets by the link's speed."""


def total(collective: Collective, num_grains: int, lengths: tuple[int, ...]) -> str:
    """Add tensors of numbers whose sum depends on the order of additions, some for each grain; the
    sums' SHA-256."""
    how = reduction(num_grains, collective.num_workers)
    adding = TreeSum(collective, [torch.empty(length) for length in lengths], exact=True)
    adding.begin(how)
    for grain in how.runs[collective.worker]:
        drawn = np.random.default_rng(key("exchange", num_grains, lengths[0], grain))
        values = drawn.normal(size=sum(lengths)) * 10.0 ** drawn.integers(-6, 6, sum(lengths))
        adding.add([*torch.from_numpy(values.astype(np.float32)).split(lengths)])
    adding.launch()
    found = hashlib.sha256()
    for each in adding.finish():
        assert each is not None
        found.update(each.numpy().tobytes())
    return found.hexdigest()


def grains_for(num_workers: int) -> list[int]:
    """Of batches: too short for all, one each, one more, several, a power of two."""
    return [num_workers - 1, num_workers, num_workers + 1, 3 * num_workers - 1, 32]


def add_everything(link: Link, folder: str) -> None:
    """The body of every worker."""
    with start(link=link) as session:
        found = {
            f"{num_grains} of {lengths}": total(session.collective, num_grains, lengths)
            for num_grains in grains_for(session.num_workers)
            for lengths in SIZES
        }
        speed = repr(session.collective.speed)
        Path(folder, str(session.worker)).write_text(json.dumps([found, speed]))


@functools.cache
def alone(num_grains: int, lengths: tuple[int, ...]) -> str:
    """The total of one worker, in this process."""
    return total(Alone(torch.device("cpu")), num_grains, lengths)


COUNTS = (2, 3, 4, 5, 6, 7, 8, 16)
SPEEDS = ("1Gbit/s:0us", "1Gbit/s:100us", "1Gbit/s:1s")
"""As typed: every gradient in a bucket of its own; some buckets; one bucket."""


@pytest.mark.parametrize(
    ("num_workers", "link"),
    [
        *((n, "network") for n in COUNTS),
        *((n, speed) for n in (2, 3, 4) for speed in SPEEDS),
        (2, "auto"),
        (5, "auto"),
    ],
)
def test_the_total_is_that_of_one_worker(num_workers: int, link: Link, tmp_path: Path) -> None:
    launch(add_everything, (link, str(tmp_path)), num_workers)
    expected = {
        f"{num_grains} of {lengths}": alone(num_grains, lengths)
        for num_grains in grains_for(num_workers)
        for lengths in SIZES
    }
    told = [json.loads((tmp_path / str(worker)).read_text()) for worker in range(num_workers)]
    for worker, (found, _) in enumerate(told):
        assert found == expected, worker
    (speed,) = {each for _, each in told}  # all workers have one
    if link in SPEEDS:
        assert speed == repr(parse_speed(link, ""))
    else:
        assert (speed == "None") == (link == "auto")  # measured, unless memory is shared


def test_every_way_is_taken() -> None:
    """Of the sizes above, by worker count: some go whole and some in chunks."""
    for num_workers in COUNTS:
        limits = [whole_bytes(reduction(g, num_workers).num_sums) for g in grains_for(num_workers)]
        assert 4 * LENGTHS[0] <= min(limits)
        assert max(limits) < 4 * LENGTHS[2]
    assert 4 * LENGTHS[1] <= whole_bytes((1, 1)) == WHOLE_BYTES
    assert 4 * LENGTHS[1] > whole_bytes((1,) * 4)
    num_bytes = 4 * sum(SIZES[-1])
    none, several, one = (bucket_bytes(2, num_bytes, parse_speed(each, "")) for each in SPEEDS)
    assert none == 0
    assert 4 * LENGTHS[1] < several < num_bytes / 2
    assert one > num_bytes
