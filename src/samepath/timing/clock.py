"""How long a step takes at k workers: measured where k real workers fit here, modelled elsewhere.

In: what was measured on this machine (ClockFacts) and a network. Out: seconds per step for any
batch size, number of workers and way of synchronising, and how each is known. Guaranteed: a time is
"measured" only where steps were run with that many real workers here; the model is made from one
worker's steps alone, so that `predictions` can hold it against more.

The model:

    T(k) = serial + grains of the busiest worker x grain time + reduction(k)

Grain times are those of one worker alone: that workers of one machine share its caches and memory
is not in the model, and shows where it is held against two workers here.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.request import available_workers
from samepath.plan import assign
from samepath.study.results import ClockFacts, How, NetworkFacts, Prediction
from samepath.timing.links import measure_network, reduction_seconds, transfer_seconds
from samepath.timing.step_times import TURNS, Kind, fit_steps, time_steps

Mode: TypeAlias = Literal["synchronous", "stale", "asynchronous"]
"""All wait for a step's gradients; gradients are reduced behind the next step; a parameter server
that applies each worker's gradient as it comes."""


def grain_size_at(*, batch_size: int, workers: int, grain_size: int, grain_fixed: bool) -> int:
    """Examples in a grain when so many workers share a batch.

    Finer grains let more workers take part and change the path only by rounding; but where the
    model normalises over a grain they would change what it computes."""
    if grain_fixed:
        return min(grain_size, batch_size)
    return min(grain_size, -(-batch_size // workers))


@dataclass(frozen=True)
class Clock:
    """Seconds per step, from what was measured."""

    facts: ClockFacts

    def step_seconds(
        self, *, batch_size: int, workers: int, mode: Mode = "synchronous"
    ) -> tuple[float, How]:
        """The time of one update, and how it is known.

        `batch_size` is the whole batch of a step; with `asynchronous` it is what each worker
        computes alone for one update."""
        measured = self.facts.measured_step_seconds.get(_key(batch_size, workers))
        if measured is not None and mode == "synchronous":
            return measured, "measured"
        return self.modelled(batch_size=batch_size, workers=workers, mode=mode), "modelled"

    def modelled(self, *, batch_size: int, workers: int, mode: Mode = "synchronous") -> float:
        """The model's time, also where there is a measured one."""
        serial = self.facts.serial_seconds
        if mode == "asynchronous":
            return self._asynchronous(batch_size, workers)
        compute = self.compute_seconds(batch_size=batch_size, workers=workers)
        reduce = self.reduction_seconds(batch_size=batch_size, workers=workers)
        return serial + (max(compute, reduce) if mode == "stale" else compute + reduce)

    def _asynchronous(self, batch_size: int, workers: int) -> float:
        """Seconds per update of a parameter server.

        A worker's cycle is: its batch, the gradient there, the update, the weights back. k workers
        make k updates in one cycle until the server is always busy: it takes one gradient in,
        updates and sends the weights before it turns to the next."""
        one_way = self.facts.network.latency_seconds + transfer_seconds(
            self.facts.network, self.facts.gradient_bytes
        )
        server = one_way + self.facts.serial_seconds + one_way
        cycle = self.compute_seconds(batch_size=batch_size, workers=1) + server
        return max(cycle / workers, server)

    def grain_size(self, *, batch_size: int, workers: int) -> int:
        """Examples in a grain at so many workers."""
        return grain_size_at(
            batch_size=batch_size,
            workers=workers,
            grain_size=self.facts.grain_size,
            grain_fixed=self.facts.grain_fixed,
        )

    def compute_seconds(self, *, batch_size: int, workers: int) -> float:
        """Forward and backward passes of the worker that has most to do."""
        size = self.grain_size(batch_size=batch_size, workers=workers)
        num_grains = -(-batch_size // size)
        whole = self.grain_seconds(size)
        last = self.grain_seconds(batch_size - (num_grains - 1) * size)
        *others, final = assign(num_grains, min(workers, num_grains))
        times = [len(run) * whole for run in others]
        return max(*times, (len(final) - 1) * whole + last, 0.0)

    def grain_seconds(self, size: int) -> float:
        """Of one grain: between two measured sizes on the line through them, and below the
        smallest as long as that one."""
        sizes = sorted(map(int, self.facts.grain_seconds))
        times = [self.facts.grain_seconds[str(s)] for s in sizes]
        return float(np.interp(size, sizes, times))

    def reduction_seconds(self, *, batch_size: int, workers: int) -> float:
        """Of the gradients of a batch, over the clock's network."""
        size = self.grain_size(batch_size=batch_size, workers=workers)
        return reduction_seconds(
            self.facts.network, self.facts.gradient_bytes, workers, -(-batch_size // size)
        )


def predictions(clock: Clock, *, batch_size: int) -> list[Prediction]:
    """The model against the measurement, wherever k > 1 real workers ran here.

    Efficiency is T1 / (k Tk) for the same work. Strong: k workers share the batch of one, so T is a
    step's. Weak: they take k batches a step, so T is an example's, and k Tk / k batches is Tk.
    """
    clock = Clock(replace(clock.facts, network=clock.facts.local))  # what the workers talked over
    measured = clock.facts.measured_step_seconds
    alone = measured.get(_key(batch_size, 1))
    if alone is None:
        return []
    model_alone = clock.modelled(batch_size=batch_size, workers=1)
    found = []
    for strategy in ("strong", "weak"):
        for batch, workers in sorted(map(_unkey, measured), key=lambda step: step[1]):
            per_step = batch_size if strategy == "strong" else batch_size * workers
            if workers == 1 or batch != per_step:
                continue
            work = batch / batch_size / workers  # of one worker's step, in steps of one alone
            modelled = clock.modelled(batch_size=batch, workers=workers)
            found.append(
                Prediction(
                    strategy=strategy,
                    workers=workers,
                    measured_efficiency=work * alone / measured[_key(batch, workers)],
                    modelled_efficiency=work * model_alone / modelled,
                )
            )
    return found


def _key(batch_size: int, workers: int) -> str:
    return f"{batch_size}x{workers}"


def _unkey(key: str) -> tuple[int, int]:
    batch_size, _, workers = key.partition("x")
    return int(batch_size), int(workers)


# ---- measuring

PASSES = 2
"""Each number of workers is started this often, in turn."""
STEP_SECONDS, LEAST_STEPS = 2.0, 8
"""For each step asked for: at least so long, and so many steps."""
GRAIN_SECONDS, MOST_GRAIN_SECONDS = 10.0, 1.0
"""For all sizes and numbers of grains together, and for one of them."""
NOISE_CORES = 0.15
"""What a quiet machine does beside."""
GRAINS, FEW_GRAINS = (1, 2, 4, 8), (1, 4)
"""Numbers of grains that a line is put through: of the recipe's size, and of smaller ones."""


def measure_clock(
    options: Options,
    *,
    steps: Sequence[tuple[int, int]],
    network: NetworkFacts | Literal["here"],
    tell: Callable[[str], None],
) -> ClockFacts:
    """Time grains, updates and the given steps, (batch size, workers), on this machine.

    Steps that do not fit here (more workers than there are cores or GPUs, or grains; a batch larger
    than the data) are left to the model."""
    model = recipe_of(options).recipe.model()
    fixed = normalises_over_grains(model)
    grain, examples = options.grain_size, options.num_examples
    grain_kinds = [
        Kind(number * size, size)
        for size in grain_sizes(grain, fixed=fixed)
        for number in (GRAINS if size == grain else FEW_GRAINS)
        if number * size <= examples
    ]
    each = min(GRAIN_SECONDS / len(grain_kinds), MOST_GRAIN_SECONDS)
    wanted: dict[int, dict[Kind, float]] = {1: dict.fromkeys(grain_kinds, each)}
    fitting: dict[tuple[int, int], Kind] = {}
    for batch, workers in steps:
        size = grain_size_at(batch_size=batch, workers=workers, grain_size=grain, grain_fixed=fixed)
        if workers <= min(available_workers(), -(-batch // size)) and batch <= examples:
            fitting[batch, workers] = Kind(batch, size)
            wanted.setdefault(workers, {})[Kind(batch, size)] = STEP_SECONDS
    turns = PASSES * TURNS
    times: dict[tuple[int, Kind], list[float]] = {}
    busy = 0.0
    for _ in range(PASSES):
        for workers, kinds in sorted(wanted.items()):
            tell(f"timing {options.recipe} on {workers} {'worker' if workers == 1 else 'workers'}")
            taken, others = time_steps(
                options,
                {kind: seconds / turns for kind, seconds in kinds.items()},
                workers,
                least_steps=-(-LEAST_STEPS // turns),
            )
            busy = max(busy, others)
            for kind, seconds in taken.items():
                times.setdefault((workers, kind), []).extend(seconds)
    idle = (os.cpu_count() or 1) - busy
    if idle < max(wanted) * options.threads - NOISE_CORES:
        tell(f"others kept {busy:.1f} cores busy meanwhile: measured times may be too long")
    tell("measuring the link between two workers of this machine")
    local = measure_network()
    medians = {which: statistics.median(seconds) for which, seconds in times.items()}
    serial_seconds, grain_seconds = fit_steps({kind: medians[1, kind] for kind in grain_kinds})
    return ClockFacts(
        network=local if network == "here" else network,
        local=local,
        gradient_bytes=sum(
            p.numel() * p.element_size() for p in model.parameters() if p.requires_grad
        ),
        serial_seconds=serial_seconds,
        grain_seconds={str(size): seconds for size, seconds in grain_seconds.items()},
        measured_step_seconds={
            _key(batch, workers): medians[workers, kind]
            for (batch, workers), kind in fitting.items()
        },
        threads=options.threads,
        machine=machine(),
        grain_size=grain,
        grain_fixed=fixed,
        busy_cores=busy,
    )


def normalises_over_grains(model: nn.Module) -> bool:
    """True for models with batch norm, whose statistics are those of a grain."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def grain_sizes(grain_size: int, *, fixed: bool) -> list[int]:
    """Sizes to time: powers of two below the recipe's, and that one."""
    smaller = [] if fixed else [1 << power for power in range((grain_size - 1).bit_length())]
    return [*smaller, grain_size]


def machine() -> str:
    """The processor and its cores, or the GPUs."""
    if torch.cuda.device_count():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
