"""Strong scaling of nodules over Gigabit Ethernet: the paper's Table I beside a model of ours.

Measures a step of nodules on one worker of this machine, models 2 to 32 machines at 1 Gbit/s for
three compute speeds (this CPU, the paper's K80, a modern GPU) with gradient factors and without,
and checks the model against 2 and 4 real workers in network namespaces at 1 Gbit/s. These share
this machine's cores, so there every example also sleeps: compute that takes no core, as that of a
slower machine. Writes `results/strong_scaling.json`.

    python benchmarks/strong_scaling.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import namespaces
from about import commit
from contestants import job, samepath_step
from samepath.engine.run.options import resolve
from samepath.engine.run.session import start
from samepath.recipe import find_recipe
from samepath.timing.links import PRESETS, flat
from samepath.timing.measured import MeasuredStep
from samepath.timing.model import DDP, Buckets, Policy, Workload, simulate, workload_from
from samepath.timing.stopwatch import measure_step

HERE = Path(__file__).parent
WORKERS = (1, 2, 4, 8, 16, 32)
PAPER = {1: 1.0, 2: 1.0517, 4: 0.8681, 8: 0.9009, 16: 0.5808, 32: 0.4625}
"""Cunha et al. 2018, Table I."""
K80_STEP_SECONDS = 7 * 24 * 3600 / (100 * -(-(2100 - 256) // 32))
"""A hundred epochs of 2100 - 256 nodules in batches of 32, a week long (section VI)."""
GPU_SPEED = 20.0
"""Assumed: a modern GPU computes a grain so many times as fast as one core here."""
SLEEP_SECONDS = 4e-3
"""Of an example in the check: three times what it takes one core here."""
STEPS = 40


def at_speed(workload: Workload, speed: float) -> Workload:
    """The same step on workers that compute so many times as fast."""
    grains = {size: seconds / speed for size, seconds in workload.grain_seconds.items()}
    serial = workload.serial_seconds / speed
    return replace(workload, grain_seconds=grains, serial_seconds=serial, crowding={})


def efficiencies(workload: Workload, policy: Policy) -> list[float]:
    """Modelled, each worker a machine of its own. The largest grain that lets so many take part."""
    found = []
    for workers in WORKERS:
        grain = min(workload.batch_size, -(-workload.batch_size // workers))
        own = replace(workload, grain_size=grain)
        (point,) = simulate(own, flat(PRESETS["1GbE"]), [workers], policy=policy)
        found.append(point.step_seconds)
    return [found[0] / seconds / workers for seconds, workers in zip(found, WORKERS, strict=True)]


def modelled(measured: MeasuredStep) -> dict[str, Any]:
    workload = workload_from(measured)
    alone = workload.grain_seconds[workload.batch_size] + workload.serial_seconds
    speeds = {
        "this CPU, one core": 1.0,
        "the paper's K80": alone / K80_STEP_SECONDS,
        f"a GPU {GPU_SPEED:g} times this core (assumed)": GPU_SPEED,
    }
    rows: dict[str, Any] = {}
    for name, speed in speeds.items():
        own = at_speed(workload, speed)
        rows[name] = {
            "step_seconds": alone / speed,
            "samepath": efficiencies(own, Buckets()),
            "samepath without factors": efficiencies(replace(own, row_bytes=()), Buckets()),
            "DDP": efficiencies(own, DDP),
        }
    return rows


# ---- the check


def sleepy(workload: Workload, workers: int) -> Workload:
    """The step whose loss sleeps, before its backward pass, for every example; what it computes
    waits for one of this machine's cores."""
    cores = os.cpu_count() or 1
    crowded = workload.crowded(min(workers, cores)) * max(1.0, workers / cores)

    def at(size: int) -> float:
        return crowded * workload.grain_seconds[size] + SLEEP_SECONDS * size

    size = workload.grain_size
    part = SLEEP_SECONDS * size / at(size)
    return replace(
        workload,
        grain_seconds={each: at(each) for each in workload.grain_seconds},
        tensor_ready=tuple(part + (1.0 - part) * ready for ready in workload.tensor_ready),
        crowding={},
    )


def on_a_machine(request: dict[str, Any]) -> None:
    """One of the workers; the first prints the times of its steps."""
    with start(threads=1) as session:
        assert type(session.collective).__name__ == "Network" or session.num_workers == 1
        the_job = job("nodules")

        def loss(model: nn.Module, batch: Any) -> Tensor:
            found = the_job.loss(model, batch)
            time.sleep(SLEEP_SECONDS * len(batch))
            return found

        grain = int(request["grain"])
        step = samepath_step(replace(the_job, loss=loss), session.collective, grain=grain)
        seconds = []
        for _ in range(STEPS + 5):
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
        if session.is_first:
            print(json.dumps({"seconds": seconds[5:]}))
        del step


def check(measured: MeasuredStep) -> dict[str, Any]:
    """Modelled beside measured, 1, 2 and 4 workers in namespaces at 1 Gbit/s."""
    rows: dict[str, Any] = {}
    for workers in (1, 2, 4):
        grain = measured.batch_size // workers
        with namespaces.machines(workers, rate="1gbit") as names:
            found = namespaces.run_on(names, Path(__file__), {"grain": grain})
        true = statistics.median(found["seconds"])  # type: ignore[arg-type]
        workload = sleepy(replace(workload_from(measured), grain_size=grain), workers)
        link = flat(PRESETS["1GbE"])
        (point,) = simulate(workload, link, [workers], policy=Buckets())
        rows[str(workers)] = {
            "grain": grain,
            "measured_seconds": true,
            "modelled_seconds": point.step_seconds,
            "error": point.step_seconds / true - 1.0,
        }
    return rows


def show(content: dict[str, Any]) -> None:
    console = Console(width=120)
    table = Table(title="efficiency over 1 Gbit/s, nodules in batches of 32", title_justify="left")
    for column in ("", "step alone", *map(str, WORKERS)):
        table.add_column(column, justify="right" if column else "left")
    paper = [f"{100 * PAPER[n]:.0f}%" for n in WORKERS]
    table.add_row("Cunha et al. 2018, Table I (measured)", "", *paper)
    for name, row in content["modelled"].items():
        for way in ("samepath", "samepath without factors", "DDP"):
            cells = [f"{100 * value:.0f}%" for value in row[way]]
            table.add_row(f"{name}: {way} (modelled)", f"{row['step_seconds']:.3g} s", *cells)
    console.print(table)
    for workers, row in content.get("check", {}).items():
        console.print(
            f"check, workers that sleep, {workers}: "
            f"measured {1e3 * row['measured_seconds']:.1f} ms, "
            f"modelled {1e3 * row['modelled_seconds']:.1f} ms ({row['error']:+.1%})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for measuring a step")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "strong_scaling.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    options = resolve(find_recipe("nodules"))
    measured = measure_step(options, seconds=asked.seconds, tell=print)
    content: dict[str, Any] = {"modelled": modelled(measured), "workers": WORKERS}
    if (problem := namespaces.available()) is None:
        content["check"] = check(measured)
    else:
        print(f"left out: the check ({problem})")
    content["about"] = {
        "commit": commit(),
        "torch": torch.__version__,
        "machine": measured.machine,
        "timing": "one worker's grains and update measured here; efficiencies modelled, against "
        "one worker with the whole batch at once",
        "sleep_seconds": SLEEP_SECONDS,
        "gpu_speed": GPU_SPEED,
    }
    show(content)
    asked.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        on_a_machine(json.loads(sys.argv[1]))
    else:
        main()
