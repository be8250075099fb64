"""samepath against DistributedDataParallel and a plain loop, side by side in one run.

Prints ratios and writes them as JSON: throughput on nodules, digits and ResNet-18 at 1 and 2
workers, eager and compiled; the machine's own limit (two independent one-worker runs side by side);
peak memory; the same over a 1 Gbit/s link between two network namespaces; bytes sent per worker at
2 to 8 workers. Every contestant has processes of its own, with the memory settings its user would
have; DDP and the plain loop also run with samepath's (engine/run/memory.py). Last, where a step's
time goes at 1, 2 and 4 workers, with gradient factors and without.

    python benchmarks/engine.py                       everything, about 25 minutes on two cores
    python benchmarks/engine.py --only throughput --jobs nodules
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import namespaces
from about import commit
from contestants import all_reduce_step, ddp_step, job, plain_step, samepath_step
from samepath.engine.comm.collective import Alone
from samepath.engine.run.memory import keep_freed_memory
from samepath.engine.run.session import start
from samepath.insight.profile.profile import ProfileRequest, profile
from turns import Contestant, Times, crews, ratio, serve, take_turns

HERE = Path(__file__).parent
ROUNDS = 7
JOBS = (
    *("nodules", "nodules8", "nodules16", "nodules2"),
    *("digits", "digits128", "resnet18", "resnet32"),
)
PLAIN, DDP, OURS = "plain loop", "DDP, 2 workers", "samepath, 2 workers"
KEPT = ", samepath's memory"
ALONE, COMPILED = "samepath, 1 worker", "samepath, 1 worker, compiled"


def contestants(name: str) -> dict[str, Contestant]:
    """Who takes part on one machine."""

    def request(way: str, **more: Any) -> dict[str, Any]:
        return {"job": name, "way": way, **more}

    return {
        OURS: Contestant(request("samepath"), 2),
        DDP: Contestant(request("ddp"), 2),
        DDP + KEPT: Contestant(request("ddp", keep=True), 2),
        "samepath --exact off, 2 workers": Contestant(request("samepath", exact=False), 2),
        "two independent runs": Contestant(request("samepath"), 2, apart=True),
        ALONE: Contestant(request("samepath")),
        COMPILED: Contestant(request("samepath", compile=True)),
        PLAIN: Contestant(request("plain")),
        PLAIN + KEPT: Contestant(request("plain", keep=True)),
        "plain loop, 2 threads": Contestant(request("plain", threads=2), threads=2),
    }


def ratios(times: Times) -> dict[str, Any]:
    """What the README may quote, by what it says; throughputs, so that above 1 is better."""
    independent = times["two independent runs"]
    return {
        "2 workers against DDP": ratio(times[DDP], times[OURS]),
        f"2 workers against DDP{KEPT}": ratio(times[DDP + KEPT], times[OURS]),
        "2 workers, exact off, against DDP": ratio(
            times[DDP], times["samepath --exact off, 2 workers"]
        ),
        "2 workers against a plain loop with 2 threads": ratio(
            times["plain loop, 2 threads"], times[OURS]
        ),
        "1 worker against a plain loop": ratio(times[PLAIN], times[ALONE]),
        f"1 worker against a plain loop{KEPT}": ratio(times[PLAIN + KEPT], times[ALONE]),
        "1 worker, compiled, against a plain loop": ratio(times[PLAIN], times[COMPILED]),
        f"1 worker, compiled, against a plain loop{KEPT}": ratio(
            times[PLAIN + KEPT], times[COMPILED]
        ),
        "speed-up from 1 to 2 workers": ratio(times[ALONE], times[OURS]),
        "speed-up against the machine's limit": ratio(independent, times[OURS], 0.5),
        "DDP's speed-up against the same limit": ratio(independent, times[DDP], 0.5),
    }


def be_contestant(request: dict[str, Any]) -> None:
    """One worker of a contestant."""
    the_job, way = job(request["job"]), request["way"]
    torch.set_num_threads(request.get("threads", 1))
    if way == "samepath":
        session = start(threads=1)
        collective = session.collective
        if "RANK" not in os.environ:
            collective = Alone(torch.device("cpu"))
        step = samepath_step(
            the_job,
            collective,
            exact=request.get("exact", True),
            grain=request.get("grain"),
            factors=request.get("factors", "auto"),
            compile=request.get("compile", False),
        )
    else:
        if request.get("keep"):
            keep_freed_memory()
        step = {"ddp": ddp_step, "plain": plain_step, "gloo": all_reduce_step}[way](the_job)

    def answer(word: str) -> Any:
        if word == "peak_mb":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        assert word == "bytes"
        return namespaces.bytes_sent()

    serve(step, answer)
    # DDP must not be the last who holds a group: it ends the group's threads with Python's lock in
    # hand, which one of them may be waiting for
    os._exit(0)


def on_this_machine(name: str, rounds: int) -> dict[str, Any]:
    with crews(contestants(name), Path(__file__)) as started:
        times = take_turns(started, rounds)
        peaks = {way: max(started[way].ask("peak_mb")) for way in (OURS, DDP)}
    memory = peaks | {"ratio": peaks[OURS] / peaks[DDP]}
    return {"seconds": times, "ratios": ratios(times), "peak_mb": memory}


def over_a_link(name: str, rounds: int) -> dict[str, Any]:
    ways = {way: Contestant({"job": name, "way": way}, 2) for way in ("samepath", "ddp", "gloo")}
    with (
        namespaces.machines(2, rate="1gbit") as names,
        crews(ways, Path(__file__), names) as started,
    ):
        times = take_turns(started, rounds)
    return {
        "seconds": times,
        "ratios": {
            "over 1 Gbit/s against DDP": ratio(times["ddp"], times["samepath"]),
            "over 1 Gbit/s against one all_reduce after the backward pass": ratio(
                times["gloo"], times["samepath"]
            ),
        },
    }


def bytes_per_worker(num_workers: int, steps: int = 3) -> dict[str, Any]:
    """What a worker puts on its link in one step of nodules, in 8 grains (the recipe's) and in 32
    of one example, against a ring's, for the busiest worker."""
    gradient = 4 * sum(p.numel() for p in job("nodules").model().parameters())
    ring = 2 * (num_workers - 1) / num_workers * gradient
    ways: dict[str, dict[str, Any]] = {
        f"samepath, {grains} grains{words}": {
            "way": "samepath",
            "grain": 32 // grains,
            "factors": factors,
        }
        for factors, words in (("auto", ""), ("never", ", without factors"))
        for grains in (8, 32)
    }
    ways["DDP"] = {"way": "ddp"}
    asked = {
        name: Contestant({"job": "nodules", **request}, num_workers)
        for name, request in ways.items()
    }
    found: dict[str, Any] = {}
    with (
        namespaces.machines(num_workers) as names,
        crews(asked, Path(__file__), names) as started,
    ):
        for name, crew in started.items():
            crew.ask(2)
            before = crew.ask("bytes")
            crew.ask(steps)
            sent = [b - a for a, b in zip(before, crew.ask("bytes"), strict=True)]
            found[name] = max(sent) / steps / ring
    return found


def phases(num_workers: int) -> dict[str, Any]:
    """Where a step of nodules spends its time, by `samepath profile`."""
    found = {}
    recipes = {"nodules": "nodules", "without factors": str(HERE / "nodules_without_factors.py")}
    for name, recipe in recipes.items():
        request = ProfileRequest(
            recipe=recipe, num_workers=num_workers, timed_steps=40, measure=False
        )
        profiled = profile(request, tell=print)
        assert profiled is not None
        (numbers,) = profiled.numbers
        found[name] = {
            "step_seconds": numbers.step_seconds,
            "phase_seconds": numbers.phase_seconds,
            "hidden_share": numbers.hidden_share,
            "bytes_sent": numbers.bytes_sent,
        }
    return found


def show(title: str, rows: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("throughput", "median", "low", "high", "rounds"):
        table.add_column(column)
    for name, row in rows.items():
        cells = [f"{row[c]:.3f}" for c in ("median", "low", "high")]
        table.add_row(name, *cells, str(row["rounds"]))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="throughput,link,bytes,phases")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engine.json")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    parts = options.only.split(",")
    found["about"] = {
        "commits": found.get("about", {}).get("commits", {}) | dict.fromkeys(parts, commit()),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "timing": "seconds per step of the slowest worker; contestants in processes of their own "
        "take turns in blocks of about 2 s, in alternating order; ratios within a round",
    }
    problem = namespaces.available() if {"link", "bytes"} & set(parts) else None
    for name in options.jobs.split(","):
        for part, measure in (("throughput", on_this_machine), ("link", over_a_link)):
            if part in parts and not (part == "link" and problem):
                result = measure(name, options.rounds)
                show(f"{name}: {part}", result["ratios"])
                found.setdefault(part, {})[name] = result
                _write(options.out, found)
    # tables with a column for each number of workers: all of them, or none
    if "bytes" in parts and not problem:
        rows = {}
        for num_workers in range(2, 9):
            rows[str(num_workers)] = row = bytes_per_worker(num_workers)
            words = ", ".join(f"{name} {value:.2f}" for name, value in row.items())
            print(f"bytes at {num_workers} workers, busiest, against a ring's: {words}")
        found["bytes"] = rows
        _write(options.out, found)
    if "phases" in parts:
        found["phases"] = {str(num_workers): phases(num_workers) for num_workers in (1, 2, 4)}
        _write(options.out, found)
    if problem is not None:
        print(f"left out: link and bytes ({problem})")
    print(f"written to {options.out}")


def _write(out: Path, found: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        be_contestant(json.loads(sys.argv[1]))
    else:
        main()
