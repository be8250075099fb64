"""Two workers, one of them slow: grains that follow measured speed against an even assignment.

Each worker has a core of its own. A busy process on worker 1's core leaves it half of that core.
Two trainers, one that follows speeds and one that does not, take turns in the same two processes;
before that both take the same number of steps, and their digests are compared. Then the same
without the busy process: what following costs where there is nothing to gain. Prints ratios of
throughput, writes JSON. About four minutes on two cores.

    python benchmarks/uneven.py
    python benchmarks/uneven.py --grain 8 --data nodules.npz
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from about import commit
from contestants import Step
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Session, start
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.balance import EVERY, FIRST
from samepath.plan import assign
from samepath.recipe import Recipe, find_recipe

ROUNDS = 21
WARM_UP = FIRST + EVERY
"""Steps before anything is timed: grains are spread anew once, and that is judged."""
BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
FOLLOWING, EVEN = "following speeds", "even"
BLOCK_SECONDS = 2.0
Times = dict[str, list[float]]


def work(cores: list[int], data: str | None, grain: int, rounds: int, out: str) -> None:
    """One worker's part."""
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"])]})
    with start() as session:
        found = measure(session, data, grain, rounds)
        if session.is_first:
            Path(out).write_text(json.dumps(found))


def measure(session: Session, data: str | None, grain: int, rounds: int) -> dict[str, Any]:
    recipe = find_recipe("nodules", data)
    made = {
        FOLLOWING: contestant(session, recipe, grain, follow=True),
        EVEN: contestant(session, recipe, grain, follow=False),
    }
    for _, step in made.values():
        for _ in range(WARM_UP):
            step()
    same_bits = len({trainer.digest() for trainer, _ in made.values()}) == 1
    times = alternate(session, {name: step for name, (_, step) in made.items()}, rounds)
    costs = made[FOLLOWING][0].balance.costs
    runs = assign(-(-recipe.batch_size // grain), session.num_workers, costs)
    return {"seconds": times, "same bits": same_bits, "grains": [len(run) for run in runs]}


def alternate(session: Session, ways: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each way: blocks of steps in alternating order, the first one dropped."""
    times: Times = {name: [] for name in ways}
    blocks = dict.fromkeys(ways, 1)
    for number in range(rounds + 1):
        names = list(ways)[::-1] if number % 2 else list(ways)
        for name in names:
            step = ways[name]
            _share(session, 0.0)  # all begin together
            began = time.perf_counter()
            for _ in range(blocks[name]):
                step()
            mine = (time.perf_counter() - began) / blocks[name]
            slowest = max(_share(session, mine))
            if number:  # the first round warms up and sets the block length
                times[name].append(slowest)
            else:
                blocks[name] = max(1, round(BLOCK_SECONDS / slowest))
    return times


def _share(session: Session, value: float) -> list[float]:
    records = session.collective.gather(np.array([value]).view(np.uint8))
    return [float(record.view(np.float64)[0]) for record in records]


def contestant(
    session: Session, recipe: Recipe, grain: int, *, follow: bool
) -> tuple[Trainer, Step]:
    torch.manual_seed(0)
    model = recipe.model()
    trainer = session.prepare(
        model,
        recipe.optimizer(model.parameters()),
        recipe.loss,
        batch_size=recipe.batch_size,
        grain_size=grain,
        follow_speed=follow,
    )
    shares = trainer.stream(trainer.source(recipe.train), 0, 1 << 40)

    def step() -> None:
        trainer.step(next(shares))

    return trainer, step


@contextmanager
def busy(core: int) -> Iterator[None]:
    """Somebody else computes on this core."""
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(core)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def on_two_workers(*arguments: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "found.json"))
        launch(work, (*arguments, out), 2)
        found: dict[str, Any] = json.loads(Path(out).read_text())
        return found


def ratio(times: Times) -> dict[str, float]:
    """Throughput of following over even: the median of the rounds' ratios."""
    values = [even / ours for ours, even in zip(times[FOLLOWING], times[EVEN], strict=True)]
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "rounds": len(values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="volumes in place of the shipped nodules")
    parser.add_argument("--grain", type=int, default=2, help="examples in a grain; a batch has 32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    default = Path(__file__).parent / "results" / "uneven.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two workers with a core each need two cores")
    what = (cores, options.data, options.grain, options.rounds)
    found: dict[str, Any] = {
        "about": {
            "commit": commit(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "load before": os.getloadavg()[0],
            "grain": options.grain,
            "timing": "seconds per step of the slower worker; blocks of about 2 s in alternating "
            "order, first round dropped; ratios within a round",
        }
    }
    with busy(cores[1]):
        found["one of two workers at half speed"] = on_two_workers(*what)
    found["two equal workers"] = on_two_workers(*what)
    for name in ("one of two workers at half speed", "two equal workers"):
        part = found[name]
        row = part["ratio"] = ratio(part["seconds"])
        print(
            f"{name}: {row['median']:.3f} times the throughput of an even assignment "
            f"({row['low']:.3f} to {row['high']:.3f}, {row['rounds']} rounds); grains "
            f"{part['grains']}; {'the same bits' if part['same bits'] else 'OTHER BITS'}"
        )
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
