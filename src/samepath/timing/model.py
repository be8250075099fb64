"""The model of a step on 1 to thousands of workers: the only one.

In: what was measured with one worker, links, and how gradients come together. Out: seconds.
Guaranteed: no torch and no engine; nothing here is a measurement, and every result says so.

A step: every worker computes its grains one after another; gradients are reduced over the cluster's
links as they appear; then every worker updates. The next step begins when the last worker has done
that. `simulate` draws grain times from the spread that was measured and returns mean and spread of
many trials; a study's `Clock` asks it for one trial with median grain times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.keys import UInt64s, key, keys_for
from samepath.plan import assign, bucket_bytes
from samepath.timing.links import (
    HERE,
    NODE,
    Algorithm,
    Cluster,
    Cost,
    flat,
    reduction_cost,
    speed_seen,
    tree_seconds,
)
from samepath.timing.measured import ClockFacts, How, MeasuredStep, step_key

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Scaling: TypeAlias = Literal["strong", "weak"]
"""All workers share one batch; each has a batch of its own."""
Mode: TypeAlias = Literal["synchronous", "stale", "asynchronous"]
"""All wait for a step's gradients; gradients are reduced behind the next step; a parameter server
that applies each worker's gradient as it comes."""

LEAST_GRAINS = 50
"""The fewest timed grains: with fewer, the slow tail of their spread is not seen."""
TRIALS = 200
MOST_AT_ONCE = 1 << 21
"""Grain times drawn in one go, to bound the memory."""


# ---- grains and their times


