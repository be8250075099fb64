"""The stopwatch: how long steps, grains, updates and reductions take on workers of this machine.

In: a recipe's options; how many seconds it may take, or which steps to time. Out: a MeasuredStep
(for advise and simulate) or ClockFacts (for a study). Guaranteed: times are of the engine's own
trainer, data and all, on real workers in fresh processes; what is compared (one worker alone, all
side by side, all together) takes turns, because noise comes and goes; the first steps of everything
are dropped; nothing diverges (the learning rate is 0); where little could be timed, or other
processes used the cores, that is told.

A grain's time runs from the end of the grain before it to its own end: loading, augmentation,
forward, backward, adding up. What a step takes beyond its grains is the update.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from samepath.console import count
from samepath.engine.checks.refuse import OwnHook
from samepath.engine.comm.collective import Alone, Bucket, Collective
from samepath.engine.comm.environment import read_place
from samepath.engine.comm.shared_memory import SharedMemory
from samepath.engine.launch.launch import call_workers
from samepath.engine.run.fewer_workers import normalises_over_grains
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options, recipe_of, refuse_recipe
from samepath.engine.run.request import available_workers
from samepath.engine.run.session import Link, Session, connect, start
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.settings import WorkerBatch
from samepath.errors import UserError
from samepath.plan import Reduction, bucket_bytes, grain_size_for, reduction
from samepath.recipe import Recipe
from samepath.timing.links import HERE, NetworkFacts, Sample, link_of, traffic
from samepath.timing.measured import ClockFacts, MeasuredStep, TimingFacts, step_key
from samepath.timing.model import LEAST_GRAINS, grain_size_at

WARM_UP = 2
"""Steps dropped at the start of everything: memory, kernels and optimizer state are set up."""
LEAST_ROUNDS, MOST_ROUNDS = 2, 8
"""Everything has so many turns."""
MOST_STEPS = 1000
"""The most steps in one turn."""
PATIENCE = 3.0
"""What cannot be timed in so many times the seconds asked for is refused."""

Circumstance: TypeAlias = Literal["alone", "ready", "beside", "together"]
"""The first worker computes and the others wait; the same, and it looks when each gradient is
there; each computes by itself; all share each batch."""


class Turn(NamedTuple):
    """A kind of step, timed in one go."""

    how: Circumstance
    batch_size: int
    grain_size: int


@dataclass(frozen=True, kw_only=True)
class TimingJob:
    """What workers are told to time."""

    options: Options
    turns: Mapping[Turn, float]
    """Each with the seconds to spend on it."""
    least_steps: int = 1
    """The fewest steps of each turn, however long they take."""
    asked_seconds: float | None = None
    """The time for everything that a person asked for: what is far too slow for them is refused.
    None: it is timed, however long it takes."""
    reductions: int = 0
    """The number of reductions to time of each size, over both links (two workers only)."""
    link: Link | None = None
    """The link of workers that share batches; None: what they would use."""


class Steps(NamedTuple):
    """Some steps of one kind."""

    steps: list[float]
    """Seconds of each."""
    grains: list[list[float]]
    """Seconds, for each step, of its grains, without the first (it begins with the step) and a
    short last one."""


# ---- what one worker times


def time_on_worker(job: TimingJob) -> dict[str, Any]:
    """Run one worker from start to end; what it found."""
    options = job.options
    # two processes cannot share one GPU in NCCL
    device = "cpu" if not job.turns and torch.cuda.device_count() < 2 else None
    with start(seed=options.seed, threads=options.threads, link=job.link, device=device) as session:
        busy = BusyCores()
        network = connect(read_place(os.environ), session.device, link="network")
        bench = Bench(job, session, network)
        found: dict[str, Any] = {"turns": bench.go(), "ready": bench.ready, "rows": bench.row_bytes}
        found["others"] = busy.others(session.collective)
        found["device"] = session.device.type
        if job.reductions:
            found["links"] = {
                "shared": isinstance(session.collective, SharedMemory),
                "local": time_reductions(session.collective, job.reductions),
                "network": time_reductions(network, job.reductions),
            }
        return found


class Bench:
    """One worker's trainers, and their turns."""

    def __init__(self, job: TimingJob, session: Session, network: Collective) -> None:
        self._job = job
        self._session = session
        self._network = network
        """A worker that waits here sleeps; in shared memory it would look again and again."""
        self._alone = Session(Alone(session.device), seed=job.options.seed)
        self._trainers: dict[Turn, Trainer] = {}
        self._shares: dict[Turn, Iterator[WorkerBatch]] = {}
        recipe = recipe_of(job.options) if job.turns else None
        for turn in job.turns:
            assert recipe is not None
            self._trainers[turn] = trainer = self._trainer(recipe, turn)
            self._shares[turn] = trainer.stream(trainer.training_source(recipe.train), 0, 1 << 40)
        self.ready: dict[str, list[float]] = {}
        """The moment, by parameter, when its gradient was there, as a part of the grain's time."""
        self.row_bytes: dict[str, float] = {}
        """Bytes of the rows of one example, by parameter whose gradient goes as factors."""

    def _trainer(self, recipe: Recipe, turn: Turn) -> Trainer:
        """Trainers of one worker by itself share a model and an optimizer: memory is not free."""
        session = self._session if turn.how == "together" else self._alone
        batch, grain = turn.batch_size, turn.grain_size
        for known in self._trainers.values():
            if known.collective is session.collective:
                settings = replace(known.settings, batch_size=batch, grain_size=grain)
                what = (known.model, known.optimizer, known.loss, settings, known.schedule)
                return Trainer(known.collective, *what)
        trainer = make_trainer(
            recipe,
            replace(self._job.options, batch_size=batch, grain_size=grain, exact=True),
            session,
            follow_speed=False,  # what is timed are even shares
        )
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.0  # an update takes as long, and no batch size makes it diverge
        return trainer

    def go(self) -> list[list[Steps]]:
        """Run all turns; returns for each what every round found."""
        turns = list(self._job.turns)
        once = [self._turn(turn, WARM_UP + 1).steps[WARM_UP:] for turn in turns]
        rounds, counts = self._agree(plan_rounds([sum(seconds) for seconds in once], self._job))
        self.ready.clear()
        found: list[list[Steps]] = [[] for _ in turns]
        for number in range(rounds):
            places = range(len(turns))
            for place in places if number % 2 == 0 else reversed(places):
                found[place].append(self._turn(turns[place], counts[place]))
        return found

    def _agree(self, plan: tuple[int, list[int]]) -> tuple[int, list[int]]:
        """The first worker's plan: it alone has timed everything."""
        mine = np.array([plan[0], *plan[1]], np.int64)
        rounds, *counts = self._network.gather_rows(mine)[0].tolist()
        return rounds, counts

    def _turn(self, turn: Turn, count: int) -> Steps:
        """Time so many full steps, which all workers begin at once."""
        trainer, shares = self._trainers[turn], self._shares[turn]
        self._network.agree(True)
        found = Steps([], [])
        if turn.how in ("alone", "ready") and not self._session.is_first:
            return found
        ends: list[float] = []
        whole = turn.batch_size // turn.grain_size
        with self._looking(turn, trainer, ends):
            while len(found.steps) < count:
                share = next(shares)
                ends.clear()
                began = self._now()
                trainer.step(share)
                if len(share.batch.examples) == turn.batch_size:  # an epoch's last is short
                    found.steps.append(self._now() - began)
                    found.grains.append(np.diff(ends[:whole]).tolist())
        return found

    @contextmanager
    def _looking(self, turn: Turn, trainer: Trainer, ends: list[float]) -> Iterator[None]:
        """Note when each grain ends, unless whole steps are timed; for "ready", also when each
        gradient is there, in all grains but a step's first."""
        if turn.how == "together":
            yield
            return
        names = {id(p): name for name, p in trainer.model.named_parameters() if p.requires_grad}
        there: dict[str, float] = {}

        def note(parameter: Tensor) -> None:
            there[names[id(parameter)]] = self._now()

        def done(end: float) -> None:
            for name, when in there.items() if ends else ():
                self.ready.setdefault(name, []).append((when - ends[-1]) / (end - ends[-1]))
            there.clear()

        def watch(point: str, grain: int, value: Any) -> None:
            if point == "factors":
                sizes = Counter[str]()
                for name, rows in value:
                    sizes[name] += sum(part.nbytes for part in rows)
                for name, size in sizes.items():  # the last grain may be short
                    here = size / turn.grain_size
                    self.row_bytes[name] = max(here, self.row_bytes.get(name, 0.0))
            if point == "done":
                end = self._now()
                done(end)
                ends.append(end)

        handles = [
            parameter.register_post_accumulate_grad_hook(OwnHook(note))
            for parameter in trainer.model.parameters()
            if parameter.requires_grad and turn.how == "ready"
        ]
        before, trainer.watch = trainer.watch, watch
        try:
            yield
        finally:
            trainer.watch = before
            for handle in handles:
                handle.remove()

    def _now(self) -> float:
        """The time when all that was asked of the device is done."""
        if self._session.device.type == "cuda":
            torch.cuda.synchronize(self._session.device)
        return time.perf_counter()


