"""The stopwatch: how long steps, grains, updates and reductions take on workers of this machine.

In: a recipe's options; how many seconds it may take, or which steps to time. Out: a MeasuredStep
(for advise and simulate) or ClockFacts (for a study). Guaranteed: everything was timed with real
workers (`stopwatch_worker`); what is compared is compared within a round, in which both had their
turn; where little could be timed, or other processes used the cores, that is told.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from samepath.engine.launch.launch import launch
from samepath.engine.run.options import Options, recipe_of, refuse_recipe
from samepath.engine.run.request import available_workers
from samepath.errors import UserError
from samepath.owners import owned_folder
from samepath.timing.links import HERE, NetworkFacts, Sample, link_of
from samepath.timing.measured import ClockFacts, MeasuredStep, step_key
from samepath.timing.model import LEAST_GRAINS, grain_size_at
from samepath.timing.stopwatch_worker import (
    Circumstance,
    Steps,
    StepShape,
    TimingJob,
    Turn,
    time_on_worker,
)

LEAST_SECONDS = 2.0
LEAST_REDUCTIONS, MOST_REDUCTIONS = 5, 15
"""Of each size."""
TRUSTED_SECONDS = 3e-4
"""Shorter grains are mostly what Python does around them."""
GRAINS = 4
"""In a step that is timed for its grains alone."""
MOST_SIDE_BY_SIDE = 16
"""Workers started at once, on machines of many cores."""
NOISE_CORES = 0.15
"""What a quiet machine does beside."""

Tell = Callable[[str], None]


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
        """Times of grains of the first worker alone, by size."""
        found: dict[int, list[float]] = {}
        for turn, workers in self.turns.items():
            if turn.how == "alone":
                times = found.setdefault(turn.shape.grain_size, [])
                times += [time for steps in workers[0] for step in steps.grains for time in step]
        return {str(size): tuple(times) for size, times in sorted(found.items()) if times}

    def update_seconds(self, grain_size: int) -> float:
        """What steps of this grain size took beyond as many grains of the mean length."""
        beyond = [
            step - statistics.fmean(grains) * (len(grains) + 1)
            for turn, workers in self.turns.items()
            if turn.how == "alone" and turn.shape.grain_size == grain_size
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

    def _by_round(self, how: Circumstance, grain_size: int) -> list[float]:
        """Take for each round the median time of a grain, and the mean of that over the workers."""
        found: list[list[float]] = []
        for turn, workers in self.turns.items():
            if turn.how != how or turn.shape.grain_size != grain_size:
                continue
            for rounds in workers:
                grains = [[time for s in steps.grains for time in s] for steps in rounds]
                if all(grains):
                    found.append([statistics.median(times) for times in grains])
        return [statistics.fmean(times) for times in zip(*found, strict=True)]

    def steps_of(self, how: Circumstance, batch_size: int) -> list[float]:
        """Seconds of all steps with this batch, as the first worker timed them."""
        return [
            seconds
            for turn, workers in self.turns.items()
            if turn.how == how and turn.shape.batch_size == batch_size
            for steps in workers[0]
            for seconds in steps.steps
        ]

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


def run_turns(options: Options, workers: int, turns: Mapping[Turn, float], **job: Any) -> Launched:
    """Time turns, each for so many seconds, on workers of this machine; further words are those of
    `TimingJob`."""
    with owned_folder("stopwatch-") as folder:
        told = TimingJob(options=options, turns=dict(turns), folder=Path(folder), **job)
        launch(time_on_worker, (told,), workers)
        return read_turns(Path(folder), turns, workers)


def read_turns(folder: Path, turns: Iterable[Turn], workers: int) -> Launched:
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


# ---- for advise and simulate


def measure_step(options: Options, *, seconds: float = 30.0, tell: Tell) -> MeasuredStep:
    """Take a step of a recipe apart, in about so many seconds."""
    if not seconds >= LEAST_SECONDS:
        raise UserError(f"--seconds {seconds:g}: give at least {LEAST_SECONDS:g}")
    recipe = recipe_of(options)
    refuse_recipe(recipe, options, 1)
    fixed = normalises_over_grains(recipe.model())
    counts = side_by_side_counts(available_workers())
    repeats = min(max(round(seconds / 2.0), LEAST_REDUCTIONS), MOST_REDUCTIONS)
    apart: dict[int, Launched] = {}
    for workers in counts:
        alone = sizes_to_time(options, fixed=fixed) if workers == counts[0] else ()
        turns = turns_for(options, workers, alone, fixed=fixed)
        _tell_workers(tell, options, workers)
        apart[workers] = run_turns(
            options,
            workers,
            shared_seconds(turns, 0.6 * seconds / len(counts), options.grain_size),
            asked_seconds=seconds,
            reductions=repeats if workers == 2 else 0,
        )
    links = apart.get(2) or run_turns(options, 2, {}, reductions=repeats)
    found = assemble(options, apart, links)
    for doubt in doubts(found):
        tell(doubt)
    return found


def assemble(options: Options, apart: Mapping[int, Launched], links: Launched) -> MeasuredStep:
    """A measured step from what each number of workers found; the fewest timed the grains."""
    model = recipe_of(options).model()
    first = apart[min(apart)]
    steps = {1: first.steps_of("alone", options.batch_size)} | {
        workers: launched.steps_of("together", options.batch_size)
        for workers, launched in apart.items()
        if workers > 1
    }
    return MeasuredStep(
        recipe=options.recipe,
        identity=options.identity,
        machine=machine(),
        device=first.device,
        threads=options.threads,
        batch_size=options.batch_size,
        grain_size=options.grain_size,
        grain_fixed=normalises_over_grains(model),
        num_examples=options.num_examples,
        grain_times=first.grain_times(),
        update_seconds=first.update_seconds(options.grain_size),
        **first.tensors(model),
        crowding={
            str(workers): launched.crowding(options.grain_size)
            for workers, launched in apart.items()
            if workers > 1
        },
        local=links.local,
        network=links.network,
        step_seconds={
            str(workers): statistics.median(found) for workers, found in steps.items() if found
        },
        busy_cores=max(launched.busy_cores for launched in apart.values()),
        buffer_bytes=sum(
            b.numel() * b.element_size() for b in model.buffers() if b.is_floating_point()
        ),
    )


def side_by_side_counts(cores: int) -> list[int]:
    """How many workers to start, in turn: 2, 4, 8 to the cores there are (1 on a single one)."""
    most = min(cores, MOST_SIDE_BY_SIDE)
    doubling = [1 << power for power in range(1, most.bit_length()) if 1 << power <= most]
    return sorted({*doubling, most})


def sizes_to_time(options: Options, *, fixed: bool) -> list[int]:
    """Grain sizes: powers of two up to the recipe's, that one, and its doubles up to the batch."""
    sizes = grain_sizes(options.grain_size, fixed=fixed)
    while not fixed and 2 * sizes[-1] <= options.batch_size:
        sizes.append(2 * sizes[-1])
    return sizes


