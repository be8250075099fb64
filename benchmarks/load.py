"""What samepath bears: large data, many examples, many grains, many workers, many steps.

Ordinary runs of `load_recipe.py`, whose optimizer takes down what its process holds after each
step. Prints a table and writes it as JSON: step times (the second tenth of the steps against the
last), anonymous memory of the largest worker, its growth over 10,000 steps (least squares over the
second half), file descriptors and threads at both ends, and whether every worker count ends with
the digest of one worker.

    python benchmarks/load.py                  everything, about five minutes on two cores
    python benchmarks/load.py --only steps     one of: mapped, million, grains, workers, steps
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from about import commit
from load_recipe import Load, loss, made_up, maker
from samepath.engine.train import Request, train
from samepath.timing.stopwatch import machine

HERE = Path(__file__).parent
GIB = 1 << 30
Row = dict[str, Any]


def run(
    name: str, num_workers: int, steps: int, *, checkpoint_steps: int | None = None, **load: Any
) -> Row:
    """One run, and what its workers took down."""
    with tempfile.TemporaryDirectory(prefix="load-") as made:
        folder = Path(made)
        settings = folder / "load.json"
        settings.write_text(json.dumps({"watch": made, **load}))
        before = set(os.listdir("/dev/shm"))
        began = time.perf_counter()
        result, _ = train(
            Request(
                recipe=str(HERE / "load_recipe.py"),
                data=str(settings),
                num_workers=num_workers,
                steps=steps,
                out=folder / "run",
                checkpoint_steps=checkpoint_steps,
            )
        )
        seconds = time.perf_counter() - began
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        logged = [json.loads(line) for line in lines]
        left = set(os.listdir("/dev/shm")) - before
        workers = [
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in sorted(folder.glob("worker-*.jsonl"))
        ]
    assert result.steps == steps, result
    assert len(workers) == num_workers
    assert [line["step"] for line in logged if "train_loss" in line] == [*range(1, steps + 1)]
    return {
        "load": name,
        "workers": num_workers,
        "steps": steps,
        "num_examples": load["num_examples"],
        "digest": result.digest,
        "seconds": seconds,
        "left_in_dev_shm": len(left),
        **_found(workers, load.get("every", 1)),
    }


def _found(workers: list[list[Row]], every: int) -> Row:
    times = [seconds for line in workers[0] for seconds in line["seconds"]]
    early, late = _tenths(times)
    cpu_early, cpu_late = _tenths([cpu for line in workers[0] for cpu in line["cpu_seconds"]])
    ends = [(lines[1], lines[-2]) for lines in workers]  # at the last step some have left already
    return {
        "step_ms": 1e3 * statistics.median(times[1:]),
        "step_ms_early": 1e3 * early,
        "step_ms_late": 1e3 * late,
        "growth_of_step": late / early,
        "growth_of_cpu": cpu_late / cpu_early,
        "anonymous_mib": max(last["anonymous_mib"] for _, last in ends),
        "mib_per_10000_steps": max(_slope(lines, every) for lines in workers),
        "descriptors": [max(end[i]["descriptors"] for end in ends) for i in (0, 1)],
        "threads": [max(end[i]["threads"] for end in ends) for i in (0, 1)],
        "cpu_ms_per_step": sum(
            1e3 * statistics.median(cpu for line in lines for cpu in line["cpu_seconds"])
            for lines in workers
        ),
    }


def _tenths(times: list[float]) -> tuple[float, float]:
    """The median of the second tenth, and of the last."""
    tenth = max(1, len(times) // 10)
    return statistics.median(times[tenth : 2 * tenth]), statistics.median(times[-tenth:])


def _slope(lines: list[Row], every: int) -> float:
    """Of anonymous memory, over the second half."""
    half = [line["anonymous_mib"] for line in lines[len(lines) // 2 :]]
    if len(half) < 2:
        return 0.0
    return float(np.polyfit(np.arange(len(half)) * every, half, 1)[0] * 10_000)


@contextmanager
def sparse(num_bytes: int) -> Iterator[str]:
    """A file of that size without a block on disk, none of it in memory."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        file = Path(folder) / "data.bin"
        file.touch()
        os.truncate(file, num_bytes)
        yield str(file)
        assert file.stat().st_blocks == 0


def mapped() -> list[Row]:
    """20 GiB in rows of 16 KiB, taken in random order; cold every time."""
    load: Row = {
        "num_examples": 20 * GIB // 16384,
        "width": 4096,
        "batch_size": 256,
        "grain_size": 32,
    }
    rows = []
    for kind, num_workers, loader_workers in (
        ("tuple", 1, 0),
        ("tuple", 2, 0),
        ("tuple", 2, 1),
        ("dataset", 1, 0),
    ):
        with sparse(20 * GIB) as file:
            name = f"20 GiB mapped, as {'arrays' if kind == 'tuple' else 'a Dataset'}"
            name += f", {loader_workers} loader each" if loader_workers else ""
            more: Row = {"file": file, "kind": kind, "loader_workers": loader_workers}
            rows.append(run(name, num_workers, 10, **load, **more))
    return rows