def plan_rounds(once: Sequence[float], job: TimingJob) -> tuple[int, list[int]]:
    """How many rounds, and steps of each turn in one, fill the seconds; `once` is what one step of
    each takes."""
    whole, seconds = sum(once), sum(job.turns.values())
    if job.asked_seconds is not None and whole * LEAST_ROUNDS > PATIENCE * seconds:
        needed = whole * LEAST_ROUNDS / seconds * job.asked_seconds
        raise UserError(
            f"{job.options.recipe} is too slow to be timed in {job.asked_seconds:g} s: one step of "
            f"each kind takes {whole:.1f} s here; give --seconds {math.ceil(needed)}"
        )
    rounds = min(max(round(seconds / max(whole, 1e-9)), LEAST_ROUNDS), MOST_ROUNDS)
    least = math.ceil(job.least_steps / rounds)
    return rounds, [
        min(max(math.floor(given / rounds / max(taken, 1e-9)), least), MOST_STEPS)
        for given, taken in zip(job.turns.values(), once, strict=True)
    ]


# ---- what other processes do meanwhile


class BusyCores:
    """Counts the cores that other processes use, from its making to `others`."""

    def __init__(self) -> None:
        self._start = (time.perf_counter(), _busy_seconds(), time.process_time())

    def others(self, collective: Collective) -> float:
        """What all cores did beyond what these workers did (their loader processes are others)."""
        now = (time.perf_counter(), _busy_seconds(), time.process_time())
        elapsed, busy, mine = (b - a for a, b in zip(self._start, now, strict=True))
        ours = float(collective.gather_rows(np.array([mine])).sum())
        return max(busy - ours, 0.0) / elapsed


