"""Strong scaling of nodules over Gigabit Ethernet: the paper's Table I beside a model of ours.

Measures a step of nodules on one worker of this machine, models 2 to 32 machines at 1 Gbit/s for
three computers (this CPU, the paper's K80, a modern GPU) with gradient factors and without, and
finds from which ratio of compute to network on eight workers pay. Grains of this CPU take what they
were measured to take, whatever their size. On a GPU a grain takes a part for each example, which is
scaled to the step's time there, and a fixed part, which is not: an operator's start takes the host
as long on a slow GPU as on a fast one. The same holds for the update. Workers there wait for each
other only where they have a grain more.

The model is checked against 2 and 4 real workers in network namespaces at 1 Gbit/s. These share
this machine's cores, so there every example also sleeps: compute that takes no core, as that of a
slower machine. Writes `results/strong_scaling.json`.

    python benchmarks/strong_scaling.py
    python benchmarks/strong_scaling.py --no-check       keeps the check that was recorded
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import namespaces
from about import commit
from contestants import job, samepath_step
from samepath.engine.run.options import resolve
from samepath.engine.run.session import start
from samepath.plan import grain_size_for
from samepath.recipe import find_recipe
from samepath.timing.links import PRESETS, flat
from samepath.timing.measured import MeasuredStep
from samepath.timing.model import (
    DDP,
    TRIALS,
    Buckets,
    Policy,
    Workload,
    step_seconds,
    workload_from,
)
from samepath.timing.stopwatch import measure_step

HERE = Path(__file__).parent
WORKERS = (1, 2, 4, 8, 16, 32)
LINK = flat(PRESETS["1GbE"])
PAPER = {1: 1.0, 2: 1.0517, 4: 0.8681, 8: 0.9009, 16: 0.5808, 32: 0.4625}
"""Cunha et al. 2018, Table I."""
K80_STEP_SECONDS = 7 * 24 * 3600 / (100 * -(-(2100 - 256) // 32))
"""A hundred epochs of 2100 - 256 nodules in batches of 32, a week long (section VI)."""
GPU_SPEED = 20.0
"""Assumed: a modern GPU computes the examples of a whole batch so many times as fast as one core
here."""
START_SECONDS = 10e-6
"""Assumed: what it takes a host to start one operator on a GPU."""
PAYS, PAYING_WORKERS = 0.5, 8
"""Strong scaling is called paying from this efficiency on, with so many workers."""
SLEEP_SECONDS = 4e-3
"""Of an example in the check: three times what it takes one core here."""
STEPS = 40


class Count(TorchDispatchMode):
    """Counts the operators that run, views apart: about one kernel of a GPU each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


def operators() -> tuple[int, int]:
    """Operators of a grain, forward and backward, and of an update."""
    the_job = job("nodules")
    model = the_job.model()
    optimizer = the_job.optimizer(model.parameters())
    for _ in range(2):  # the first update also makes the optimizer's state
        with Count() as grain:
            the_job.loss(model, the_job.data[:4]).backward()
        with Count() as update:
            optimizer.step()
    return grain.number, update.number


def on_a_gpu(workload: Workload, seconds: float, starts: tuple[int, int]) -> Workload:
    """The same step on GPUs, one of which alone takes so long for its examples, apart from what
    starting operators takes."""
    batch = workload.batch_size
    fixed, update = (START_SECONDS * number for number in starts)
    each = seconds / batch
    return replace(
        workload,
        grain_seconds={size: fixed + each * size for size in range(1, batch + 1)},
        serial_seconds=update,
        grain_factors=(),  # how times spread here says nothing of a GPU
        crowding={},
    )


def efficiencies(
    workload: Workload, policy: Policy, counts: Sequence[int] = WORKERS, trials: int = TRIALS
) -> list[float]:
    """Modelled, each worker a machine of its own. The largest grain that lets so many take part."""

    def seconds(workers: int) -> float:
        grain = grain_size_for(workload.batch_size, workers)
        own = replace(workload, grain_size=grain)
        return step_seconds(own, LINK, workers, policy=policy, trials=trials)

    alone = seconds(1)
    return [alone / seconds(workers) / workers for workers in counts]


def ways(workload: Workload) -> dict[str, tuple[Workload, Policy]]:
    """What is compared."""
    return {
        "samepath": (workload, Buckets()),
        "samepath without factors": (replace(workload, row_bytes=()), Buckets()),
        "DDP": (workload, DDP),
    }


