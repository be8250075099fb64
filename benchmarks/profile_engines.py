"""Where a step's time goes with samepath, DDP and a queue like Horovod's, side by side in one run.

Profiles nodules on two workers a few times (engines take turns within each time, too), prints the
table and writes it as JSON. Ratios are within a repeat.

    python benchmarks/profile_engines.py                 about five minutes on two quiet cores
    python benchmarks/profile_engines.py --recipe digits --engines samepath,queue --cycle-ms 1
    python benchmarks/profile_engines.py --engines samepath,queue,horovod    where it is installed
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from about import commit
from horovod_engine import profile_horovod
from samepath.insight.profile.profile import Profile, ProfileRequest, profile
from samepath.insight.profile.queue_reduction import QueueSettings
from samepath.insight.profile.timeline import Numbers, numbers
from samepath.timing.stopwatch import machine

HERE = Path(__file__).parent
PHASES = ("load", "forward", "backward", "reduce", "wait", "update", "other")


def rows_of(each: Numbers) -> dict[str, float]:
    return {
        "step (ms)": 1e3 * each.step_seconds,
        **{f"{phase} (ms)": 1e3 * each.phase_seconds[phase] for phase in PHASES},
        "communication (ms)": 1e3 * each.communication_seconds,
        "hidden (%)": 100 * (each.hidden_share or 0.0),
        "waiting on the slowest (%)": 100 * each.slowest_share,
        "waiting on reductions (%)": 100 * (each.waiting_share - each.slowest_share),
        "buckets": each.num_reductions,
        "sent (MB)": each.bytes_sent / 1e6,
    }


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "repeats": len(values),
    }


def table(repeats: list[Profile]) -> dict[str, dict[str, dict[str, float]]]:
    """By engine and row: the median over repeats, and their range."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for place, engine in enumerate(repeats[0].numbers):
        every = [rows_of(each.numbers[place]) for each in repeats]
        rows = {name: spread([each[name] for each in every]) for name in every[0]}
        rows[f"step / {repeats[0].numbers[0].engine}'s"] = spread(
            [each.numbers[place].step_seconds / each.numbers[0].step_seconds for each in repeats]
        )
        found[engine.engine] = rows
    return found


def show(title: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    shown = Table(title=title, title_justify="left")
    shown.add_column("")
    for engine in found:
        shown.add_column(engine, justify="right")
    for name in next(iter(found.values())):
        cells = [
            f"{rows[name]['median']:.3g} ({rows[name]['low']:.3g} to {rows[name]['high']:.3g})"
            for rows in found.values()
        ]
        shown.add_row(name, *cells)
    Console().print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default="nodules")
    parser.add_argument("--engines", default="samepath,ddp,queue")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--grain", type=int)
    parser.add_argument("--cycle-ms", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "profile_engines.json")
    options = parser.parse_args()
    engines = tuple(options.engines.split(","))
    with_horovod = "horovod" in engines
    request = ProfileRequest(
        recipe=options.recipe,
        num_workers=options.workers,
        engines=tuple(name for name in engines if name != "horovod"),
        timed_steps=options.steps,
        grain_size=options.grain,
        queue=QueueSettings(cycle_seconds=options.cycle_ms / 1e3),
        measure=False,
    )
    repeats = []
    for number in range(options.repeats):
        print(f"repeat {number + 1} of {options.repeats}")
        found = profile(request, print)
        assert found is not None
        if with_horovod:  # after the others: it starts workers of its own
            beside = numbers(profile_horovod(request))
            found = replace(found, numbers=(*found.numbers, beside))
        repeats.append(found)
    rows = table(repeats)
    show(f"{options.recipe} on {options.workers} workers: median over repeats (range)", rows)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    results[f"{options.recipe} on {options.workers}"] = {
        "about": {
            "commit": commit(),
            "torch": torch.__version__,
            "machine": machine(),
            "python": platform.python_version(),
            "steps": options.steps,
            "repeats": options.repeats,
            "options": asdict(repeats[0].options),
            "queue": asdict(request.queue),
            "busy_cores": [each.busy_cores for each in repeats],
            "timing": "steps of the slowest worker, engines in turns of two; medians over repeats "
            "of a repeat's median; ratios within a repeat",
        },
        "engines": rows,
    }
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
