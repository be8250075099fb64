"""What one step of a recipe is made of, measured on this machine.

In: a recipe's options and about how many seconds it may take. Out: a MeasuredStep; and, from one,
the Workload that is simulated. Guaranteed: everything was timed with real workers of this machine
(`stopwatch_worker`); where little could be timed, or others kept the cores busy, that is told.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping

from samepath.engine.run.options import Options, recipe_of, refuse_recipe
from samepath.engine.run.request import available_workers
from samepath.errors import UserError
from samepath.timing.clock import (
    NOISE_CORES,
    grain_size_at,
    grain_sizes,
    machine,
    normalises_over_grains,
)
from samepath.timing.measured import MeasuredStep
from samepath.timing.step_times import Kind
from samepath.timing.stopwatch_found import Launched, run_turns
from samepath.timing.stopwatch_worker import Turn
from samepath.timing.workload import Workload, measured_spread

LEAST_SECONDS = 2.0
LEAST_GRAINS = 50
"""With fewer the slow tail of their spread is not seen."""
LEAST_REDUCTIONS, MOST_REDUCTIONS = 5, 15
"""Of each size."""
TRUSTED_SECONDS = 3e-4
"""Shorter grains are mostly what Python does around them."""
GRAINS = 4
"""In a step that is timed for its grains alone."""
MOST_SIDE_BY_SIDE = 16
"""Workers started at once, on machines of many cores."""


def measure_step(
    options: Options, *, seconds: float = 30.0, tell: Callable[[str], None]
) -> MeasuredStep:
    """Take a step of a recipe apart, in about so many seconds."""
    if not seconds >= LEAST_SECONDS:
        raise UserError(f"--seconds {seconds:g}: give at least {LEAST_SECONDS:g}")
    recipe = recipe_of(options).recipe
    refuse_recipe(recipe, options, 1)
    fixed = normalises_over_grains(recipe.model())
    counts = side_by_side_counts(available_workers())
    repeats = min(max(round(seconds / 2.0), LEAST_REDUCTIONS), MOST_REDUCTIONS)
    apart: dict[int, Launched] = {}
    for workers in counts:
        alone = sizes_to_time(options, fixed=fixed) if workers == counts[0] else ()
        tell(f"timing {options.recipe} on {workers} {'worker' if workers == 1 else 'workers'}")
        apart[workers] = run_turns(
            options,
            workers,
            turns_for(options, workers, alone, fixed=fixed),
            seconds=0.6 * seconds / len(counts),
            asked_seconds=seconds,
            reductions=repeats if workers == 2 else 0,
        )
    links = apart.get(2) or run_turns(
        options, 2, (), seconds=1.0, asked_seconds=seconds, reductions=repeats
    )
    found = assemble(options, apart, links)
    for doubt in doubts(found):
        tell(doubt)
    return found


def assemble(options: Options, apart: Mapping[int, Launched], links: Launched) -> MeasuredStep:
    """From what was found with each number of workers; grains were timed with the fewest."""
    model = recipe_of(options).recipe.model()
    first = apart[min(apart)]
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
            str(workers): step
            for workers, launched in ((1, first), *apart.items())
            if (step := launched.step_seconds(options.batch_size, workers)) is not None
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

    def some(size: int) -> Kind:
        return Kind(min(GRAINS, max(examples // size, 1)) * size, size)

    several = batch >= 2 * grain
    main = Kind(batch, grain)
    turns = [Turn("alone", main)]
    turns += [Turn("alone", some(size)) for size in sizes if not (size == grain and several)]
    if sizes:
        turns.append(Turn("ready", some(grain)))
    if workers > 1:
        turns.append(Turn("beside", some(grain)))
        size = grain_size_at(batch_size=batch, workers=workers, grain_size=grain, grain_fixed=fixed)
        if workers <= -(-batch // size):
            turns.append(Turn("together", Kind(batch, size)))
    return tuple(dict.fromkeys(turns))


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
    idle = (os.cpu_count() or 1) - found.busy_cores
    most = max(map(int, found.crowding), default=1)
    if idle < most * found.threads - NOISE_CORES:
        told.append(
            f"others kept {found.busy_cores:.1f} cores busy meanwhile: measured times may be too "
            "long"
        )
    return told


def _alike(measured: MeasuredStep, grain_size: int) -> dict[int, tuple[float, ...]]:
    """Times whose spread is that of grains of this size: its own, where there are enough."""
    by_size = {int(size): times for size, times in measured.grain_times.items()}
    own = by_size.get(grain_size, ())
    return {grain_size: own} if len(own) >= LEAST_GRAINS else by_size


def workload_from(
    measured: MeasuredStep, *, batch_size: int | None = None, grain_size: int | None = None
) -> Workload:
    """What is simulated, with another batch or grain if wanted."""
    if grain_size is not None and measured.grain_fixed and grain_size != measured.grain_size:
        raise UserError(
            f"grains of {grain_size}: {measured.recipe} normalises over a grain and was measured "
            f"with {measured.grain_size}; measure it again with --grain {grain_size}"
        )
    batch = measured.batch_size if batch_size is None else batch_size
    if batch < 1 or (grain_size is not None and grain_size < 1):
        raise UserError(f"a batch of {batch} in grains of {grain_size}: both are at least 1")
    return Workload(
        name=measured.recipe,
        batch_size=batch,
        grain_size=min(grain_size or measured.grain_size, batch),
        grain_fixed=measured.grain_fixed,
        grain_seconds={
            int(size): statistics.median(times) for size, times in measured.grain_times.items()
        },
        serial_seconds=measured.update_seconds,
        tensor_bytes=measured.tensor_bytes,
        tensor_ready=measured.tensor_ready,
        buffer_bytes=measured.buffer_bytes,
        spread=measured_spread(_alike(measured, grain_size or measured.grain_size)),
        crowding={int(workers): factor for workers, factor in measured.crowding.items()},
    )