def million() -> list[Row]:
    """A million examples, beside few, and beside a bare loop over them."""
    load: Row = {"batch_size": 256, "grain_size": 32}
    rows = [
        run("10,000 tiny examples", 1, 200, num_examples=10_000, **load),
        run("a million tiny examples", 1, 200, num_examples=1_000_000, **load),
        run("a million tiny examples", 2, 200, num_examples=1_000_000, **load),
    ]
    rows.append(_bare(Load(num_examples=1_000_000, watch="", **load), 200))
    return rows


def grains() -> list[Row]:
    """65,536 examples a step in 2,048 grains."""
    load: Row = {"num_examples": 1 << 18, "batch_size": 1 << 16, "grain_size": 32}
    rows = [run("batch of 65,536, grains of 32", n, 8, **load) for n in (1, 2)]
    rows.append(_bare(Load(watch="", **load), 8))
    return rows


def workers() -> list[Row]:
    """32 workers on however many cores there are."""
    load: Row = {"num_examples": 4096, "batch_size": 256, "grain_size": 4}
    return [run("100 steps", n, 100, **load) for n in (1, 2, 32)]


def steps() -> list[Row]:
    """10,000 steps with 322 evaluations and 10 checkpoints; and with none before a minute is over,
    as a quick run has it: megabytes of metrics that nobody has asked to be on disk."""
    load: Row = {
        "num_examples": 1000,
        "batch_size": 32,
        "grain_size": 8,
        "num_valid": 64,
        "every": 100,
    }
    saved = load | {"checkpoint_steps": 1000}
    return [
        run("10,000 steps", 1, 10_000, **saved),
        run("10,000 steps", 2, 10_000, **saved),
        run("10,000 steps, sockets", 2, 10_000, **saved, link="network"),
        run("10,000 steps, no checkpoints", 1, 10_000, **load),
    ]


def _bare(load: Load, num_steps: int) -> Row:
    """The same grains without samepath: forward and backward one after another, and an update."""
    torch.set_num_threads(1)
    inputs, labels = made_up(load.num_examples, load.width)
    model = maker(load)()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.randperm(load.num_examples)
    times = []
    cpu = time.process_time()
    for step in range(num_steps):
        began = time.perf_counter()
        batch = order.roll(-step * load.batch_size)[: load.batch_size]
        optimizer.zero_grad()
        for rows in batch.split(load.grain_size):
            share = loss(model, (inputs[rows], labels[rows])) * (len(rows) / len(batch))
            share.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    early, late = _tenths(times)
    return {
        "load": "the same, a bare loop",
        "workers": 1,
        "steps": num_steps,
        "step_ms": 1e3 * statistics.median(times[1:]),
        "step_ms_early": 1e3 * early,
        "step_ms_late": 1e3 * late,
        "cpu_ms_per_step": 1e3 * (time.process_time() - cpu) / num_steps,
    }


PARTS = {
    "mapped": mapped,
    "million": million,
    "grains": grains,
    "workers": workers,
    "steps": steps,
}


def judge(rows: list[Row]) -> None:
    """Whether runs over the same data end alike, whatever their workers, links and loaders."""
    first: dict[tuple[int, int], str] = {}
    for row in rows:
        if "digest" in row:
            same = first.setdefault((row["num_examples"], row["steps"]), row["digest"])
            row["same_digest"] = same == row["digest"]


def show(report: dict[str, list[Row]]) -> None:
    table = Table(title="samepath under load")
    table.add_column("load")
    for heading in (
        "workers",
        "same bits",
        "step early, late",
        "CPU a step",
        "late / early",
        "memory",
        "MiB / 10,000 steps",
        "descriptors",
        "threads",
    ):
        table.add_column(heading, justify="right")
    for rows in report.values():
        for row in rows:
            times = f"{row['step_ms_early']:.1f}, {row['step_ms_late']:.1f} ms"
            cpu = f"{row['cpu_ms_per_step']:.1f} ms"
            if "digest" not in row:
                table.add_row(row["load"], str(row["workers"]), "", times, cpu)
                continue
            long = row["steps"] >= 1000
            table.add_row(
                row["load"],
                str(row["workers"]),
                "yes" if row["same_digest"] else "NO",
                times,
                cpu,
                f"{row['growth_of_cpu']:.2f}",
                f"{row['anonymous_mib']:.0f} MiB",
                f"{row['mib_per_10000_steps']:.2f}" if long else "",
                "{} to {}".format(*row["descriptors"]),
                "{} to {}".format(*row["threads"]),
            )
        table.add_section()
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, help="one part; the others stay as found")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "load.json")
    given = parser.parse_args()
    report: Row = json.loads(given.out.read_text()) if given.out.exists() else {}
    found: dict[str, list[Row]] = report.get("parts", {})
    for name, part in PARTS.items():
        if given.only in (None, name):
            found[name] = part()
            judge(found[name])
    show(found)
    report = {"machine": machine(), "commit": commit(), "parts": found}
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