def paying(workload: Workload, policy: Policy, starts: tuple[int, int]) -> float:
    """Seconds that a step must take one worker alone, for strong scaling to pay."""
    low, high = 1e-4, 1e3
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        own = on_a_gpu(workload, middle, starts)
        (found,) = efficiencies(own, policy, [PAYING_WORKERS], trials=20)
        low, high = (low, middle) if found >= PAYS else (middle, high)
    return high + START_SECONDS * sum(starts)


def modelled(measured: MeasuredStep) -> dict[str, Any]:
    """Efficiencies by computer, and from which step on it pays."""
    workload = replace(workload_from(measured), crowding={})
    starts = operators()
    here = workload.grain_seconds[workload.batch_size] + workload.serial_seconds
    computers = {
        "this CPU, one core": workload,
        "the paper's K80": on_a_gpu(workload, K80_STEP_SECONDS, starts),
        f"a GPU {GPU_SPEED:g} times this core (assumed)": on_a_gpu(
            workload, here / GPU_SPEED, starts
        ),
    }
    rows: dict[str, Any] = {}
    for name, own in computers.items():
        rows[name] = {
            "step_seconds": own.grain_seconds[own.batch_size] + own.serial_seconds,
            **{way: efficiencies(*of_way) for way, of_way in ways(own).items()},
        }
    sent = sum(workload.tensor_bytes) / PRESETS["1GbE"].bytes_per_second
    pays = {}
    for way, of_way in ways(workload).items():
        seconds = paying(*of_way, starts)
        pays[way] = {"step_seconds": seconds, "ratio": seconds / sent}
    return {
        "workers": WORKERS,
        "modelled": rows,
        "pays": {
            "efficiency": PAYS,
            "workers": PAYING_WORKERS,
            "gradient_seconds": sent,
            "ways": pays,
        },
        "operators": {"grain": starts[0], "update": starts[1]},
        "grain_seconds": workload.grain_seconds,
        "update_seconds": workload.serial_seconds,
    }


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
        seconds = step_seconds(workload, LINK, workers)
        rows[str(workers)] = {
            "grain": grain,
            "measured_seconds": true,
            "modelled_seconds": seconds,
            "error": seconds / true - 1.0,
        }
    return rows


def duration(seconds: float) -> str:
    """'104 s', '52 ms', '2.6 ms'."""
    number, unit = (seconds, "s") if seconds >= 1.0 else (1e3 * seconds, "ms")
    return f"{number:.0f} {unit}" if number >= 10.0 else f"{number:.1f} {unit}"


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
            table.add_row(f"{name}: {way} (modelled)", duration(row["step_seconds"]), *cells)
    console.print(table)
    pays = content["pays"]
    for way, row in pays["ways"].items():
        console.print(
            f"{pays['efficiency']:.0%} with {pays['workers']} workers, {way}: from "
            f"{duration(row['step_seconds'])} a step alone on, {row['ratio']:.1f} times what the "
            f"gradient takes over the link ({duration(pays['gradient_seconds'])})"
        )
    for workers, row in content.get("check", {}).items():
        console.print(
            f"check, workers that sleep, {workers}: "
            f"measured {1e3 * row['measured_seconds']:.1f} ms, "
            f"modelled {1e3 * row['modelled_seconds']:.1f} ms ({row['error']:+.1%})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for measuring a step")
    parser.add_argument("--no-check", action="store_true", help="keep the check on record")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "strong_scaling.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    options = resolve(find_recipe("nodules"))
    measured = measure_step(options, seconds=asked.seconds, tell=print)
    content = modelled(measured)
    before = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    checked_at = commit()
    if asked.no_check or (problem := namespaces.available()) is not None:
        print("kept: the check on record" if asked.no_check else f"left out: the check ({problem})")
        content |= {"check": before["check"]} if "check" in before else {}
        about = before.get("about", {})
        checked_at = about.get("check commit", about.get("commit"))
    else:
        content["check"] = check(measured)
    content["about"] = {
        "commit": commit(),
        "check commit": checked_at,
        "torch": torch.__version__,
        "machine": measured.machine,
        "timing": "one worker's grains and update measured here; efficiencies modelled, against "
        "one worker with the whole batch at once; on GPUs a grain and an update take "
        "start_seconds for each operator, and each example its part of the step",
        "start_seconds": START_SECONDS,
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
