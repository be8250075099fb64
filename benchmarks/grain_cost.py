"""What small grains cost on one worker, and how much of it is samepath's own.

For nodules, digits and ResNet-18, in grains of 1, 2, 4 and 8 examples and in the whole batch: CPU
time of a step by a plain loop that adds up the same grains, and by samepath. One thread, one
process, samepath's memory settings for all; they take turns, and the shortest of their turns
counts, for others may use the machine. Writes `results/grain_cost.json`.

    python benchmarks/grain_cost.py                     about five minutes
    python benchmarks/grain_cost.py --jobs nodules
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from about import commit
from contestants import Step, job, plain_step, samepath_step
from samepath.engine.comm.collective import Alone
from samepath.engine.run.memory import keep_freed_memory

HERE = Path(__file__).parent
JOBS = ("nodules", "digits", "resnet18")
GRAINS = (1, 2, 4, 8)
ROUNDS = 5
TURN_SECONDS = 0.3
PARTS_GRAIN, PROFILED_STEPS = 2, 5
PARTS = {
    ("buffers.py", "after_grain"): "buffers",
    ("step.py", "_seed_grain"): "seeding",
    ("replicas.py", "before_grain"): "comparing weights",
    ("replicas.py", "after_grain"): "comparing weights",
    ("gradients.py", "before_forward"): "adding gradients",
    ("gradients.py", "_before_backward"): "adding gradients",
    ("gradients.py", "after_backward"): "adding gradients",
    ("factors.py", "take"): "factors",
    ("factors.py", "of_grain"): "factors",
    ("factors.py", "before"): "factors",
}
"""What samepath does around a grain's passes, by the functions that do it."""


def turn(step: Step) -> float:
    """CPU seconds of a step, over about a third of a second."""
    began, steps = time.process_time(), 0
    while (elapsed := time.process_time() - began) < TURN_SECONDS or not steps:
        step()
        steps += 1
    return elapsed / steps


def parts(step: Step) -> dict[str, float]:
    """What samepath does around a grain's passes, as parts of it (Python counts too much)."""
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    for _ in range(PROFILED_STEPS):
        step()
    profile.disable()
    seconds = dict.fromkeys(PARTS.values(), 0.0)
    for (file, _, function), (_, _, _, taken, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if (part := PARTS.get((Path(file).name, function))) is not None:
            seconds[part] += taken
    return {part: taken / sum(seconds.values()) for part, taken in seconds.items()}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """CPU seconds of a step, by grain size: the loop's and samepath's."""
    the_job = job(name)
    found: dict[str, Any] = {}
    shares: dict[str, float] = {}
    for grain in (*GRAINS, the_job.batch_size):
        contestants = {
            "loop": plain_step(the_job, grain),
            "samepath": samepath_step(the_job, Alone(torch.device("cpu")), grain=grain),
        }
        for step in contestants.values():
            for _ in range(2):
                step()
        times: dict[str, list[float]] = {way: [] for way in contestants}
        for number in range(rounds):
            order = list(contestants) if number % 2 else list(contestants)[::-1]
            for way in order:
                times[way].append(turn(contestants[way]))
        found[str(grain)] = {way: min(taken) for way, taken in times.items()}
        if grain == PARTS_GRAIN:
            shares = parts(contestants["samepath"])
    return {
        "batch": the_job.batch_size,
        "seconds": found,
        "parts": shares,
        "parts_grain": PARTS_GRAIN,
    }


def show(found: dict[str, Any]) -> None:
    table = Table(title="CPU time of a step on one thread", title_justify="left")
    for column in ("job", "grains of", "loop, same grains", "samepath", "samepath's own"):
        table.add_column(column)
    for name, row in found.items():
        for grain, seconds in row["seconds"].items():
            loop, ours = seconds["loop"], seconds["samepath"]
            cells = [f"{1e3 * loop:.1f} ms", f"{1e3 * ours:.1f} ms", f"{1 - loop / ours:.0%}"]
            table.add_row(name, grain, *cells)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "grain_cost.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    before = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    found = before.get("jobs", {})
    about = {
        "commit": commit(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "timing": "CPU seconds of one thread; the shortest of the turns",
    }
    for name in asked.jobs.split(","):
        found[name] = measure(name, asked.rounds)
        show({name: found[name]})
        print(", ".join(f"{part} {share:.0%}" for part, share in found[name]["parts"].items()))
        asked.out.write_text(json.dumps({"jobs": found, "about": about}, indent=1) + "\n")


if __name__ == "__main__":
    main()