def grain_size_at(*, batch_size: int, workers: int, grain_size: int, grain_fixed: bool) -> int:
    """Examples in a grain when so many workers share a batch.

    Finer grains let more workers take part and change the path only by rounding; but where the
    model normalises over a grain they would change what it computes."""
    if grain_fixed:
        return min(grain_size, batch_size)
    return min(grain_size, -(-batch_size // workers))


def grains_of(batch_size: int, grain_size: int, workers: int) -> tuple[Integers, Integers]:
    """The sizes of a batch's grains, and the first grain of each worker that has any, as the plan
    cuts and gives them; with more workers than grains some are idle."""
    num_grains = -(-batch_size // grain_size)
    sizes = np.full(num_grains, grain_size, np.int64)
    sizes[-1] = batch_size - (num_grains - 1) * grain_size
    runs = assign(num_grains, min(workers, num_grains))
    return sizes, np.array([run.start for run in runs], np.int64)


def interpolated(grain_seconds: Mapping[int, float], sizes: Integers) -> Floats:
    """Seconds of grains of these sizes: on the line between measured ones, below the smallest as
    long as that one, beyond the largest as long for each example as in that one."""
    known = sorted(grain_seconds)
    seconds = np.interp(sizes, known, [grain_seconds[size] for size in known])
    return seconds * np.maximum(sizes / known[-1], 1.0)


# ---- a step to be simulated


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One step of a recipe, as one worker was measured to do it."""

    name: str
    batch_size: int
    """Examples of a step (strong scaling) or of each worker's step (weak)."""
    grain_size: int
    grain_fixed: bool
    """The model normalises over a grain: more workers cannot mean finer grains."""
    grain_seconds: dict[int, float]
    """Median seconds of a grain, forward and backward, by its size."""
    serial_seconds: float
    """The fixed cost of a step after the reduction (the update)."""
    tensor_bytes: tuple[int, ...]
    """Gradients, in the order in which backward finds them."""
    tensor_ready: tuple[float, ...]
    """When each is there, as a part of the last grain's time: rising, at most 1."""
    buffer_bytes: int = 0
    """Bytes of buffers that a step changes (batch norm's), which are merged like gradients."""
    row_bytes: tuple[float, ...] = ()
    """Bytes by gradient for each example of what samepath sends in its place (gradient factors);
    0, or nothing at all, where it has none."""
    grain_factors: tuple[float, ...] = ()
    """Times of equal grains / their median, as measured; none: they do not differ. Nothing slower
    than the slowest is drawn."""
    stragglers: float = 0.0
    """How much workers differ: the standard deviation of the logarithm of a worker's slowness
    (lognormal, median 1), which all its grains of a step share."""
    crowding: dict[int, float] = field(default_factory=dict)
    """A grain's time over its time alone, by how many workers compute side by side in one node."""

    def __post_init__(self) -> None:
        ready = [0.0, *self.tensor_ready, 1.0]
        assert len(self.tensor_bytes) == len(self.tensor_ready) > 0
        assert ready == sorted(ready), "gradients come in order, within the grain"
        assert self.grain_seconds
        assert 1 <= self.grain_size <= self.batch_size
        assert all(factor > 0.0 for factor in self.grain_factors)

    def sent_bytes(self, num_examples: int) -> tuple[int, ...]:
        """The bytes, by gradient, whose sum would cost what samepath sends. Rows go round once, a
        sum's parts there and back: so they count half. (The rule is that of step/factors.py.)"""
        rows = self.row_bytes or (0.0,) * len(self.tensor_bytes)
        return tuple(
            round(num_examples * row / 2) if 0 < 2 * num_examples * row <= size else size
            for size, row in zip(self.tensor_bytes, rows, strict=True)
        )

    def crowded(self, side_by_side: int) -> float:
        """The factor for so many workers in a node: on the line between measured ones."""
        known = sorted({1: 1.0, **self.crowding}.items())
        counts, factors = zip(*known, strict=True)
        return float(np.interp(side_by_side, counts, factors))


def workload_from(
    measured: MeasuredStep, *, batch_size: int | None = None, grain_size: int | None = None
) -> Workload:
    """The measured step as it is simulated, with another batch or grain if wanted."""
    if grain_size is not None and measured.grain_fixed and grain_size != measured.grain_size:
        raise UserError(
            f"grains of {grain_size}: {measured.recipe} normalises over a grain and was measured "
            f"with {measured.grain_size}; measure it again with --grain {grain_size}"
        )
    batch = measured.batch_size if batch_size is None else batch_size
    if batch < 1 or (grain_size is not None and grain_size < 1):
        raise UserError(f"a batch of {batch} in grains of {grain_size}: both are at least 1")
    size = grain_size or measured.grain_size
    times = {int(size): taken for size, taken in measured.grain_times.items()}
    # the spread of this size's own times, where there are enough
    own = times.get(size, ())
    return Workload(
        name=measured.recipe,
        batch_size=batch,
        grain_size=min(size, batch),
        grain_fixed=measured.grain_fixed,
        grain_seconds={size: statistics.median(taken) for size, taken in times.items()},
        serial_seconds=measured.update_seconds,
        tensor_bytes=measured.tensor_bytes,
        tensor_ready=measured.tensor_ready,
        buffer_bytes=measured.buffer_bytes,
        row_bytes=measured.row_bytes,
        grain_factors=measured_factors({size: own} if len(own) >= LEAST_GRAINS else times),
        crowding={int(workers): factor for workers, factor in measured.crowding.items()},
    )


def measured_factors(grain_times: Mapping[int, Sequence[float]]) -> tuple[float, ...]:
    """The times of grains, by size, each against the median of its size; in order."""
    factors = sorted(time / float(np.median(t)) for t in grain_times.values() for time in t)
    if len(factors) < 2:
        raise UserError(f"{len(factors)} grain times say nothing of their spread; time at least 2")
    return tuple(factors)


class Runs(NamedTuple):
    """Assignment of the work to workers, the same in every trial."""

    starts: Integers
    """The first grain of each busy worker."""
    seconds: Floats
    """Seconds of each grain, without spread."""
    num_examples: int


def share_out(workload: Workload, workers: int, scaling: Scaling) -> Runs:
    """The grains of a step, and the worker of each."""
    strong = scaling == "strong"
    size = grain_size_at(
        batch_size=workload.batch_size,
        workers=workers if strong else 1,
        grain_size=workload.grain_size,
        grain_fixed=workload.grain_fixed,
    )
    sizes, starts = grains_of(workload.batch_size, size, workers if strong else 1)
    seconds = interpolated(workload.grain_seconds, sizes)
    if strong:
        return Runs(starts, seconds, workload.batch_size)
    starts = np.arange(workers, dtype=np.int64) * len(sizes)
    return Runs(starts, np.tile(seconds, workers), workload.batch_size * workers)


class Drawn(NamedTuple):
    """Times of one step for each trial (rows) and busy worker (columns)."""

    before: Floats
    """Until the last grain begins."""
    last: Floats
    """Seconds of the last grain."""

    @property
    def done(self) -> Floats:
        return self.before + self.last


def draw(
    workload: Workload, runs: Runs, *, seed: int, trials: range, side_by_side: int = 1
) -> Drawn:
    """How long every worker takes, trial by trial, with so many workers in a node.

    A draw is keyed by (seed, trial, grain) or (seed, trial, worker), so that a grain takes as long
    on any worker, and more trials or workers leave the draws of the others alone."""
    grains, workers = len(runs.seconds), len(runs.starts)
    from scipy.special import ndtri

    factors = np.sort(workload.grain_factors or (1.0,))
    places = (np.arange(len(factors)) + 0.5) / len(factors)
    times = runs.seconds * np.interp(_uniforms(seed, "grain", trials, grains), places, factors)
    normal = ndtri(_uniforms(seed, "worker", trials, workers))
    slowness = workload.crowded(side_by_side) * np.exp(workload.stragglers * normal)
    stops = np.append(runs.starts[1:], grains)
    last = times[:, stops - 1]
    total = np.add.reduceat(times, runs.starts, axis=1)
    return Drawn((total - last) * slowness, last * slowness)


def _uniforms(seed: int, what: str, trials: range, number: int) -> Floats:
    numbers = np.arange(number, dtype=np.int64)
    keys = [keys_for(key(seed, "simulate", what, trial), numbers) for trial in trials]
    return uniform(np.stack(keys))


def uniform(keys: UInt64s) -> Floats:
    """Numbers strictly between 0 and 1: 52 of a key's bits, and a half."""
    return ((keys >> np.uint64(12)).astype(np.float64) + 0.5) * math.ldexp(1.0, -52)


# ---- how gradients come together: buckets of a fixed layout, or a queue with a coordinator

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Buckets of a fixed layout, in a fixed order, each as soon as all workers have it."""

    bucket_bytes: int | None = None
    """Bytes of the largest bucket; None: ours, by the link and
    the number of workers (`plan.bucket_bytes`)."""
    first_bucket_bytes: int | None = None
    """DDP makes its first bucket small, so that something starts soon."""
    algorithm: Algorithm = "samepath"
    stale: bool = False
    """Buckets are those of the step before, and leave when a step begins."""


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Horovod's way: workers announce gradients; every cycle a coordinator finds those that all
    have announced, and they are reduced in fused buffers.

    The defaults are Horovod's before 0.21, those of Gahlot et al. 2020 ("we use default parameters
    for buffer size and cycle time"); 0.21 made them 1 ms and 128 MiB (pull request 2468).
    """

    cycle_seconds: float = 5e-3
    fusion_bytes: int = 64 * MIB
    message_seconds: float = 0.35e-6
    """The coordinator's time for one announcement: one gradient of one worker. Assumed: Romero
    et al. 2022 (NSDI) made Horovod twice as fast at 6000 GPUs of Summit by caching announcements;
    were that ResNet-50's 161 gradients in steps of 0.2 s, it would be about 0.35 us. 0 stands for
    the cache (pull request 902, 2019), which sends a bit vector instead."""
    algorithm: Algorithm = "ring"
    waits: bool = True
    """The queue's thread reduces by itself (MPI or gloo on CPUs), so no cycle begins meanwhile;
    False: it only starts reductions (NCCL)."""


Policy: TypeAlias = Buckets | Queue
OURS = Buckets()
DDP = Buckets(bucket_bytes=25 * MIB, first_bucket_bytes=MIB, algorithm="ring")
"""torch's DistributedDataParallel with its defaults."""


class Exchange(NamedTuple):
    """One value per trial."""

    finished: Floats
    """When the last total is there."""
    busy: Floats
    """Seconds the link was reducing."""
    hidden: Floats
    """The part of these seconds while some worker still computed."""


def bucket_up(num_bytes: Sequence[int], policy: Buckets) -> tuple[list[int], list[int]]:
    """The bytes of each bucket and the number of its last gradient, as the engine fills them: a
    gradient that no longer fits opens the next bucket."""
    assert policy.bucket_bytes is not None
    sizes: list[int] = []
    last: list[int] = []
    for number, size in enumerate(num_bytes):
        room = policy.bucket_bytes
        if len(sizes) == 1 and policy.first_bucket_bytes is not None:
            room = policy.first_bucket_bytes
        if not sizes or sizes[-1] + size > room:
            sizes.append(0)
            last.append(number)
        sizes[-1] += size
        last[-1] = number
    return sizes, last


LANES = 2
"""gloo has so many threads, each of which sees one exchange to its end."""


class _Link:
    """Reduces one thing after another, in every trial; latencies of LANES of them overlap."""

    def __init__(self, computed: Floats) -> None:
        self._computed = computed
        self.free = np.zeros_like(computed)
        self._lanes = [np.zeros_like(computed)] * LANES
        self.there = np.zeros_like(computed)
        self.busy = np.zeros_like(computed)
        self.hidden = np.zeros_like(computed)

    def reduce(self, ready: Floats, seconds: Floats | float, latency: float = 0.0) -> None:
        """Reduce as soon as it is ready and the link and a lane are free; nothing where it takes
        0 s. The total is there a latency later."""
        taken = np.broadcast_to(seconds, ready.shape)
        lane = self._lanes[0] if latency else self.free
        start = np.maximum(np.maximum(ready, self.free), lane)
        end = start + taken
        self.free = np.where(taken > 0.0, end, self.free)
        self._arrive(np.where(taken > 0.0, end + latency, self.there))
        self.busy = self.busy + taken
        self.hidden = self.hidden + np.clip(self._computed - start, 0.0, taken)

    def tell(self, seconds: float) -> None:
        """Something small, after computing: it takes a lane, but not the link."""
        self._arrive(np.maximum(self._computed, self._lanes[0]) + seconds)

    def _arrive(self, when: Floats) -> None:
        self._lanes = [*self._lanes[1:], when]
        self.there = np.maximum(self.there, when)

    def result(self) -> Exchange:
        return Exchange(np.maximum(self.there, self._computed), self.busy, self.hidden)


def run_buckets(
    ready: Floats,
    computed: Floats,
    num_bytes: Sequence[int],
    cost: Cost,
    policy: Buckets,
    *,
    buffer_bytes: int = 0,
) -> Exchange:
    """`ready`: (trials, gradients), rising; `computed`: (trials,), when the slowest is done. Our
    own engine also adds buffers, and exchanges records, after computing."""
    link = _Link(computed)
    for size, last in zip(*bucket_up(num_bytes, policy), strict=True):
        when = np.zeros_like(computed) if policy.stale else ready[:, last]
        one = cost.of(size)
        link.reduce(when, one.occupied(size), one.latency_seconds)
    if policy.algorithm == "samepath":
        if buffer_bytes:
            one = cost.of(buffer_bytes)
            link.reduce(computed, one.occupied(buffer_bytes), one.latency_seconds)
        link.tell(cost.record_seconds)
    return link.result()


def run_queue(
    ready: Floats,
    computed: Floats,
    num_bytes: Sequence[int],
    cost: Cost,
    policy: Queue,
    *,
    workers: int,
    agree_seconds: float,
    phase: Floats,
) -> Exchange:
    """Run the queue, as `run_buckets` does buckets. `agree_seconds`: of a round from all workers to
    the coordinator and back; `phase`: (trials,) in [0, 1), where in a cycle the step begins.

    Cycles in which nothing is ready are passed over at once. An announcement counts in the cycle in
    which the last worker makes it; in truth those of quick workers are read in earlier ones.
    """
    num = len(num_bytes)
    bytes_before = np.concatenate([[0], np.cumsum(num_bytes)])
    rows = np.arange(len(computed))
    link = _Link(computed)
    idle_cycle = max(policy.cycle_seconds, agree_seconds)
    now = phase * idle_cycle
    done = np.zeros(len(computed), np.int64)
    while (done < num).any():
        next_ready = ready[rows, np.minimum(done, num - 1)]
        now = now + idle_cycle * np.ceil(np.maximum(next_ready - now, 0.0) / idle_cycle)
        found = np.maximum((ready <= now[:, None]).sum(axis=1), done)
        agreed = now + agree_seconds + policy.message_seconds * workers * (found - done)
        while (done < found).any():
            full = np.searchsorted(
                bytes_before, bytes_before[done] + policy.fusion_bytes, side="right"
            )
            upto = np.minimum(np.maximum(full - 1, done + 1), found)
            size = bytes_before[upto] - bytes_before[done]
            seconds = cost.fixed_seconds + size * cost.seconds_per_byte
            link.reduce(agreed, np.where(upto > done, seconds, 0.0), cost.latency_seconds)
            done = upto
        free = np.maximum(link.there, agreed) if policy.waits else agreed
        now = np.maximum(now + policy.cycle_seconds, free)
    return link.result()


# ---- the simulation


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One number of workers, modelled."""

    workers: int
    busy_workers: int
    """Workers that compute: with fewer grains than workers the others are idle."""
    step_seconds: float
    """Mean over the trials."""
    median_seconds: float
    low_seconds: float
    """One step in twenty is shorter."""
    high_seconds: float
    """One step in twenty is longer."""
    examples_per_second: float
    speedup: float
    """Examples per second, in those of one worker in the same model."""
    efficiency: float
    """speedup / workers."""
    reduction_seconds: float
    """The link is busy for so long in a step."""
    hidden: float | None
    """The share of that behind some worker's computing; None without a reduction."""
    waiting: float
    """The share of the step for which a busy worker, on average, waits for the slowest."""
    how: Literal["modelled"] = "modelled"


def simulate(
    workload: Workload,
    cluster: Cluster,
    workers: Sequence[int],
    *,
    policy: Policy,
    scaling: Scaling = "strong",
    seed: int = 0,
    trials: int = TRIALS,
) -> tuple[Simulated, ...]:
    """A step at each number of workers. The same seed gives the same numbers."""
    if not workers or min(workers) < 1:
        raise UserError(f"workers {list(workers)}: give numbers from 1 on, such as 1,2,4,8")
    if trials < 1:
        raise UserError(f"{trials} trials: at least one is needed")

    def run(num: int) -> tuple[Runs, _Steps]:
        runs = share_out(workload, num, scaling)
        at_once = max(MOST_AT_ONCE // len(runs.seconds), 1)
        parts = [
            _steps(workload, cluster, runs, policy, seed, range(trials)[first : first + at_once])
            for first in range(0, trials, at_once)
        ]
        return runs, _Steps(*map(np.concatenate, zip(*parts, strict=True)))

    runs, alone = run(1)
    pace = runs.num_examples / float(alone.seconds.mean())
    return tuple(_summary(num, *run(num), pace) for num in workers)


def step_seconds(
    workload: Workload,
    cluster: Cluster,
    workers: int,
    *,
    policy: Policy = OURS,
    trials: int = TRIALS,
) -> float:
    """Mean seconds of a step that so many workers share."""
    (point,) = simulate(workload, cluster, [workers], policy=policy, trials=trials)
    return point.step_seconds


class _Steps(NamedTuple):
    """One value per trial, in seconds."""

    seconds: Floats
    """Seconds of the step."""
    waiting: Floats
    """Seconds of waiting for the slowest worker, on average over the busy workers."""
    reducing: Floats
    hidden: Floats
    """The part of that behind some worker's computing."""


def _summary(workers: int, runs: Runs, steps: _Steps, pace: float) -> Simulated:
    mean = float(steps.seconds.mean())
    low, median, high = np.quantile(steps.seconds, [0.05, 0.5, 0.95])
    reducing = float(steps.reducing.mean())
    speedup = runs.num_examples / mean / pace
    return Simulated(
        workers=workers,
        busy_workers=len(runs.starts),
        step_seconds=mean,
        median_seconds=float(median),
        low_seconds=float(low),
        high_seconds=float(high),
        examples_per_second=runs.num_examples / mean,
        speedup=speedup,
        efficiency=speedup / workers,
        reduction_seconds=reducing,
        hidden=float(steps.hidden.mean()) / reducing if reducing > 0.0 else None,
        waiting=float(steps.waiting.mean()) / mean,
    )


def _steps(
    workload: Workload, cluster: Cluster, runs: Runs, policy: Policy, seed: int, trials: range
) -> _Steps:
    side_by_side = cluster.side_by_side(len(runs.starts))
    drawn = draw(workload, runs, seed=seed, trials=trials, side_by_side=side_by_side)
    computed = drawn.done.max(axis=1)
    if len(runs.starts) > 1:
        exchange = _exchange(workload, cluster, runs, policy, seed, trials, drawn)
    else:
        exchange = Exchange(computed, np.zeros_like(computed), np.zeros_like(computed))
    # What seems hidden takes cores from computing, where the link is measured to need some.
    taken = cluster.cores_taken * exchange.hidden
    return _Steps(
        exchange.finished + taken + workload.serial_seconds * workload.crowded(side_by_side),
        (computed[:, None] - drawn.done).mean(axis=1),
        exchange.busy,
        exchange.hidden - taken,
    )


def _exchange(
    workload: Workload,
    cluster: Cluster,
    runs: Runs,
    policy: Policy,
    seed: int,
    trials: range,
    drawn: Drawn,
) -> Exchange:
    """Bring the gradients of several workers together."""
    workers = len(runs.starts)
    ready = np.stack(
        [(drawn.before + part * drawn.last).max(axis=1) for part in workload.tensor_ready], axis=1
    )
    computed = drawn.done.max(axis=1)
    cost = reduction_cost(cluster, workers, policy.algorithm, num_grains=len(runs.seconds))
    if isinstance(policy, Buckets):
        sizes, buffers = workload.tensor_bytes, workload.buffer_bytes
        if policy.algorithm == "samepath":
            sizes = workload.sent_bytes(runs.num_examples)
        if policy.bucket_bytes is None:
            most = bucket_bytes(workers, sum(sizes), speed_seen(cluster, workers))
            policy = replace(policy, bucket_bytes=most)
        return run_buckets(ready, computed, sizes, cost, policy, buffer_bytes=buffers)
    phases = keys_for(key(seed, "simulate", "phase"), np.array(trials, np.int64))
    return run_queue(
        ready,
        computed,
        workload.tensor_bytes,
        cost,
        policy,
        workers=workers,
        agree_seconds=tree_seconds(cluster, workers),
        phase=uniform(phases),
    )


# ---- asked by a study


@dataclass(frozen=True)
class Clock:
    """Seconds per step, from what a study measured."""

    facts: ClockFacts

    def step_seconds(
        self, *, batch_size: int, workers: int, mode: Mode = "synchronous"
    ) -> tuple[float, How]:
        """The time of one update, and how it is known: "measured" only where steps were run with
        that many real workers here.

        `batch_size` is the whole batch of a step; with `asynchronous` it is what each worker
        computes alone for one update."""
        measured = self.facts.measured_step_seconds.get(step_key(batch_size, workers))
        if measured is not None and mode == "synchronous":
            return measured, "measured"
        return self.modelled(batch_size=batch_size, workers=workers, mode=mode), "modelled"

    def modelled(self, *, batch_size: int, workers: int, mode: Mode = "synchronous") -> float:
        """The model's time, also where there is a measured one."""
        facts, network = self.facts, self.facts.network
        if mode == "asynchronous":
            # A worker's cycle: its batch, the gradient there, the update, the weights back. k
            # workers make k updates in one cycle until the server is always busy: it takes one
            # gradient in, updates and sends the weights before it turns to the next.
            there_and_back = 2.0 * (
                network.latency_seconds + sum(facts.tensor_bytes) / network.bytes_per_second
            )
            cycle = self.modelled(batch_size=batch_size, workers=1) + there_and_back
            return max(cycle / workers, facts.serial_seconds + there_and_back)
        workload = Workload(
            name="",
            batch_size=batch_size,
            grain_size=min(facts.grain_size, batch_size),
            grain_fixed=facts.grain_fixed,
            grain_seconds={int(size): seconds for size, seconds in facts.grain_seconds.items()},
            serial_seconds=facts.serial_seconds,
            tensor_bytes=facts.tensor_bytes,
            tensor_ready=facts.tensor_ready,
            buffer_bytes=facts.buffer_bytes,
            row_bytes=facts.row_bytes,
            crowding={int(count): factor for count, factor in facts.crowding.items()},
        )
        cluster = flat(network, name=NODE if network.name == HERE else "machine")
        policy = Buckets(stale=mode == "stale")
        return step_seconds(workload, cluster, workers, policy=policy, trials=1)
