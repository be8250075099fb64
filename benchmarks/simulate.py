"""The simulated step against real ones: 1 and 2 workers, three links; and what a message costs.

Parts (`timing.stopwatch`) and whole steps take turns in one start of two workers; steps are
predicted from the parts alone, nothing is fitted to them. (At one worker the parts are those of the
same steps: what is checked is that they add up.) Links: shared memory and gloo's loopback between
workers of this machine, and 1 Gbit/s between two network namespaces, each measured there and then
with the same function. Also: what each further message of an all_to_all costs, in latencies.

    python benchmarks/simulate.py                        about 12 minutes on two cores
    python benchmarks/simulate.py --only steps --recipes nodules --passes 1
    python benchmarks/simulate.py --only messages
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import namespaces
from about import commit
from samepath.engine.comm.environment import read_place
from samepath.engine.launch.launch import launch
from samepath.engine.run.fewer_workers import normalises_over_grains
from samepath.engine.run.options import Options, resolve
from samepath.engine.run.session import start
from samepath.plan import reduction
from samepath.recipe import find_recipe
from samepath.timing.links import NODE, flat
from samepath.timing.measured import MeasuredStep
from samepath.timing.model import Buckets, simulate, workload_from
from samepath.timing.stopwatch import (
    MOST_REDUCTIONS,
    TimingJob,
    Turn,
    all_turns,
    assemble,
    run_turns,
    shared_seconds,
    sizes_to_time,
    time_on_worker,
    turns_for,
)

HERE = Path(__file__).parent
SHARED, LOOPBACK, GIGABIT = "shared memory", "gloo, loopback", "1 Gbit/s"
RATE = "1gbit"
WORKERS = (1, 2)


def options_of(recipe: str) -> Options:
    return resolve(find_recipe(recipe))


# ---- steps


def everything(options: Options, seconds: float) -> dict[Turn, float]:
    """Grains, neighbours and whole steps of one and of two workers."""
    fixed = normalises_over_grains(find_recipe(options.recipe).model())
    turns = turns_for(options, 2, sizes_to_time(options, fixed=fixed), fixed=fixed)
    return shared_seconds(turns, seconds, options.grain_size)


def timed(recipe: str, link: str, seconds: float) -> MeasuredStep:
    """Parts and whole steps over a link, taking turns in one start of two workers."""
    options = options_of(recipe)
    turns = everything(options, seconds)
    how: dict[str, Any] = {"asked_seconds": seconds, "reductions": MOST_REDUCTIONS}
    if link == GIGABIT:
        with tempfile.TemporaryDirectory() as folder, namespaces.machines(2, rate=RATE) as names:
            request = {"recipe": recipe, "folder": folder, **how}
            namespaces.run_on(names, Path(__file__), request)
            files = [Path(folder) / str(worker) for worker in range(2)]
            found = all_turns([pickle.loads(file.read_bytes()) for file in files], turns)
    else:
        found = run_turns(options, 2, turns, link="network" if link == LOOPBACK else "auto", **how)
    return assemble(options, {2: found})


def on_a_machine(request: dict[str, Any]) -> None:
    """One worker in a namespace of its own."""
    options = options_of(request.pop("recipe"))
    folder = Path(request.pop("folder"))
    turns = everything(options, request["asked_seconds"])
    found = time_on_worker(TimingJob(options=options, turns=turns, **request))
    (folder / str(read_place(os.environ).worker)).write_bytes(pickle.dumps(found))
    print("{}")


def one_pass(recipe: str, links: list[str], seconds: float) -> list[dict[str, Any]]:
    """Predict from the parts, and compare with the steps."""
    rows = []
    for link in links:
        measured = timed(recipe, link, seconds)
        # Both namespaces are on this computer, whose cores and caches their workers share.
        machine = flat(measured.local, name=NODE)
        workload = workload_from(measured)
        points = simulate(workload, machine, WORKERS, policy=Buckets(), seed=1, trials=400)
        rows += [
            {
                "recipe": recipe,
                "link": link,
                "link_facts": asdict(measured.local),
                "workers": point.workers,
                "predicted_seconds": point.median_seconds,
                "measured_seconds": measured.step_seconds[str(point.workers)],
                "busy_cores": measured.busy_cores,
                "crowding": measured.crowding["2"],
                "update_seconds": measured.update_seconds,
                "modelled": asdict(point),
            }
            for point in points
            if str(point.workers) in measured.step_seconds
        ]
    return rows


def summary(passes: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Medians over passes: errors of a step's time, and (`speedup_error`) of T1 / T2."""
    found = []
    for same in zip(*passes, strict=True):
        row = {name: same[0][name] for name in ("recipe", "link", "workers")}
        errors = [r["predicted_seconds"] / r["measured_seconds"] - 1.0 for r in same]
        for name in ("predicted_seconds", "measured_seconds"):
            row[name] = statistics.median(r[name] for r in same)
        row |= {"error": statistics.median(errors), "low": min(errors), "high": max(errors)}
        found.append(row)
    alone = {row["link"]: row for row in found if row["workers"] == 1}
    for row in found:
        if row["workers"] > 1:
            before = alone[row["link"]]
            predicted, measured = (
                before[name] / row[name] for name in ("predicted_seconds", "measured_seconds")
            )
            row["speedup_error"] = predicted / measured - 1.0
    return found


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="predicted and measured steps", title_justify="left", box=None)
    for column in ("recipe", "link", "n", "predicted", "measured", "error", "passes", "speed-up"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            Path(row["recipe"]).stem,
            row["link"],
            str(row["workers"]),
            f"{1e3 * row['predicted_seconds']:.1f} ms",
            f"{1e3 * row['measured_seconds']:.1f} ms",
            f"{row['error']:+.1%}",
            f"{row['low']:+.0%} to {row['high']:+.0%}",
            f"{row['speedup_error']:+.1%}" if "speedup_error" in row else "",
        )
    Console().print(table)