def _busy_seconds() -> float:
    """Busy seconds of all cores since the start, as Linux counts them (`man 5 proc_stat`); 0
    elsewhere."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _idle, _waiting, *interrupts = file.readline().split()[1:8]
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


# ---- reductions

SIZES = tuple(1 << power for power in (14, 16, 18, 20, 22, 24))
"""Bytes of gradients."""
REDUCED_GRAINS = (2, 6)
"""Two workers with one sum each, and with two each."""
DROPPED = 3
"""Reductions of each size that are not counted."""


def time_reductions(collective: Collective, repeats: int) -> list[Sample]:
    """Median seconds of reductions of several sizes between two workers (run by both)."""
    cases = [
        (
            reduction(grains, 2),
            traffic(2, grains, size, collective.speed),
            size,
            _buckets(collective, size),
        )
        for grains in REDUCED_GRAINS
        for size in SIZES
    ]
    times: list[list[tuple[float, float]]] = [[] for _ in cases]
    for _ in range(DROPPED + repeats):  # all cases in turn: noise comes and goes
        for case, (how, _, _, buckets) in enumerate(cases):
            times[case].append(_reduce_once(collective, how, buckets))
    return [
        Sample(
            what.rounds,
            what.gradients * size,
            *map(statistics.median, zip(*taken[DROPPED:], strict=True)),
        )
        for (_, what, size, _), taken in zip(cases, times, strict=True)
    ]


def _buckets(collective: Collective, size: int) -> list[Bucket]:
    """Room for so many bytes, in buckets that do not depend on the link that is timed."""
    most = bucket_bytes(collective.num_workers, size)
    lengths = [min(most, size - first) // 4 for first in range(0, size, most)]
    return [collective.bucket(length, torch.float32, exact=True) for length in lengths]


def _reduce_once(
    collective: Collective, how: Reduction, buckets: Sequence[Bucket]
) -> tuple[float, float]:
    """Seconds one reduction takes, and seconds of this worker's cores."""
    for bucket in buckets:
        bucket.begin(how)
        bucket.rows.fill_(1.0)  # other workers' caches do not have it yet, as after a backward pass
    collective.agree(True)  # both are ready
    began, cores = time.perf_counter(), time.process_time()
    for bucket in buckets:
        bucket.launch()
    for bucket in buckets:
        bucket.add_chunk()
    for bucket in buckets:
        bucket.finish()
    if collective.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, time.process_time() - cores


