"""What a kill costs, and what it costs to be ready for one.

Recovery: seconds from SIGKILL of one worker to the next completed step, against a bare torchrun
restart: plain DistributedDataParallel that saves a checkpoint after every step and goes on from it.
Same network, data and batch; both runs are under way at once, hardly busy, and suffer in turn.
Keeping: what part of the time of a step of `nodules` goes into keeping it in memory, timed in the
training loop. Prints ratios, writes JSON.

    python benchmarks/recovery.py
    python benchmarks/recovery.py --only keeping
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import faults
from about import commit
from samepath.engine.elastic import step_memory
from samepath.engine.elastic.step_memory import StepMemory
from samepath.engine.launch.launch import launch
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Overrides, resolve
from samepath.engine.run.session import start
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.step import Stepper
from samepath.recipe import find_recipe
from samepath.strategies import Choice

HERE = Path(__file__).parent
KILLS = 5
SLOW_SECONDS = 0.1
"""A step's, so that the run that is not hurt leaves the cores to the one that is."""
NODULES_RUN = "0" * 32
ROUNDS = 5
WARM_UP, STEPS = 40, 240
"""Steps in which memory is touched for the first time, and those that are timed."""
TORCHRUN = (
    "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--max-restarts=1000",
    "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=60",
    "--monitor-interval=0.1",
)  # fmt: skip


# ---- what people have: DDP, a checkpoint a step, and torchrun


def ddp_worker(folder: Path) -> None:
    """One of torchrun's workers."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker, num_workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(faults.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, labels = faults.images(500)
    file, step = folder / "state.pt", 0
    if file.exists():
        state = torch.load(file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while True:
        if worker == 0:
            faults.log_step(str(folder / "steps.txt"), step)
        time.sleep(SLOW_SECONDS)
        rows = torch.randperm(500, generator=torch.Generator().manual_seed(step))[:64]
        mine = rows.tensor_split(num_workers)[worker]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[mine]), labels[mine]).backward()
        optimizer.step()
        step += 1
        if worker == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "aside.pt")
            (folder / "aside.pt").replace(file)


# ---- recovery


@contextmanager
def under_way(command: list[Any], **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run, until the end of the context."""
    run = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield run
    finally:
        workers = faults.workers_of(run.pid) + faults.children(run.pid)
        for process in (run.pid, *workers):
            faults.send(process, signal.SIGKILL)
        run.wait()


