"""What it costs that every run compares its replicas.

Steps with the comparison about every eighth step, as in every run, and without, in stretches of
sixteen that take turns in one process, on one worker and on two; the ratio of the times of
neighbouring stretches, median and spread. One worker compares its grains with each other only.

    python benchmarks/replica_check.py

(about four minutes)
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from about import commit
from samepath import start
from samepath.engine.checks.replicas import EVERY, is_due
from samepath.engine.launch.launch import launch
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Overrides, resolve
from samepath.engine.step import step as engine
from samepath.recipe import find_recipe
from samepath.timing.stopwatch import machine

ROUNDS = 24
OFTEN = sum(map(is_due, range(1 << 12))) / (1 << 12)
"""In how many of all steps replicas are compared."""
RECIPES = ("nodules", "digits")


def measure(name: str, folder: str) -> None:
    """The body of every worker; the first leaves its times."""
    found = find_recipe(name)
    options = resolve(found, Overrides(threads=1))
    ratios, shares_of_step = [], []
    with start(seed=options.seed, threads=1) as session:
        made = make_trainer(found, options, session, follow_speed=False)
        source = made.source(found.train)
        per_epoch = options.plan.steps_per_epoch - 1  # without the short batch

        def stretch(every: int) -> float:
            """The time of sixteen steps of full batches."""
            first = made.step_number - made.step_number % per_epoch
            if made.step_number % per_epoch + EVERY > per_epoch:
                first += per_epoch
            made.step_number = first
            due = is_due if every == EVERY else (lambda step: False)
            with mock.patch.object(engine, "is_due", due):
                began = time.perf_counter()
                for share in made.stream(source, first, first + EVERY):
                    made.step(share)
                return time.perf_counter() - began

        for number in range(1 + ROUNDS):
            order = (EVERY, 1 << 40) if number % 2 else (1 << 40, EVERY)
            times = {every: stretch(every) for every in order}
            if number:  # the first warms up
                ratios.append(times[EVERY] / times[1 << 40])
        began = time.perf_counter()
        for _ in range(20):
            made._replicas.begin(check=True)
            made._replicas.record()
        shares_of_step.append((time.perf_counter() - began) / 20)
        step = statistics.median(stretch(1 << 40) for _ in range(3)) / EVERY
    if session.is_first:
        ordered = sorted(ratios)
        result: dict[str, Any] = {
            "ratio": statistics.median(ratios),
            "low": ordered[len(ordered) // 4],
            "high": ordered[-1 - len(ordered) // 4],
            "sums ms": 1e3 * shares_of_step[0],
            "step ms": 1e3 * step,
            "share of the step time": 1.5 * shares_of_step[0] * OFTEN / step,
        }
        Path(folder, "found.json").write_text(json.dumps(result))


def main() -> None:
    results: dict[str, Any] = {}
    for name in RECIPES:
        for workers in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                launch(measure, (name, folder), workers)
                found = json.loads(Path(folder, "found.json").read_text())
            results[f"{name}, {workers}"] = found
            print(
                f"{name}, {workers} worker{'s' if workers > 1 else ''}: ratio {found['ratio']:.4f} "
                f"({found['low']:.4f} to {found['high']:.4f}); sums over weights and buffers "
                f"{found['sums ms']:.2f} ms, {found['share of the step time']:.3%} of a step",
                flush=True,
            )
    path = Path(__file__).parent / "results" / "replica_check.json"
    path.write_text(
        json.dumps({"results": results, "machine": machine(), "commit": commit()}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