# ---- what several workers found

LEAST_SECONDS = 2.0
LEAST_REDUCTIONS, MOST_REDUCTIONS = 5, 15
"""The fewest and most reductions of each size."""
TRUSTED_SECONDS = 3e-4
"""Shorter grains are mostly what Python does around them."""
GRAINS = 4
"""Grains in a step that is timed for its grains alone."""
MOST_SIDE_BY_SIDE = 16
"""Workers started at once, on machines of many cores."""
NOISE_CORES = 0.15
"""What a quiet machine does beside."""

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What so many workers found."""

    turns: dict[Turn, list[list[Steps]]]
    """Steps of each turn: for every worker, what each round found."""
    ready: dict[str, list[float]]
    row_bytes: dict[str, float]
    busy_cores: float
    device: str
    links: dict[str, Any]
    """Reductions of two workers, through what they use here and through the network."""

    @property
    def local(self) -> NetworkFacts:
        link = link_of(self.links["local"], HERE)
        # In shared memory workers add by themselves, in the thread that computes.
        return replace(link, cores_taken=1.0) if self.links["shared"] else link

    @property
    def network(self) -> NetworkFacts:
        return link_of(self.links["network"], "loopback")

    def _grains(self, how: Circumstance, grain_size: int) -> list[list[list[float]]]:
        """Times of grains of this size: by worker and turn, those of each round. Where the data is
        too small for a step of two grains, the steps count as grains."""
        found = [
            rounds
            for turn, workers in self.turns.items()
            if turn.how == how and turn.grain_size == grain_size
            for rounds in workers
        ]
        several = any(any(steps.grains) for rounds in found for steps in rounds)
        return [
            [list(itertools.chain(*steps.grains)) if several else steps.steps for steps in rounds]
            for rounds in found
        ]

    def grain_times(self) -> dict[str, tuple[float, ...]]:
        """Times of grains of the first worker alone, by size."""
        chain = itertools.chain.from_iterable
        sizes = sorted({turn.grain_size for turn in self.turns if turn.how == "alone"})
        return {
            str(size): times
            for size in sizes
            if (times := tuple(chain(chain(self._grains("alone", size)))))
        }

    def update_seconds(self, grain_size: int) -> float:
        """What steps of this grain size took beyond as many grains of the mean length."""
        beyond = [
            step - statistics.fmean(grains) * (len(grains) + 1)
            for turn, workers in self.turns.items()
            if turn.how == "alone" and turn.grain_size == grain_size
            for steps in workers[0]
            for step, grains in zip(*steps, strict=True)
            if grains and turn.batch_size % grain_size == 0
        ]
        return max(statistics.median(beyond), 0.0) if beyond else 0.0

    def crowding(self, grain_size: int) -> float:
        """A grain's time with all workers side by side / alone: the median over rounds."""
        alone = self._by_round("alone", grain_size)
        beside = self._by_round("beside", grain_size)
        return statistics.median(b / a for a, b in zip(alone, beside, strict=True))

    def _by_round(self, how: Circumstance, grain_size: int) -> list[float]:
        """Take for each round the median time of a grain, and the mean of that over the workers."""
        found = [
            [statistics.median(times) for times in rounds]
            for rounds in self._grains(how, grain_size)
            if all(rounds)
        ]
        return [statistics.fmean(times) for times in zip(*found, strict=True)]

    def steps_of(self, turn: Turn) -> list[float]:
        """Seconds of all steps of a turn, as the first worker timed them."""
        rounds, *_ = self.turns.get(turn, [[]])
        return [seconds for steps in rounds for seconds in steps.steps]

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
            "row_bytes": tuple(self.row_bytes.get(name, 0.0) for name in names),
        }


