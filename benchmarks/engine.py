"""samepath against DistributedDataParallel and a plain loop, side by side in one run.

Prints ratios and writes them as JSON: throughput on nodules, digits and ResNet-18 at 1 and 2
workers; the machine's own limit (two independent one-worker runs side by side); peak memory; the
same over a 1 Gbit/s link between two network namespaces; bytes sent per worker at 2 to 8 workers.

    python benchmarks/engine.py                       everything, about 20 minutes on two cores
    python benchmarks/engine.py --only throughput --jobs nodules
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import namespaces
from about import commit
from contestants import Step, ddp_step, job, plain_step, samepath_step
from samepath.engine.comm.collective import Alone
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Session, start

HERE = Path(__file__).parent
ROUNDS = 7
BLOCK_SECONDS = 2.0
Times = dict[str, list[float]]


def alternate(
    session: Session, ways: dict[str, Step | None], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Seconds per step of each way: blocks of steps in alternating order, the first one dropped.

    A way that is None on this worker waits for the others (and leaves it its core)."""
    times: Times = {name: [] for name in ways}
    blocks = dict.fromkeys(ways, 1)
    for number in range(rounds + 1):
        names = list(ways)[::-1] if number % 2 else list(ways)
        for name in names:
            step = ways[name]
            _together(session)
            began = time.perf_counter()
            for _ in range(blocks[name] if step is not None else 0):
                assert step is not None
                step()
            mine = (time.perf_counter() - began) / blocks[name]
            slowest = max(_share(session, mine))
            if number:  # the first round warms up and sets the block length
                times[name].append(slowest)
            else:
                blocks[name] = max(1, round(BLOCK_SECONDS / slowest))
    return times


def _share(session: Session, value: float) -> list[float]:
    import numpy as np

    records = session.collective.gather(np.array([value]).view(np.uint8))
    return [float(record.view(np.float64)[0]) for record in records]


def _together(session: Session) -> None:
    _share(session, 0.0)


def throughput(name: str, rounds: int, out: str) -> None:
    """Two workers; ways that need one leave the other idle."""
    with start() as session:
        the_job = job(name)
        first = session.is_first
        alone = Alone(torch.device("cpu"))
        ways: dict[str, Step | None] = {
            "samepath, 2 workers": samepath_step(the_job, session.collective),
            "DDP, 2 workers": ddp_step(the_job, session.worker, session.num_workers),
            "samepath --exact off, 2 workers": samepath_step(
                the_job, session.collective, exact=False
            ),
            "two independent runs": samepath_step(the_job, alone),
            "samepath, 1 worker": samepath_step(the_job, alone) if first else None,
            "plain loop": plain_step(the_job) if first else None,
        }
        times = alternate(session, ways, rounds)
        if first:
            Path(out).write_text(json.dumps(times))
        # DDP must not be the last who holds a group: it ends the group's threads with Python's lock
        # in hand, which one of them may be waiting for
        ways.clear()


def ratios(times: Times) -> dict[str, Any]:
    """What the README may quote: medians over rounds of ratios within a round, and their spread."""

    def ratio(over: str, under: str, factor: float = 1.0) -> dict[str, float]:
        values = [factor * a / b for a, b in zip(times[over], times[under], strict=True)]
        return {
            "median": statistics.median(values),
            "low": min(values),
            "high": max(values),
            "rounds": len(values),
        }

    return {
        "2 workers: throughput against DDP": ratio("DDP, 2 workers", "samepath, 2 workers"),
        "2 workers, exact off: throughput against DDP": ratio(
            "DDP, 2 workers", "samepath --exact off, 2 workers"
        ),
        "1 worker: throughput against a plain loop": ratio("plain loop", "samepath, 1 worker"),
        "speed-up from 1 to 2 workers": ratio("samepath, 1 worker", "samepath, 2 workers"),
        "speed-up against the machine's limit": ratio(
            "two independent runs", "samepath, 2 workers", 0.5
        ),
        "DDP's speed-up against the same limit": ratio(
            "two independent runs", "DDP, 2 workers", 0.5
        ),
    }


def memory(name: str, way: str, out: str) -> None:
    """Peak resident memory of a worker after ten steps, above what it had before the model."""
    with start() as session:
        the_job = job(name)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        step: Callable[[], None] = (
            ddp_step(the_job, session.worker, session.num_workers)
            if way == "DDP"
            else samepath_step(the_job, session.collective)
        )
        for _ in range(10):
            step()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks = _share(session, after / 1024)
        grown = _share(session, (after - before) / 1024)
        if session.is_first:
            Path(out).write_text(json.dumps({"peak_mb": max(peaks), "grown_mb": max(grown)}))
        del step  # see throughput


