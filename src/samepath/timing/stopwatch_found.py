"""What workers found when they took steps apart: medians of grains, steps, neighbours, links.

In: the files that workers left (`stopwatch_worker`). Out: Launched, which answers what was asked.
Guaranteed: what is compared is compared within a round, in which both had their turn.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from samepath.engine.launch.launch import launch
from samepath.engine.run.options import Options
from samepath.owners import owned_folder
from samepath.study.results import NetworkFacts
from samepath.timing.links import HERE, Sample, link_of
from samepath.timing.stopwatch_worker import Job, Steps, Turn, work


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What so many workers found."""

    turns: dict[Turn, list[list[Steps]]]
    """Of each turn: for every worker, what each round found."""
    ready: dict[str, list[float]]
    busy_cores: float
    device: str
    links: dict[str, Any]
    """Reductions of two workers, through what they use here and through the network."""

    @property
    def local(self) -> NetworkFacts:
        link = link_of([Sample(*sample) for sample in self.links["local"]], HERE)
        # In shared memory workers add by themselves, in the thread that computes.
        return replace(link, cores_taken=1.0) if self.links["shared"] else link

    @property
    def network(self) -> NetworkFacts:
        return link_of([Sample(*sample) for sample in self.links["network"]], "loopback")

    def grain_times(self) -> dict[str, tuple[float, ...]]:
        """Of the first worker alone, by size."""
        found: dict[int, list[float]] = {}
        for turn, workers in self.turns.items():
            if turn.how == "alone":
                times = found.setdefault(turn.kind.grain_size, [])
                times += [time for steps in workers[0] for step in steps.grains for time in step]
        return {str(size): tuple(times) for size, times in sorted(found.items()) if times}

    def update_seconds(self, grain_size: int) -> float:
        """What steps of this grain size took beyond as many grains of the mean length."""
        beyond = [
            step - statistics.fmean(grains) * (len(grains) + 1)
            for turn, workers in self.turns.items()
            if turn.how == "alone" and turn.kind.grain_size == grain_size
            for steps in workers[0]
            for step, grains in zip(*steps, strict=True)
            if grains
        ]
        return max(statistics.median(beyond), 0.0) if beyond else 0.0

    def crowding(self, grain_size: int) -> float:
        """A grain's time with all workers side by side / alone: the median over rounds."""
        alone = self._by_round("alone", grain_size)
        beside = self._by_round("beside", grain_size)
        return statistics.median(b / a for a, b in zip(alone, beside, strict=True))

    def _by_round(self, how: str, grain_size: int) -> list[float]:
        """For each round the median time of a grain; the mean of that over the workers."""
        found: list[list[float]] = []
        for turn, workers in self.turns.items():
            if turn.how != how or turn.kind.grain_size != grain_size:
                continue
            for rounds in workers:
                medians = [_median(time for s in steps.grains for time in s) for steps in rounds]
                if None not in medians:
                    found.append([median for median in medians if median is not None])
        return [statistics.fmean(times) for times in zip(*found, strict=True)]

    def step_seconds(self, batch_size: int, workers: int) -> float | None:
        """The median step of so many workers that share batches; None where there were none."""
        how = "alone" if workers == 1 else "together"
        return _median(
            seconds
            for turn, found in self.turns.items()
            if turn.how == how and turn.kind.batch_size == batch_size
            for steps in found[0]
            for seconds in steps.steps
        )

    def tensors(self, model: nn.Module) -> dict[str, Any]:
        """Names, bytes and ready times of the gradients, in the order in which they come. One that
        no grain used counts as there at the end, as the engine has it."""
        sizes = {
            name: p.numel() * p.element_size()
            for name, p in reversed(list(model.named_parameters()))
            if p.requires_grad
        }
        part = {name: min(float(np.median(self.ready.get(name, [1.0]))), 1.0) for name in sizes}
        names = sorted(sizes, key=part.__getitem__)
        return {
            "tensor_names": tuple(names),
            "tensor_bytes": tuple(sizes[name] for name in names),
            "tensor_ready": tuple(part[name] for name in names),
        }


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def run_turns(options: Options, workers: int, turns: tuple[Turn, ...], **job: Any) -> Launched:
    """On workers of this machine; further words are those of `Job`."""
    with owned_folder("stopwatch-") as folder:
        launch(work, (Job(options=options, turns=turns, folder=Path(folder), **job),), workers)
        return read_turns(Path(folder), turns, workers)


def read_turns(folder: Path, turns: Sequence[Turn], workers: int) -> Launched:
    """What so many workers left in a folder."""
    found = [
        json.loads((folder / f"worker-{worker}.json").read_text()) for worker in range(workers)
    ]
    first = found[0]
    return Launched(
        turns={
            turn: [[Steps(*steps) for steps in each["turns"][place]] for each in found]
            for place, turn in enumerate(turns)
        },
        ready=first["ready"],
        busy_cores=first["others"],
        device=first["device"],
        links=first.get("links", {}),
    )