def run_turns(
    options: Options,
    workers: int,
    turns: Mapping[Turn, float],
    tell: Tell = lambda _: None,
    **job: Any,
) -> Launched:
    """Time turns, each for so many seconds, on workers of this machine; further words are those of
    `TimingJob`."""
    tell(f"timing {options.recipe} on {count(workers, 'worker')}")
    told = TimingJob(options=options, turns=dict(turns), **job)
    return all_turns(call_workers(time_on_worker, (told,), workers), turns)


def all_turns(found: Sequence[Mapping[str, Any]], turns: Iterable[Turn]) -> Launched:
    """What all workers found, each of its own."""
    first = found[0]
    return Launched(
        turns={turn: [each["turns"][place] for each in found] for place, turn in enumerate(turns)},
        ready=first["ready"],
        row_bytes=first["rows"],
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
        if not fixed and turns[-1].how == "together":
            turns = tuple(dict.fromkeys((*turns, coarsest_step(options, workers))))
        apart[workers] = run_turns(
            options,
            workers,
            shared_seconds(turns, 0.6 * seconds / len(counts), options.grain_size),
            tell,
            asked_seconds=seconds,
            reductions=repeats if workers == 2 else 0,
        )
    found = assemble(options, apart)
    for doubt in doubts(found):
        tell(doubt)
    return found


def assemble(options: Options, apart: Mapping[int, Launched]) -> MeasuredStep:
    """A measured step from what each number of workers found; the fewest timed the grains. Where
    no two were started, reductions are timed now."""
    model = recipe_of(options).model()
    fixed = normalises_over_grains(model)
    first = apart[min(apart)]
    links = apart.get(2) or run_turns(options, 2, {}, reductions=MOST_REDUCTIONS)
    steps = {
        workers: launched.steps_of(whole_step(options, options.batch_size, workers, fixed=fixed))
        for workers, launched in {1: first, **apart}.items()
    }
    return MeasuredStep(
        recipe=options.recipe,
        identity=options.identity,
        machine=machine(),
        device=first.device,
        threads=options.threads,
        batch_size=options.batch_size,
        grain_size=options.grain_size,
        grain_fixed=fixed,
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
        coarsest_step_seconds={
            str(workers): statistics.median(found)
            for workers, launched in apart.items()
            if workers <= options.batch_size
            if (found := launched.steps_of(coarsest_step(options, workers)))
        },
    )


def side_by_side_counts(cores: int) -> list[int]:
    """How many workers to start, in turn: 2, 4, 8 to the cores there are (1 on a single one)."""
    most = min(cores, MOST_SIDE_BY_SIDE)
    doubling = [1 << power for power in range(1, most.bit_length()) if 1 << power <= most]
    return sorted({*doubling, most})


def sizes_to_time(options: Options, *, fixed: bool) -> list[int]:
    """Grain sizes: powers of two up to the recipe's, that one, and those that let 1, 2, 4, ...
    workers share a batch."""
    batch, own = options.batch_size, options.grain_size
    if fixed:
        return [own]
    smaller = [1 << power for power in range((own - 1).bit_length())]
    fewer = [1 << power for power in range((options.plan.num_grains - 1).bit_length())]
    return sorted({*smaller, own, *(grain_size_for(batch, most) for most in fewer)})


def turns_for(
    options: Options, workers: int, sizes: Iterable[int], *, fixed: bool
) -> tuple[Turn, ...]:
    """What is timed with so many workers; grains of all these sizes with one of them alone."""
    batch, grain, examples = options.batch_size, options.grain_size, options.num_examples

    def some(how: Circumstance, size: int) -> Turn:
        return Turn(how, min(GRAINS, max(examples // size, 1)) * size, size)

    turns = [whole_step(options, batch, 1, fixed=fixed)]
    turns += [some("alone", size) for size in sizes if size != grain]
    if batch < 2 * grain or batch % grain:  # a grain's time needs a whole one before it
        turns.append(some("alone", grain))
    if sizes:
        turns.append(some("ready", grain))
    if workers > 1:
        turns.append(some("beside", grain))
        together = whole_step(options, batch, workers, fixed=fixed)
        if workers <= -(-batch // together.grain_size):
            turns.append(together)
    return tuple(dict.fromkeys(turns))


def whole_step(options: Options, batch: int, workers: int, *, fixed: bool) -> Turn:
    """The step of a batch that so many workers share."""
    grain = options.grain_size
    size = grain_size_at(batch_size=batch, workers=workers, grain_size=grain, grain_fixed=fixed)
    return Turn("together" if workers > 1 else "alone", batch, size)


def coarsest_step(options: Options, workers: int) -> Turn:
    """The step of a batch in the largest grains that so many workers can share."""
    batch = options.batch_size
    return Turn("together", batch, grain_size_for(batch, workers))


def shared_seconds(turns: Sequence[Turn], seconds: float, grain_size: int) -> dict[Turn, float]:
    """Seconds for each turn; the recipe's own grain size matters most."""
    parts = [2 if turn.grain_size == grain_size else 1 for turn in turns]
    return {turn: part * seconds / sum(parts) for turn, part in zip(turns, parts, strict=True)}


def doubts(found: MeasuredStep) -> list[str]:
    """Sentences on times that are not to be believed to the last digit."""
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


# ---- for a study

PASSES = 2
"""Each number of workers is started this often, in turn: what is compared must not drift apart."""
STEP_SECONDS, LEAST_STEPS = 2.0, 8
"""The least time, and the fewest steps, for each step asked for."""
GRAIN_SECONDS = 10.0
"""Seconds for all that is timed with one worker alone to take a step apart."""


def measure_clock(
    options: Options,
    *,
    steps: Sequence[tuple[int, int]],
    network: NetworkFacts | Literal["here"],
    tell: Tell,
) -> ClockFacts:
    """Take a step apart and time the given steps, (batch size, workers), on this machine.

    Steps that do not fit here (more workers than there are cores or GPUs, or grains; a batch larger
    than the data) are left to the model."""
    fixed = normalises_over_grains(recipe_of(options).model())
    alone = turns_for(options, 1, sizes_to_time(options, fixed=fixed), fixed=fixed)
    wanted = {1: shared_seconds(alone, GRAIN_SECONDS, options.grain_size)}
    fitting: dict[tuple[int, int], Turn] = {}
    for batch, workers in steps:
        turn = whole_step(options, batch, workers, fixed=fixed)
        room = min(available_workers(), -(-batch // turn.grain_size))
        if workers <= room and batch <= options.num_examples:
            fitting[batch, workers] = turn
            others = turns_for(options, workers, (), fixed=fixed)
            wanted.setdefault(workers, dict.fromkeys(others, STEP_SECONDS))[turn] = STEP_SECONDS
    passes = [
        {
            workers: run_turns(
                options,
                workers,
                {turn: seconds / PASSES for turn, seconds in wanted[workers].items()},
                tell,
                least_steps=-(-LEAST_STEPS // PASSES),
                reductions=MOST_REDUCTIONS if workers == 2 else 0,
            )
            for workers in sorted(wanted)
        }
        for _ in range(PASSES)
    ]
    apart = {workers: joined([each[workers] for each in passes]) for workers in wanted}
    step = assemble(options, apart)
    for words in crowded_words(step.busy_cores, max(wanted) * options.threads):
        tell(words)
    return ClockFacts(
        **{each.name: getattr(step, each.name) for each in fields(TimingFacts)},
        network=step.local if network == HERE else network,
        gradient_bytes=sum(step.tensor_bytes),
        serial_seconds=step.update_seconds,
        grain_seconds={size: statistics.median(times) for size, times in step.grain_times.items()},
        measured_step_seconds={
            step_key(batch, workers): statistics.median(apart[workers].steps_of(turn))
            for (batch, workers), turn in fitting.items()
        },
    )


def joined(passes: Sequence[Launched]) -> Launched:
    """What the same number of workers found when it was started several times."""
    return replace(
        passes[0],
        turns={
            turn: [
                list(itertools.chain(*rounds))
                for rounds in zip(*(each.turns[turn] for each in passes), strict=True)
            ]
            for turn in passes[0].turns
        },
        busy_cores=max(each.busy_cores for each in passes),
    )


# ---- the recipe and the machine


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
