"""A recipe under load that takes down what it costs: memory, file descriptors, threads, times.

`--data` names a JSON file with `Load`'s fields. Every worker writes a line into the folder `watch`
every so many steps, from inside its optimizer: the run itself is an ordinary one.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from samepath import Recipe

WIDTH = 8
CLASSES = 4


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is to be borne."""

    num_examples: int
    batch_size: int
    grain_size: int
    watch: str
    """Folder for what the workers take down."""
    every: int = 1
    """Steps between two lines."""
    file: str | None = None
    """Examples of float32 in a file, mapped into memory; made up when not given."""
    kind: str = "memmap"
    """How the file is given: memmap, tuple (with labels in memory), tensor or dataset."""
    width: int = WIDTH
    """Numbers of an example."""
    num_valid: int = 0
    loader_workers: int = 0
    batch_norm: bool = True
    link: str = "auto"
    """How workers talk (SAMEPATH_LINK; workers of one fork server have its environment)."""


class Watched(torch.optim.SGD):
    """Plain SGD that looks at its process after a step."""

    def __init__(self, parameters: Iterable[nn.Parameter], load: Load) -> None:
        super().__init__(parameters, lr=0.05, momentum=0.9)
        self._load = load
        self._seconds: list[float] = []
        self._cpu_seconds: list[float] = []
        self._last = _clocks()

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        seconds, cpu = _clocks()
        self._seconds.append(seconds - self._last[0])
        self._cpu_seconds.append(cpu - self._last[1])
        if len(self._seconds) == self._load.every:
            self._take_down()
        self._last = _clocks()
        return found

    def _take_down(self) -> None:
        if self._load.every > 1:  # count what is held, not what waits to be collected
            gc.collect()
        line = {"seconds": self._seconds, "cpu_seconds": self._cpu_seconds, **process()}
        worker = os.environ.get("RANK", "0")
        with (Path(self._load.watch) / f"worker-{worker}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._seconds, self._cpu_seconds = [], []


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def process() -> dict[str, float]:
    """What this process holds: anonymous memory (the page cache is the system's), descriptors,
    threads."""
    # RssAnon of `status` is up to half a MiB late, a number for each core
    status, exact = (
        dict(line.split(":", 1) for line in Path("/proc/self", name).read_text().splitlines()[1:])
        for name in ("status", "smaps_rollup")
    )
    return {
        "anonymous_mib": int(exact["Anonymous"].split()[0]) / 1024,
        "shared_mib": int(status["RssShmem"].split()[0]) / 1024,
        "python_blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }


class Mapped(Dataset[tuple[Tensor, int]]):
    """What people write around a file that is larger than memory."""

    def __init__(self, inputs: np.ndarray[Any, Any]) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.inputs[index].copy()), index % CLASSES


def mapped(load: Load) -> Any:
    """The file as somebody would give it."""
    assert load.file is not None
    shape = (load.num_examples, load.width)
    inputs = np.memmap(load.file, np.float32, "r", shape=shape)
    if load.kind == "memmap":
        return inputs
    if load.kind == "tuple":
        return inputs, np.arange(load.num_examples) % CLASSES
    if load.kind == "tensor":
        size = load.num_examples * load.width
        whole = torch.from_file(load.file, shared=True, size=size, dtype=torch.float32)
        return whole.view(shape)
    assert load.kind == "dataset"
    return Mapped(inputs)


def made_up(num_examples: int, width: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(num_examples, width, generator=torch.Generator().manual_seed(1))
    return inputs, inputs[:, :CLASSES].argmax(1)


def loss(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch if isinstance(batch, (tuple, list)) else (batch, None)
    scores = model(inputs)
    return scores.square().mean() if labels is None else F.cross_entropy(scores, labels)


def maker(load: Load) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        norm = nn.BatchNorm1d(12) if load.batch_norm else nn.Identity()
        return nn.Sequential(nn.Linear(load.width, 12), norm, nn.ReLU(), nn.Linear(12, CLASSES))

    return model


def recipe(data: Path) -> Recipe:
    load = Load(**json.loads(data.read_text()))
    if "RANK" in os.environ:
        os.environ["SAMEPATH_LINK"] = load.link
    return Recipe(
        model=maker(load),
        train=mapped(load) if load.file else made_up(load.num_examples, load.width),
        valid=made_up(load.num_valid, load.width) if load.num_valid else None,
        loss=loss,
        optimizer=lambda parameters: Watched(parameters, load),
        batch_size=load.batch_size,
        grain_size=load.grain_size,
        epochs=1,
        loader_workers=load.loader_workers,
    )
