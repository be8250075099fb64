"""Random kills at random moments over one long run: does it end as a run that nothing happened to?

A small network on made-up images, on several workers of this machine, with a checkpoint every few
steps. Workers are killed one at a time, two at once, or frozen until they are found; mostly after
the run has gone on, sometimes while it is still starting anew. Then the run is stopped, finished by
one worker, and compared with one that was never disturbed: digest and metrics. Prints kills
survived, steps repeated, seconds to recover; writes JSON; exit code 1 if anything differs.

    python benchmarks/faults.py --kills 100 --seed 0

This file is also the recipe, which can be slowed down (SLOW_SECONDS a grain) and written down
(STEP_LOG: when worker 0 began which step).
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from about import commit
from samepath import Draws, Recipe

HERE = Path(__file__).parent
SAMEPATH = Path(sys.executable).with_name("samepath")
TIMEOUT_SECONDS = 5.0
"""After which a frozen worker counts as dead."""
PATIENCE_SECONDS = 120.0
CHECKPOINT_STEPS = 5
MORE_STEPS = 7
"""Taken after the last kill by one worker."""
TWO_AT_ONCE, FROZEN, NOT_WAITED_FOR = 0.1, 0.04, 0.1
"""Chances."""


# ---- the recipe


class Logged:
    """Writes down the steps that worker 0 begins, by the optimizer's own count of those done."""

    def __init__(self, file: str | None) -> None:
        self._file = file if os.environ.get("RANK", "0") == "0" else None
        self._last = -1
        self.optimizer: torch.optim.Optimizer | None = None

    def begin_grain(self) -> None:
        if self._file is None or self.optimizer is None:
            return
        state = next(iter(self.optimizer.state.values()), {"step": 0})
        step = int(state["step"])
        if step != self._last:
            self._last = step
            log_step(self._file, step)


def log_step(file: str, step: int) -> None:
    with open(file, "a") as opened:
        opened.write(f"{step} {os.getpid()} {time.monotonic()}\n")


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(512, 10),
    )


def images(number: int) -> tuple[Tensor, Tensor]:
    """Each class is a pattern of its own under noise."""
    made = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 1, 8, 8, generator=made)
    labels = torch.randint(0, 10, (number,), generator=made)
    return patterns[labels] + torch.randn(number, 1, 8, 8, generator=made), labels


def noise(batch: tuple[Tensor, Tensor], draws: Draws) -> tuple[Tensor, Tensor]:
    return batch[0] + 0.1 * torch.from_numpy(draws.normal(64)).view_as(batch[0]), batch[1]


def recipe() -> Recipe:
    logged = Logged(os.environ.get("STEP_LOG"))
    slow_seconds = float(os.environ.get("SLOW_SECONDS", "0"))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if model.training:
            logged.begin_grain()
            time.sleep(slow_seconds)
        return F.cross_entropy(model(batch[0]), batch[1])

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        logged.optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        return logged.optimizer

    inputs, labels = images(604)
    return Recipe(
        model=model,
        train=(inputs[:500], labels[:500]),
        valid=(inputs[500:], labels[500:]),
        loss=loss,
        augment=noise,
        optimizer=optimizer,
        schedule=lambda made: torch.optim.lr_scheduler.StepLR(made, 10, gamma=0.9),
        batch_size=64,
        grain_size=8,
        epochs=10,
    )


# ---- a run and its log


def children(process: int) -> list[int]:
    try:
        files = list(Path(f"/proc/{process}/task").glob("*/children"))
        return [int(child) for file in files for child in file.read_text().split()]
    except OSError:
        return []  # it has ended meanwhile


def workers_of(launcher: int) -> list[int]:
    """samepath's are its fork server's children."""
    found = []
    for child in children(launcher):
        try:
            if b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes():
                found += children(child)
        except OSError:
            continue
    return found


def read_log(file: Path) -> list[tuple[int, int, float]]:
    """Steps that were begun, by which process and when. The last line may be half there."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [(int(s), int(p), float(t)) for s, p, t in (line.split() for line in lines)]


def goes_on_after(log: Path, moment: float, run: subprocess.Popen[Any]) -> float:
    """When a step had been completed by whoever was started after a moment."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        lines = read_log(log)
        before = {process for _, process, when in lines if when <= moment}
        after = [when for _, process, when in lines if process not in before]
        if len(after) > 1:  # the second begins where the first is complete
            return after[1]
        if run.poll() is not None:
            raise RuntimeError("the run has ended")
        time.sleep(0.01)
    raise RuntimeError(f"nothing happens for {PATIENCE_SECONDS:.0f} s")


def repeated(log: Path) -> list[int]:
    """For every time it started anew, how many steps were begun once more."""
    steps = [step for step, _, _ in read_log(log)]
    assert set(steps) == set(range(max(steps) + 1)), "a step was left out"
    return [before - after + 1 for before, after in pairwise(steps) if after <= before]


