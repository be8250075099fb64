"""Ways to add one bucket over 1 Gbit/s, timed: whole, in chunks, halving and doubling, all-reduce.

Each way by itself, in turn, between network namespaces that share this machine's cores. Halving and
doubling (`halve_and_double`) adds in the tree's order where the workers are a power of two and have
one sum each; gloo's all-reduce does so at two. Then steps of `nodules` without factors on three
workers, whose loss sleeps: in buckets of the link's size and of 2 MiB, and with sums that leave at
once or not before a worker's last grain. Prints tables and writes JSON.

    python benchmarks/exchanges.py [exchanges] [steps]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

import namespaces
from about import commit
from contestants import job, samepath_step
from samepath.engine.comm import tree_sum
from samepath.engine.run.session import start
from samepath.plan import settled

HERE = Path(__file__).parent
WORKERS = (2, 4, 8)
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
ROUNDS = 7
STEP_WORKERS, STEP_GRAINS = 3, (8, 16)
STEP_ROUNDS, STEPS = 6, 3
"""Of each way so many blocks of so many steps, in turn."""
SLEEP_SECONDS = 4e-3
"""For an example: a computing time that leaves this machine's cores to the network."""
Way = Callable[[Tensor], Tensor]


def whole(row: Tensor) -> Tensor:
    """All sums to all workers, each of which adds them."""
    workers = dist.get_world_size()
    incoming = row.new_empty(workers, len(row))
    dist.all_to_all_single(incoming.view(-1), row.repeat(workers))
    return incoming.sum(0)


def in_chunks(row: Tensor) -> Tensor:
    """A chunk of the sums to each worker, and its total back to all."""
    workers = dist.get_world_size()
    incoming = torch.empty_like(row)
    dist.all_to_all_single(incoming, row)
    mine = incoming.view(workers, -1).sum(0)
    dist.all_to_all_single(incoming, mine.repeat(workers))
    return incoming


def halve_and_double(row: Tensor) -> Tensor:
    """Halves of what is left to the neighbour, then to the next pair's worker, and so on; back in
    the opposite order. 2 log2(workers) rounds of one message each."""
    workers, me = dist.get_world_size(), dist.get_rank()
    row = row.clone()
    first, last, distance = 0, len(row), 1
    passed: list[tuple[int, int, int, int]] = []
    while distance < workers:
        middle = (first + last) // 2
        mine, others = ((first, middle), (middle, last))[:: 1 if me < me ^ distance else -1]
        received = row.new_empty(mine[1] - mine[0])
        _swap(row[slice(*others)], received, me ^ distance)
        row[slice(*mine)].add_(received)
        passed.append((*others, me ^ distance, 0))
        first, last = mine
        distance *= 2
    for begin, end, other, _ in reversed(passed):
        _swap(row[first:last], row[begin:end], other)
        first, last = min(first, begin), max(last, end)
    return row


def _swap(outgoing: Tensor, incoming: Tensor, other: int) -> None:
    works = [dist.irecv(incoming, other), dist.isend(outgoing, other)]
    for work in works:
        assert work is not None
        work.wait()


def all_reduce(row: Tensor) -> Tensor:
    row = row.clone()
    dist.all_reduce(row)
    return row


WAYS: dict[str, Way] = {
    "whole": whole,
    "chunks": in_chunks,
    "halving and doubling": halve_and_double,
    "gloo's all-reduce": all_reduce,
}


def before_the_last_grain(merges: Sequence[int]) -> tuple[int, ...]:
    """As `plan.settled`, but for sums that wait for their worker's last grain."""
    *_, last, every = (0, *settled(merges)) if merges else (0, 0)
    return (*[0] * (len(merges) - 1), last, every) if merges else (0,)


def time_steps(request: dict[str, Any]) -> None:
    """Time steps on one worker; worker 0 prints its own times."""
    nodules = job("nodules")

    def loss(model: nn.Module, batch: Any) -> Tensor:
        found = nodules.loss(model, batch)
        time.sleep(SLEEP_SECONDS * len(batch))
        return found

    with start() as session:
        measured = session.collective.speed
        assert measured is not None
        ways = {
            "as it is": (measured, settled),
            "2 MiB buckets": (None, settled),
            "before the last grain": (measured, before_the_last_grain),
        }
        grain = nodules.batch_size // request["grains"]
        steps = {}
        for name, (speed, leaves) in ways.items():
            session.collective.speed = speed
            made = replace(nodules, loss=loss)
            steps[name] = samepath_step(made, session.collective, grain=grain, factors="never")
            with patch.object(tree_sum, "settled", leaves):
                for _ in range(3):
                    steps[name]()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(STEP_ROUNDS):
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                with patch.object(tree_sum, "settled", ways[name][1]):
                    for _ in range(STEPS):
                        began = time.perf_counter()
                        steps[name]()
                        times[name].append(time.perf_counter() - began)
        if session.is_first:
            print(json.dumps({"seconds": times, "measured": asdict(measured)}))
        steps.clear()


def work(request: dict[str, Any]) -> None:
    """Time all ways on one worker; worker 0 prints its own times."""
    with start() as session:
        found: dict[str, dict[str, list[float]]] = {}
        for size in SIZES:
            row = torch.full((size // 4,), 1.0)
            times = found[str(size)] = {name: [] for name in WAYS}
            for turn in range(request["rounds"] + 1):
                for name, way in WAYS.items():
                    session.collective.agree(True)
                    began = time.perf_counter()
                    total = way(row)
                    seconds = time.perf_counter() - began
                    assert bool((total == session.num_workers).all()), name
                    if turn:
                        times[name].append(seconds)
        if session.is_first:
            print(json.dumps(found))


def exchanges() -> dict[str, Any]:
    """Every way by itself."""
    results: dict[str, Any] = {}
    for workers in WORKERS:
        with namespaces.machines(workers, rate="1gbit") as names:
            found = namespaces.run_on(names, Path(__file__), {"rounds": ROUNDS})
        results[str(workers)] = found
        print(f"\n{workers} workers, ms: median (lowest)")
        for size, times in found.items():
            _print(f"{int(size) >> 10} KiB", times)
    return results


def steps() -> dict[str, Any]:
    """Steps of a training."""
    results: dict[str, Any] = {}
    for grains in STEP_GRAINS:
        with namespaces.machines(STEP_WORKERS, rate="1gbit") as names:
            found = namespaces.run_on(names, Path(__file__), {"grains": grains})
        results[str(grains)] = found
        print(f"\nsteps of {grains} grains on {STEP_WORKERS} workers, ms: median (lowest)")
        _print("", found["seconds"])
    return results


def _print(label: str, times: Any) -> None:
    cells = (
        f"  {name} {1e3 * statistics.median(each):.2f} ({1e3 * min(each):.2f})"
        for name, each in times.items()
    )
    print(f"{label:8}" + "".join(cells), flush=True)


def main() -> None:
    if (problem := namespaces.available()) is not None:
        sys.exit(problem)
    place = HERE / "results" / "exchanges.json"
    content = json.loads(place.read_text()) if place.exists() else {}
    for part in sys.argv[1:] or PARTS:
        content[part] = {"commit": commit(), "found": PARTS[part]()}
        place.write_text(json.dumps(content, indent=1) + "\n")


PARTS = {"exchanges": exchanges, "steps": steps}


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] not in PARTS:
        asked = json.loads(sys.argv[1])
        time_steps(asked) if "grains" in asked else work(asked)
    else:
        main()