def on_a_machine(request: dict[str, Any]) -> None:
    """One worker in a namespace of its own: times or bytes, printed by worker 0."""
    with start() as session:
        assert type(session.collective).__name__ == "Network"
        the_job = job(request["job"])
        grain = request.get("grain")
        ways: dict[str, Step | None] = {
            "samepath": samepath_step(the_job, session.collective, grain=grain),
            "DDP": ddp_step(the_job, session.worker, session.num_workers),
        }
        found: dict[str, Any]
        if request["what"] == "times":
            found = alternate(session, ways, request["rounds"])
        else:
            found = {}
            for name, step in ways.items():
                assert step is not None
                step()
                step()
                _together(session)
                before = namespaces.bytes_sent()
                for _ in range(request["steps"]):
                    step()
                sent = (namespaces.bytes_sent() - before) / request["steps"]
                found[name] = _share(session, sent)
        if session.is_first:
            print(json.dumps(found))
        step = None
        ways.clear()  # see throughput


def over_a_link(name: str, rounds: int) -> dict[str, Any]:
    with namespaces.machines(2, rate="1gbit") as names:
        request = {"what": "times", "job": name, "rounds": rounds}
        times = namespaces.run_on(names, Path(__file__), request)
    pairs = list(zip(times["DDP"], times["samepath"], strict=True))  # type: ignore[call-overload]
    values = [ddp / ours for ddp, ours in pairs]
    return {
        "seconds": times,
        "throughput against DDP": {
            "median": statistics.median(values),
            "low": min(values),
            "high": max(values),
            "rounds": len(values),
        },
    }


def bytes_per_worker(num_workers: int) -> dict[str, Any]:
    """Bytes a worker puts on its link in one step of nodules with 32 grains of one example."""
    the_job = job("nodules")
    gradient = 4 * sum(p.numel() for p in the_job.model().parameters())
    ring = 2 * (num_workers - 1) / num_workers * gradient
    with namespaces.machines(num_workers) as names:
        request = {"what": "bytes", "job": "nodules", "steps": 3, "grain": 1}
        found = namespaces.run_on(names, Path(__file__), request)
    most = {name: max(sent) for name, sent in found.items()}  # type: ignore[call-overload]
    mean = {name: statistics.mean(sent) for name, sent in found.items()}  # type: ignore[arg-type]
    return {
        "gradient_bytes": gradient,
        "ring_bytes": ring,
        "samepath, the busiest worker": most["samepath"] / ring,
        "samepath, mean": mean["samepath"] / ring,
        "DDP, the busiest worker": most["DDP"] / ring,
    }


def in_processes(function: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """Run a function on two workers of this machine; what worker 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "found.json"))
        launch(function, (*arguments, out), 2)
        found: dict[str, Any] = json.loads(Path(out).read_text())
        return found


def show(title: str, rows: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("what", "median", "low", "high", "rounds"):
        table.add_column(column)
    for name, row in rows.items():
        cells = [f"{row[c]:.3f}" for c in ("median", "low", "high")]
        table.add_row(name, *cells, str(row["rounds"]))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="throughput,memory,link,bytes")
    parser.add_argument("--jobs", default="nodules,nodules16,digits,resnet18")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engine.json")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    parts, names = options.only.split(","), options.jobs.split(",")
    earlier = found.get("about", {}).get("commits", {})
    found["about"] = {
        "commits": earlier | dict.fromkeys(parts, commit()),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "timing": "seconds per step of the slowest worker; blocks of about 2 s in alternating "
        "order, first round dropped; ratios within a round",
    }
    problem = namespaces.available() if {"link", "bytes"} & set(parts) else None
    for name in names:
        if "throughput" in parts:
            times = in_processes(throughput, name, options.rounds)
            rows = ratios(times)
            show(f"{name}: two workers of this machine", rows)
            found.setdefault("throughput", {})[name] = {"seconds": times, "ratios": rows}
        if "memory" in parts:
            peaks = {way: in_processes(memory, name, way) for way in ("DDP", "samepath")}
            peaks["ratio"] = peaks["samepath"]["peak_mb"] / peaks["DDP"]["peak_mb"]
            print(f"{name}: peak memory {peaks}")
            found.setdefault("memory", {})[name] = peaks
        if "link" in parts and problem is None:
            result = over_a_link(name, options.rounds)
            row = {"throughput against DDP": result["throughput against DDP"]}
            show(f"{name}: 1 Gbit/s between two machines", row)
            found.setdefault("link", {})[name] = result
    if "bytes" in parts and problem is None:
        for num_workers in range(2, 9):
            row = bytes_per_worker(num_workers)
            words = ", ".join(f"{k} {v:.3f}" for k, v in row.items() if "bytes" not in k)
            print(f"bytes at {num_workers} workers, against a ring's: {words}")
            found.setdefault("bytes", {})[str(num_workers)] = row
    if problem is not None:
        print(f"left out: link and bytes ({problem})")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        on_a_machine(json.loads(sys.argv[1]))
    else:
        main()