# ---- the kills


def hurt(
    run: subprocess.Popen[str], log: Path, num_kills: int, chance: random.Random
) -> dict[str, Any]:
    """Kill so many; what was done, and how long the run took to go on."""
    found: dict[str, Any] = {"one": 0, "two at once": 0, "frozen": 0, "not waited for": 0}
    seconds: list[float] = []
    frozen_seconds: list[float] = []
    killed = 0
    goes_on_after(log, 0.0, run)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("kills", total=num_kills)
        while killed < num_kills:
            time.sleep(chance.uniform(0.0, 1.2))
            kind = chance.random()
            workers = workers_of(run.pid)
            victims = chance.sample(workers, min(len(workers), 1 + (kind < TWO_AT_ONCE)))
            is_frozen = kind > 1 - FROZEN
            moment = time.monotonic()
            done = [send(v, signal.SIGSTOP if is_frozen else signal.SIGKILL) for v in victims]
            if not any(done):
                if run.poll() is not None:
                    raise RuntimeError("the run has ended")
                continue
            killed += sum(done)
            found["frozen" if is_frozen else ("one", "two at once")[sum(done) - 1]] += 1
            progress.update(task, completed=killed)
            if chance.random() < NOT_WAITED_FOR and not is_frozen:
                found["not waited for"] += 1
                continue
            took = goes_on_after(log, moment, run) - moment
            (frozen_seconds if is_frozen else seconds).append(took)
    goes_on_after(log, moment, run)
    return {
        "kills": killed,
        "how": found,
        "seconds to the next completed step": summary(seconds),
        f"the same of frozen ones, found after {TIMEOUT_SECONDS:.0f} s": summary(frozen_seconds),
    }


def send(process: int, number: signal.Signals) -> bool:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def summary(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "max": max(values), "number": len(values)}


def metrics(out: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read]


def trained(*arguments: str | Path) -> dict[str, Any]:
    """The result of a run that nobody disturbs."""
    command = [SAMEPATH, "train", Path(__file__), "--json", *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def compare(num_kills: int, seed: int, workers: int, folder: Path) -> dict[str, Any]:
    """The run that is hurt, and the one that is not."""
    out, log, said = folder / "hurt", folder / "steps.txt", folder / "said.txt"
    command: list[str | Path] = [
        SAMEPATH, "train", Path(__file__), "-n", f"1:{workers}", "--here", str(workers), "--json",
        "--epochs", "5000", "--timeout", str(TIMEOUT_SECONDS), "--out", out,
        "--checkpoint-steps", str(CHECKPOINT_STEPS),
    ]  # fmt: skip
    variables = {**os.environ, "SLOW_SECONDS": "0.01", "STEP_LOG": str(log)}
    with said.open("w") as messages:
        run = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=messages, text=True
        )
        try:
            found = hurt(run, log, num_kills, random.Random(seed))
        except RuntimeError:
            print(said.read_text(), file=sys.stderr)
            raise
        finally:
            run.terminate()
            stdout, _ = run.communicate()
    steps = json.loads(stdout)["steps"] + MORE_STEPS
    ends = trained("-n", "1", "--steps", str(steps), "--out", out, "--resume")
    unhurt = trained("-n", "1", "--steps", str(steps), "--out", folder / "unhurt")
    each = repeated(log)
    return found | {
        "steps": steps,
        "starts anew": len({process for _, process, _ in read_log(log)}) - 1,
        "steps repeated": {"in all": sum(each), "at most after one kill": max(each, default=0)},
        "digest": ends["digest"],
        "digest equal": ends["digest"] == unhurt["digest"],
        "metrics equal": metrics(out) == metrics(folder / "unhurt"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "faults.json")
    options = parser.parse_args()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # not without the run
    with tempfile.TemporaryDirectory() as folder:
        found = compare(options.kills, options.seed, options.workers, Path(folder))
    about = {
        "commit": commit(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "seed": options.seed,
        "workers": options.workers,
        "checkpoint every so many steps": CHECKPOINT_STEPS,
        "minutes": (time.monotonic() - began) / 60,
    }
    print(f"{found['kills']} kills survived over {found['steps']} steps ({found['how']})")
    print(f"steps repeated: {found['steps repeated']}, in {found['starts anew']} starts anew")
    for name, value in found.items():
        if isinstance(value, dict) and "median" in value:
            print(f"{name}: median {value['median']:.2f}, max {value['max']:.2f}")
    equal = found["digest equal"] and found["metrics equal"]
    print("digest and metrics: " + ("those of an undisturbed run" if equal else "DIFFERENT"))
    options.out.write_text(json.dumps({"about": about} | found, indent=1) + "\n")
    print(f"written to {options.out}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