def turns_for(
    options: Options, workers: int, sizes: Iterable[int], *, fixed: bool
) -> tuple[Turn, ...]:
    """What is timed with so many workers; grains of all these sizes with one of them alone."""
    batch, grain, examples = options.batch_size, options.grain_size, options.num_examples

    def some(size: int) -> StepShape:
        return StepShape(min(GRAINS, max(examples // size, 1)) * size, size)

    several = batch >= 2 * grain
    turns = [Turn("alone", StepShape(batch, grain))]
    turns += [Turn("alone", some(size)) for size in sizes if not (size == grain and several)]
    if sizes:
        turns.append(Turn("ready", some(grain)))
    if workers > 1:
        turns.append(Turn("beside", some(grain)))
        size = grain_size_at(batch_size=batch, workers=workers, grain_size=grain, grain_fixed=fixed)
        if workers <= -(-batch // size):
            turns.append(Turn("together", StepShape(batch, size)))
    return tuple(dict.fromkeys(turns))


def shared_seconds(turns: Sequence[Turn], seconds: float, grain_size: int) -> dict[Turn, float]:
    """Seconds for each turn; the recipe's own grain size matters most."""
    parts = [2 if turn.shape.grain_size == grain_size else 1 for turn in turns]
    return {turn: part * seconds / sum(parts) for turn, part in zip(turns, parts, strict=True)}


def doubts(found: MeasuredStep) -> list[str]:
    """Where times are not to be believed to the last digit."""
    told = []
    own = found.grain_times.get(str(found.grain_size), ())
    number = sum(map(len, found.grain_times.values()))
    if own and statistics.median(own) < TRUSTED_SECONDS:
        told.append(
            f"a grain of {found.recipe} takes {1e6 * statistics.median(own):.0f} us, too little to "
            f"be timed well: {number:,} were timed, but what was found is mostly Python's own time"
        )
    if number < LEAST_GRAINS:
        told.append(
            f"only {number} grains were timed, so that slow ones may be missing; more --seconds "
            "would help"
        )
    most = max(map(int, found.crowding), default=1)
    return told + crowded_words(found.busy_cores, most * found.threads)


def crowded_words(busy_cores: float, needed_cores: int) -> list[str]:
    """A warning where other processes used cores that workers needed."""
    if (os.cpu_count() or 1) - busy_cores >= needed_cores - NOISE_CORES:
        return []
    return [
        f"other processes used {busy_cores:.1f} cores meanwhile: measured times may be too long"
    ]


def _tell_workers(tell: Tell, options: Options, workers: int) -> None:
    tell(f"timing {options.recipe} on {workers} {'worker' if workers == 1 else 'workers'}")


# ---- for a study

PASSES = 2
"""Each number of workers is started this often, in turn."""
STEP_SECONDS, LEAST_STEPS = 2.0, 8
"""For each step asked for: at least so long, and so many steps."""
GRAIN_SECONDS, MOST_GRAIN_SECONDS = 10.0, 1.0
"""For all sizes and numbers of grains together, and for one of them."""
MANY_GRAINS, FEW_GRAINS = (1, 2, 4, 8), (1, 4)
"""Numbers of grains that a line is put through: of the recipe's size, and of smaller ones."""


def measure_clock(
    options: Options,
    *,
    steps: Sequence[tuple[int, int]],
    network: NetworkFacts | Literal["here"],
    tell: Tell,
) -> ClockFacts:
    """Time grains, updates and the given steps, (batch size, workers), on this machine.

    Steps that do not fit here (more workers than there are cores or GPUs, or grains; a batch larger
    than the data) are left to the model."""
    model = recipe_of(options).model()
    fixed = normalises_over_grains(model)
    grain, examples = options.grain_size, options.num_examples
    grain_shapes = [
        StepShape(number * size, size)
        for size in grain_sizes(grain, fixed=fixed)
        for number in (MANY_GRAINS if size == grain else FEW_GRAINS)
        if number * size <= examples
    ]
    each = min(GRAIN_SECONDS / len(grain_shapes), MOST_GRAIN_SECONDS)
    wanted: dict[int, dict[StepShape, float]] = {1: dict.fromkeys(grain_shapes, each)}
    fitting: dict[tuple[int, int], StepShape] = {}
    for batch, workers in steps:
        size = grain_size_at(batch_size=batch, workers=workers, grain_size=grain, grain_fixed=fixed)
        if workers <= min(available_workers(), -(-batch // size)) and batch <= examples:
            fitting[batch, workers] = shape = StepShape(batch, size)
            wanted.setdefault(workers, {})[shape] = STEP_SECONDS
    times: dict[tuple[int, StepShape], list[float]] = {}
    busy = 0.0
    for _ in range(PASSES):
        for workers, shapes in sorted(wanted.items()):
            _tell_workers(tell, options, workers)
            found = run_turns(
                options,
                workers,
                {Turn("together", shape): given / PASSES for shape, given in shapes.items()},
                least_steps=-(-LEAST_STEPS // PASSES),
            )
            busy = max(busy, found.busy_cores)
            for turn, (first, *_) in found.turns.items():
                taken = times.setdefault((workers, turn.shape), [])
                taken += [seconds for steps_ in first for seconds in steps_.steps]
    for words in crowded_words(busy, max(wanted) * options.threads):
        tell(words)
    tell("measuring the link between two workers of this machine")
    local = measure_network(options)
    medians = {which: statistics.median(seconds) for which, seconds in times.items()}
    serial_seconds, grain_seconds = fit_steps({shape: medians[1, shape] for shape in grain_shapes})
    return ClockFacts(
        network=local if network == HERE else network,
        local=local,
        gradient_bytes=sum(
            p.numel() * p.element_size() for p in model.parameters() if p.requires_grad
        ),
        serial_seconds=serial_seconds,
        grain_seconds={str(size): seconds for size, seconds in grain_seconds.items()},
        measured_step_seconds={
            step_key(batch, workers): medians[workers, shape]
            for (batch, workers), shape in fitting.items()
        },
        threads=options.threads,
        machine=machine(),
        grain_size=grain,
        grain_fixed=fixed,
        busy_cores=busy,
    )


def measure_network(options: Options) -> NetworkFacts:
    """The link between two workers of this machine, through the engine's network collective (gloo
    over the loopback; NCCL between GPUs)."""
    return replace(run_turns(options, 2, {}, reductions=MOST_REDUCTIONS).network, name=HERE)


def fit_steps(step_seconds: Mapping[StepShape, float]) -> tuple[float, dict[int, float]]:
    """Serial seconds, and grain seconds by grain size, from steps of n whole grains of each size:
    step = serial + n * grain. Neither is ever negative.

    For every size a line through its steps (Theil and Sen: the median of the slopes of all pairs,
    which one bad time cannot move far); the serial part is the median of the lines' intercepts,
    and what it leaves of the steps is the grains'. Where no size has two numbers of grains there is
    no line, and everything counts as grains.
    """
    by_size: dict[int, list[tuple[int, float]]] = {}
    for shape, seconds in step_seconds.items():
        number, rest = divmod(shape.batch_size, shape.grain_size)
        assert rest == 0, "a short grain would count as a whole one"
        by_size.setdefault(shape.grain_size, []).append((number, seconds))
    intercepts = [_intercept(points) for points in by_size.values() if len(points) > 1]
    shortest = min(step_seconds.values())
    serial = min(max(statistics.median(intercepts), 0.0), shortest) if intercepts else 0.0
    return serial, {
        size: statistics.median((seconds - serial) / number for number, seconds in points)
        for size, points in sorted(by_size.items())
    }


def _intercept(points: Sequence[tuple[int, float]]) -> float:
    slope = statistics.median(
        (later - seconds) / (more - number)
        for (number, seconds), (more, later) in itertools.combinations(points, 2)
    )
    return statistics.median(seconds - slope * number for number, seconds in points)


# ---- the recipe and the machine


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