def recovery(num_workers: int, num_kills: int, folder: Path) -> dict[str, list[float]]:
    """Seconds from each kill to the next completed step."""
    chance = random.Random(num_workers)
    logs = {"samepath": folder / "ours.txt", "torchrun": folder / "steps.txt"}
    ours = [
        faults.SAMEPATH, "train", HERE / "faults.py", "-n", f"1:{num_workers}",
        "--here", str(num_workers), "--epochs", "5000", "--out", folder / "run",
    ]  # fmt: skip
    grains = -(-8 // num_workers)  # the slowest worker's, of eight
    theirs = [
        Path(sys.executable).with_name("torchrun"), *TORCHRUN, f"--nproc-per-node={num_workers}",
        __file__, "--ddp-worker", folder,
    ]  # fmt: skip
    variables = {"SLOW_SECONDS": str(SLOW_SECONDS / grains), "STEP_LOG": str(logs["samepath"])}
    seconds: dict[str, list[float]] = {name: [] for name in logs}
    with (
        under_way(ours, **variables) as samepath,
        # without it a restart after a kill mostly hangs
        under_way(theirs, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1") as torchrun,
    ):
        runs = {"samepath": samepath, "torchrun": torchrun}
        for name, log in logs.items():
            faults.goes_on_after(log, 0.0, runs[name])
        for number in range(num_kills):
            for name in list(logs)[:: -1 if number % 2 else 1]:
                run = runs[name]
                time.sleep(chance.uniform(0.2, 0.6))
                found = faults.workers_of if name == "samepath" else faults.children
                moment = time.monotonic()
                os.kill(chance.choice(found(run.pid)), signal.SIGKILL)
                again = faults.goes_on_after(logs[name], moment, run)
                seconds[name].append(again - moment)
    return seconds


# ---- keeping


class Timed(StepMemory):
    """Which knows what it costs."""

    seconds = 0.0

    @contextmanager
    def around_update(self, trainer: Stepper, choice: Choice) -> Iterator[None]:
        began = time.perf_counter()
        with super().around_update(trainer, choice):
            self.seconds += time.perf_counter() - began
            yield
            began = time.perf_counter()
        self.seconds += time.perf_counter() - began

    def keep(self, trainer: Stepper, progress: dict[str, Any], *, is_one_update: bool) -> None:
        began = time.perf_counter()
        super().keep(trainer, progress, is_one_update=is_one_update)
        self.seconds += time.perf_counter() - began


def keep_steps(out: str) -> None:
    """In every worker: the loop of a run, which keeps its last step."""
    found = find_recipe("nodules")
    options = resolve(found, Overrides(steps=WARM_UP + STEPS, epochs=1000))
    with start(seed=options.seed, threads=options.threads) as session:
        shares = {"part": session.worker, "parts": session.num_workers}
        kept = Timed(NODULES_RUN, Path(out), print, **shares)
        began = 0.0

        def after_step(trainer: Trainer, _: object) -> None:
            nonlocal began
            if trainer.step_number == WARM_UP:
                began, kept.seconds = time.perf_counter(), 0.0

        recipe = replace(found, valid=None, target=None)
        options = replace(options, target=None)
        Run(recipe, options, session, None, after_step=after_step, memory=kept, elastic=True).go()
        seconds = time.perf_counter() - began
        if session.is_first:
            Path(out).write_text(json.dumps([seconds, kept.seconds]))


def keeping(num_workers: int, folder: Path) -> dict[str, Any]:
    """A part of the time of a run's steps, timed there. (Steps with and without it cannot be
    compared here: they vary by more than that from one second to the next.)"""
    file = folder / f"keeping-{num_workers}.json"
    rounds = []
    for _ in range(ROUNDS):
        try:
            launch(keep_steps, (str(file),), num_workers)
        finally:
            step_memory.forget(NODULES_RUN)
        rounds.append(json.loads(file.read_text()))
    shares = [spent / (seconds - spent) for seconds, spent in rounds]
    seconds, spent = (statistics.median(figures) for figures in zip(*rounds, strict=True))
    return {
        "share of the step time": statistics.median(shares),
        "lowest share": min(shares),
        "highest share": max(shares),
        "milliseconds a step": 1000 * spent / STEPS,
        "milliseconds of the rest of a step": 1000 * (seconds - spent) / STEPS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="recovery,keeping")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4], help="for recovery")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "recovery.json")
    parser.add_argument("--ddp-worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ddp_worker is not None:
        ddp_worker(options.ddp_worker)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # not without the runs
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found["about"] = {
        "commit": commit(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "torchrun": " ".join(TORCHRUN),
    }
    with tempfile.TemporaryDirectory() as name:
        for num_workers in options.workers if "recovery" in options.only else ():
            folder = Path(name, f"recovery-{num_workers}")
            folder.mkdir()
            seconds = recovery(num_workers, options.kills, folder)
            ours, theirs = (statistics.median(seconds[name]) for name in seconds)
            found.setdefault("recovery", {})[str(num_workers)] = {
                "seconds": seconds,
                "samepath against torchrun": ours / theirs,
            }
            print(
                f"{num_workers} workers, {options.kills} times SIGKILL, median seconds to the next "
                f"completed step: samepath {ours:.2f}, torchrun {theirs:.2f}, "
                f"ratio {ours / theirs:.2f}"
            )
        for num_workers in (1, 2) if "keeping" in options.only else ():
            row = keeping(num_workers, Path(name))
            found.setdefault("keeping", {})[str(num_workers)] = row
            figures = ", ".join(f"{what} {figure:.3f}" for what, figure in row.items())
            print(f"nodules, {num_workers} worker(s), keeping the last step: {figures}")
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
