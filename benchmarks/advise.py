"""Advice beside the truth: what `samepath advise` predicts for two workers, and what they take.

For each recipe: the advice; then steps of one and two workers of this machine in turn, and of two
workers in network namespaces joined by 1 Gbit/s. Writes `results/advise.json`, and the advice's
folders (figures, pages) where --folders says.

    python benchmarks/advise.py --folders advice
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import namespaces
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options, resolve
from samepath.engine.run.session import start
from samepath.recipe import find_recipe
from samepath.timing.links import NODE, PRESETS, flat
from samepath.timing.measured import MeasuredStep, read_measured
from samepath.timing.model import Buckets, simulate, workload_from
from samepath.timing.stopwatch import Turn, run_turns

HERE = Path(__file__).parent
ROUNDS = 5
TURN_SECONDS = 3.0
LEAST_STEPS = 3


@dataclass(frozen=True)
class Job:
    """A recipe, and how long its advice may take."""

    recipe: str
    minutes: float = 2.0
    data: str | None = None


CIFAR10 = str(HERE.parents[1] / "shared/data/cifar-10-batches-bin/data_batch_2.bin")
JOBS = {
    "nodules": Job("nodules"),
    "digits": Job("digits"),
    "cifar10": Job("cifar10", 10.0, CIFAR10),  # a step takes seconds
    "cifar10-small": Job("cifar10-small", 2.0, CIFAR10),
}


def advice(job: Job, folder: Path) -> dict[str, Any]:
    """`samepath advise --json`, in a process of its own."""
    command = [
        str(Path(sys.executable).with_name("samepath")), "advise", job.recipe,
        "--minutes", f"{job.minutes:g}", "--out", str(folder), "--json",
        *(["--data", job.data] if job.data else []),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def options_of(job: Job) -> Options:
    return resolve(find_recipe(job.recipe, job.data))


def here(job: Job, rounds: int) -> dict[str, list[float]]:
    """Median steps of one and of two workers, round by round in turn."""
    options = options_of(job)
    turn = Turn("together", options.batch_size, options.grain_size)
    found: dict[str, list[float]] = {"1": [], "2": []}
    for number in range(rounds):
        for workers in (1, 2) if number % 2 else (2, 1):
            taken = run_turns(options, workers, {turn: TURN_SECONDS}, least_steps=LEAST_STEPS)
            steps = taken.steps_of(turn)
            found[str(workers)].append(statistics.median(steps))
    return found


def over_a_link(job: Job, rounds: int) -> list[float]:
    """Median steps of two workers, each in a namespace of its own, round by round."""
    request: dict[str, object] = {"recipe": job.recipe, "data": job.data}
    with namespaces.machines(2, rate="1gbit") as names:
        found = [namespaces.run_on(names, Path(__file__), request) for _ in range(rounds)]
    return [float(each["seconds"]) for each in found]  # type: ignore[arg-type]


def on_a_machine(request: dict[str, Any]) -> None:
    """One of those workers; the first prints the median of its steps."""
    job = Job(request["recipe"], data=request["data"])
    options = options_of(job)
    recipe = find_recipe(job.recipe, job.data)
    with start(threads=options.threads) as session:
        assert type(session.collective).__name__ == "Network"
        trainer = make_trainer(recipe, options, session)
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.0
        seconds: list[float] = []
        for share in trainer.stream(trainer.source(recipe.train), 0, 1 << 40):
            began = time.perf_counter()
            full = len(share.batch.examples) == options.batch_size
            trainer.step(share)
            if full:
                seconds.append(time.perf_counter() - began)
            enough = len(seconds) > LEAST_STEPS + 2 and sum(seconds) > TURN_SECONDS
            if not session.collective.agree(not enough):
                break
        if session.is_first:
            print(json.dumps({"seconds": statistics.median(seconds[2:])}))


def hosts_of_one_computer(measured: MeasuredStep, calibration: float) -> float:
    """The model's step of two hosts that, as namespaces do, share one computer's cores."""
    machine = flat(PRESETS["1GbE"], name=NODE)
    (point,) = simulate(workload_from(measured), machine, [2], policy=Buckets())
    return calibration * point.step_seconds


def compared(found: dict[str, Any], folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """Prediction beside truth, of steps and of speed-ups (truth: within a round)."""
    curves = {curve["network"]: curve for curve in found["curves"]}

    def row(network: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = curves[network]["rows"]
        return next(row for row in rows if row["workers"] == 2)

    alone = curves["here"]["rows"][0]["step_seconds"]
    predicted = {"two workers here": row("here")["modelled_seconds"]}
    measured = {"two workers here": truth["here"]["2"]}
    if "link" in truth:
        seconds = hosts_of_one_computer(read_measured(folder), curves["here"]["calibration"])
        predicted["two hosts, 1 Gbit/s"] = seconds
        measured["two hosts, 1 Gbit/s"] = truth["link"]
        predicted["two hosts, 1 Gbit/s, cores of their own"] = row("1GbE")["step_seconds"]
        measured["two hosts, 1 Gbit/s, cores of their own"] = truth["link"]
    rows = {}
    for name, seconds in predicted.items():
        true = statistics.median(measured[name])
        rows[name] = {
            "predicted_seconds": seconds,
            "true_seconds": true,
            "error": seconds / true - 1.0,
            "predicted_speedup": alone / seconds,
            "true_speedup": statistics.median(truth["here"]["1"]) / true,
            "low_seconds": min(measured[name]),
            "high_seconds": max(measured[name]),
        }
    return rows


def show(title: str, rows: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("", "predicted", "true", "error", "speed-up predicted", "true"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        spread = f" ({1e3 * row['low_seconds']:.1f} to {1e3 * row['high_seconds']:.1f})"
        table.add_row(
            name,
            f"{1e3 * row['predicted_seconds']:.1f} ms",
            f"{1e3 * row['true_seconds']:.1f} ms{spread}",
            f"{row['error']:+.1%}",
            f"{row['predicted_speedup']:.2f}",
            f"{row['true_speedup']:.2f}",
        )
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", default="nodules,digits,cifar10")
    parser.add_argument("--minutes", type=float, help="of each advice, in place of its own")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folders", type=Path, help="where the folders of the advice go")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "advise.json")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    problem = namespaces.available()
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.jobs.split(","):
            job = JOBS[name]
            if options.minutes:
                job = Job(job.recipe, options.minutes, job.data)
            folder = (options.folders or Path(temporary)) / name
            said = advice(job, folder)
            print(f"{name}: {said['verdict']}")
            truth: dict[str, Any] = {"here": here(job, options.rounds)}
            if problem is None:
                truth["link"] = over_a_link(job, options.rounds)
            rows = compared(said, folder, truth)
            show(name, rows)
            found[name] = {
                "verdict": said["verdict"],
                "rounds": options.rounds,
                "took_seconds": said["seconds"],
                "truth_seconds": truth,
                "compared": rows,
            }
    if problem is not None:
        print(f"left out: two hosts ({problem})")
    found["about"] = {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "timing": f"medians of about {TURN_SECONDS:g} s of steps in each round, one "
        "and two workers in turn; predictions were made before, by `samepath advise`",
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        on_a_machine(json.loads(sys.argv[1]))
    else:
        main()