# ---- messages

COUNTS = (2, 4, 8, 16)
FLOATS = 16
"""In every message: next to nothing."""
BLOCKS, BLOCK = 12, 20


def time_messages(path: Path) -> None:
    """Reductions of next to nothing through all_to_all: wall and core seconds of one."""
    with start(link="network", timeout_seconds=120.0) as session:
        collective, workers = session.collective, session.num_workers
        bucket = collective.bucket(FLOATS * workers, torch.float32, exact=True)
        how = reduction(3 * workers if workers == 2 else workers, workers)  # two would all_reduce
        times = []
        for _ in range(BLOCKS):
            collective.agree(True)
            began, cores = time.perf_counter(), time.process_time()
            for _ in range(BLOCK):
                bucket.begin(how)
                bucket.launch()
                bucket.add_chunk()
                bucket.finish()
            wall = (time.perf_counter() - began) / BLOCK
            mine = (time.process_time() - cores) / BLOCK
            times.append((wall, float(collective.gather_rows(np.array([mine])).mean())))
        if session.is_first:
            path.write_text(json.dumps(times[2:]))


def messages() -> dict[str, Any]:
    """The slope of core seconds over messages: with more workers than cores wall seconds say how
    many cores there are, core seconds what a worker has to do."""
    found: dict[int, dict[str, float]] = {}
    for workers in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "times.json")
            launch(time_messages, (path,), workers)
            walls, cores = zip(*json.loads(path.read_text()), strict=True)
        found[workers] = {
            "wall_seconds": statistics.median(walls),
            "core_seconds": statistics.median(cores),
            "least_core_seconds": min(cores),
        }
    number = [2 * (workers - 1) for workers in COUNTS]
    slope = float(np.polyfit(number, [found[n]["core_seconds"] for n in COUNTS], 1)[0])
    latency = found[2]["wall_seconds"] / 2
    return {
        "by_workers": found,
        "core_seconds_per_message": slope,
        "latency_seconds": latency,
        "message_latencies": slope / latency,
    }


# ---- all of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="steps,messages")
    parser.add_argument("--recipes", default="nodules,digits,cifar10-small")
    parser.add_argument("--links", default=",".join((SHARED, LOOPBACK, GIGABIT)).replace(", ", " "))
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulate.json")
    options = parser.parse_args()
    names = {link.replace(", ", " "): link for link in (SHARED, LOOPBACK, GIGABIT)}
    links = [names[name] for name in options.links.split(",")]
    problem = namespaces.available() if GIGABIT in links else None
    if problem is not None:
        print(f"left out: {GIGABIT} ({problem})")
        links.remove(GIGABIT)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    parts = options.only.split(",")
    found["about"] = {
        "commits": found.get("about", {}).get("commits", {}) | dict.fromkeys(parts, commit()),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "timing": "medians; parts and the steps they predict take turns in one start of workers",
    }
    if "steps" in parts:
        for recipe in options.recipes.split(","):
            passes = []
            for number in range(options.passes):
                print(f"{recipe}: pass {number + 1} of {options.passes}")
                passes.append(one_pass(recipe, links, options.seconds))
            rows = summary(passes)
            show(rows)
            found.setdefault("steps", {})[recipe] = {"rows": rows, "passes": passes}
    if "messages" in parts:
        found["messages"] = row = messages()
        print(
            f"a further message: {1e6 * row['core_seconds_per_message']:.0f} us of a core, "
            f"{row['message_latencies']:.3f} of a latency of {1e6 * row['latency_seconds']:.0f} us"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        on_a_machine(json.loads(sys.argv[1]))
    else:
        main()
