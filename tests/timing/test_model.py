"""The simulated step: closed forms, a queue played cycle by cycle, and what must not change."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_steps import link, made, made_clock

from figure_8 import assumed_ready, lognormal
from samepath.errors import UserError
from samepath.plan import LinkSpeed, assign
from samepath.plan.link import MESSAGE_LATENCIES
from samepath.study.race import predictions
from samepath.timing import model as module
from samepath.timing.links import (
    CLUSTERS,
    Cluster,
    Cost,
    flat,
    reduction_cost,
    traffic,
)
from samepath.timing.model import (
    DDP,
    Buckets,
    Clock,
    Mode,
    Policy,
    Queue,
    Scaling,
    Simulated,
    Workload,
    bucket_up,
    draw,
    interpolated,
    measured_factors,
    run_buckets,
    run_queue,
    share_out,
    simulate,
    workload_from,
)

FREE = flat(link(1e30, 0.0))
SLOW = flat(link(1e6, 1e-3))
ONE_BUCKET = Buckets(bucket_bytes=1 << 40, algorithm="ring")


def load(
    *,
    batch: int = 96,
    grain: int = 4,
    fixed: bool = False,
    per_example: float = 0.01,
    serial: float = 0.5,
    num_bytes: tuple[int, ...] = (40_000, 60_000),
    ready: tuple[float, ...] = (),
    spread: float = 0.0,
    stragglers: float = 0.0,
) -> Workload:
    return Workload(
        name="made up",
        batch_size=batch,
        grain_size=grain,
        grain_fixed=fixed,
        grain_seconds={size: per_example * size for size in range(1, grain + 1)},
        serial_seconds=serial,
        tensor_bytes=num_bytes,
        tensor_ready=ready or assumed_ready(len(num_bytes)),
        grain_factors=lognormal(spread) if spread else (),
        stragglers=stragglers,
    )


def at(
    workers: int,
    workload: Workload,
    cluster: Cluster,
    policy: Policy,
    scaling: Scaling = "strong",
    trials: int = 20,
) -> Simulated:
    (found,) = simulate(workload, cluster, [workers], policy=policy, scaling=scaling, trials=trials)
    return found


# ---- closed forms


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 24])
def test_without_a_network_a_step_is_the_longest_run(workers: int) -> None:
    """A grain takes as long whoever computes it: 24 workers with one each tell how long."""
    workload = load(spread=0.3)
    alone = draw(workload, share_out(workload, 24, "strong"), seed=0, trials=range(20)).last
    runs = assign(24, workers)
    expected = [max(sum(times[run.start : run.stop]) for run in runs) + 0.5 for times in alone]
    found = at(workers, workload, FREE, Buckets())
    assert found.step_seconds == pytest.approx(np.mean(expected))
    assert (found.low_seconds, found.high_seconds) == pytest.approx(
        tuple(np.quantile(expected, [0.05, 0.95]))
    )
    assert found.median_seconds == pytest.approx(np.median(expected))


@pytest.mark.parametrize("workers", [2, 3, 7, 24])
def test_one_bucket_after_computing(workers: int) -> None:
    found = at(workers, load(), SLOW, ONE_BUCKET)
    ring = 2 * (workers - 1) * 1e-3 + 2 * (workers - 1) / workers * 100_000 / 1e6
    compute = math.ceil(24 / workers) * 0.04
    assert found.step_seconds == pytest.approx(compute + ring + 0.5)
    assert found.hidden == 0.0
    assert found.reduction_seconds == pytest.approx(ring)
    assert found.speedup == pytest.approx((0.96 + 0.5) / (compute + ring + 0.5))


@pytest.mark.parametrize(
    ("first_bytes", "first_ready", "seconds", "hidden"),
    [
        (10_000, 0.25, 12 * 0.04 + 0.01, 0.5),  # the first fits behind computing
        (50_000, 0.25, 11.25 * 0.04 + 0.06, 0.5),  # it does not, and the second follows it
        (10_000, 1.0, 12 * 0.04 + 0.02, 0.0),
    ],
)
def test_two_buckets(first_bytes: int, first_ready: float, seconds: float, hidden: float) -> None:
    """The second is ready at the end of a grain of 0.04 s; 10,000 bytes take 0.01 s at two
    workers."""
    workload = load(num_bytes=(first_bytes, 10_000), ready=(first_ready, 1.0))
    policy = Buckets(bucket_bytes=0, algorithm="ring")
    found = at(2, workload, flat(link(1e6, 0.0)), policy)
    assert found.step_seconds == pytest.approx(seconds + 0.5)
    assert found.hidden == pytest.approx(hidden)


def test_a_bucket_waits_for_the_worker_that_has_it_last() -> None:
    """3 grains on 2 workers: the first has the bucket after one grain and a quarter."""
    workload = load(batch=12, fixed=True, num_bytes=(100_000,), ready=(0.25,))
    found = at(2, workload, flat(link(1e6, 0.0)), Buckets(algorithm="ring"))
    assert found.step_seconds == pytest.approx(1.25 * 0.04 + 0.1 + 0.5)


@pytest.mark.parametrize(("batch", "workers"), [(8, 2), (24, 2), (12, 3), (28, 3)])
def test_our_own_reduction_ships_the_sums_of_the_plan(batch: int, workers: int) -> None:
    workload = load(batch=batch, fixed=True)
    found = at(workers, workload, SLOW, Buckets(bucket_bytes=1 << 40))
    sent = traffic(workers, batch // 4, 100_000, LinkSpeed(1e-3, 1e6))
    ours = 1e-3 * (sent.rounds + MESSAGE_LATENCIES * sent.further) + 0.1 * sent.gradients
    compute = max(map(len, assign(batch // 4, workers))) * 0.04
    assert found.step_seconds == pytest.approx(compute + ours + 0.5)


def test_the_latency_of_one_bucket_hides_behind_the_next() -> None:
    """Two buckets of 0.01 s at two workers, after computing; 1 ms on the way, of which messages
    take the link for a part."""
    workload = load(batch=64, num_bytes=(10_000, 10_000), ready=(1.0, 1.0))
    found = at(2, workload, SLOW, Buckets(bucket_bytes=0))
    taken = MESSAGE_LATENCIES * 1e-3
    assert found.step_seconds == pytest.approx(8 * 0.04 + 2 * 0.01 + taken + 1e-3 + 0.5)
    assert found.reduction_seconds == pytest.approx(2 * (0.01 + taken))


def test_two_exchanges_travel_at_once_and_records_come_last() -> None:
    """Latencies of 1 ms and next to no bytes: two buckets take 1 ms together, the buffers and the
    record wait for a lane each, for 1 ms more."""
    workload = replace(load(batch=64, num_bytes=(1, 1), ready=(1.0, 1.0)), buffer_bytes=1)
    quick = flat(link(1e12, 1e-3))
    policy = Buckets(bucket_bytes=0)
    message = MESSAGE_LATENCIES * 1e-3  # in which the link carries nothing else
    assert at(2, replace(workload, buffer_bytes=0), quick, policy).step_seconds == pytest.approx(
        8 * 0.04 + 2e-3 + 0.5
    )
    assert at(2, workload, quick, policy).step_seconds == pytest.approx(
        8 * 0.04 + 2e-3 + message + 0.5
    )
    tree = replace(policy, algorithm="tree")  # NCCL: no records, one after another
    assert at(2, workload, quick, tree).step_seconds == pytest.approx(8 * 0.04 + 4e-3 + 0.5)


@pytest.mark.parametrize("taken", [0.0, 0.25, 1.0])
def test_a_reduction_hides_only_what_its_cores_leave(taken: float) -> None:
    """Ready at 0.25 and 1 of a grain of 0.04 s; each takes 0.01 s at two workers, one hidden. With
    a whole core (shared memory: workers add by themselves) it is as if none were."""
    workload = load(batch=64, num_bytes=(10_000, 10_000), ready=(0.25, 1.0))
    machine = flat(replace(link(1e6, 0.0), cores_taken=taken))
    found = at(2, workload, machine, Buckets(bucket_bytes=0))
    assert found.step_seconds == pytest.approx(8 * 0.04 + 0.01 + taken * 0.01 + 0.5)
    assert found.hidden == pytest.approx(0.5 * (1.0 - taken))


def test_sizes_of_grains() -> None:
    """Beyond the largest measured they take as long for each example; a short last one is short;
    weak scaling does not cut them finer."""
    found = interpolated(load(grain=4).grain_seconds, np.array([2, 4, 12]))
    assert found == pytest.approx([0.02, 0.04, 0.12])
    assert at(1, load(batch=10), FREE, DDP).step_seconds == pytest.approx(0.1 + 0.5)
    assert len(share_out(load(batch=8), 100, "weak").seconds) == 200
    assert len(share_out(load(batch=8), 100, "strong").seconds) == 8


def test_grains_and_workers_are_drawn_apart() -> None:
    workload = load(batch=4, fixed=True, spread=0.2, stragglers=0.2)
    drawn = draw(workload, share_out(workload, 500, "weak"), seed=0, trials=range(20))
    assert np.std(np.log(drawn.last)) == pytest.approx(0.2 * math.sqrt(2), rel=0.03)


def test_idle_workers_are_paid_for() -> None:
    found = at(10, load(batch=8, fixed=True), FREE, Buckets())
    assert found.busy_workers == 2
    assert found.efficiency == pytest.approx((0.08 + 0.5) / (0.04 + 0.5) / 10)
    finer = at(10, load(batch=8), FREE, Buckets())
    assert finer.busy_workers == 8
    assert finer.step_seconds == pytest.approx(0.01 + 0.5)


def test_waiting_is_for_the_slowest() -> None:
    """3 grains on 2 workers: one waits for a grain, so on average half a grain is waited."""
    found = at(2, load(batch=12, fixed=True), FREE, Buckets())
    assert found.waiting == pytest.approx(0.5 * 0.04 / (2 * 0.04 + 0.5))


@pytest.mark.parametrize("sigma", [0.05, 0.3])
def test_stragglers_are_the_largest_of_lognormals(sigma: float) -> None:
    """The mean of the largest of 64, from its distribution Phi(log x / sigma)^64."""
    workload = load(batch=4, fixed=True, serial=0.0, spread=sigma)
    found = at(64, workload, FREE, Buckets(), "weak", trials=2000)
    x = np.linspace(0.0, math.exp(8 * sigma), 200_001)[1:]
    below = np.array([0.5 * (1 + math.erf(math.log(v) / sigma / math.sqrt(2))) for v in x[::20]])
    mean = float(np.sum(1.0 - below**64) * (x[20] - x[0]))
    assert found.step_seconds == pytest.approx(0.04 * mean, rel=0.01)


def test_a_slow_worker_is_slow_in_all_its_grains() -> None:
    """So its spread does not average out over many grains, as that of grains does."""
    loads = {
        "spread": load(batch=400, serial=0.0, spread=0.2),
        "stragglers": load(batch=400, serial=0.0, stragglers=0.2),
    }
    many = {
        what: at(32, workload, FREE, Buckets(), "weak", 200) for what, workload in loads.items()
    }
    # the largest of 32 normals is 2.07 on average; 100 grains a worker
    assert many["stragglers"].step_seconds == pytest.approx(4.0 * math.exp(0.2 * 2.07), rel=0.04)
    assert many["spread"].step_seconds == pytest.approx(4.0 * (1 + 0.02 + 0.02 * 2.07), rel=0.01)


def test_workers_of_one_node_slow_each_others_grains_and_updates() -> None:
    """Two in a node take 1.2 times as long, four twice: three 1.6 times. Not so across nodes."""
    workload = replace(load(batch=12, fixed=True), crowding={2: 1.2, 4: 2.0})
    in_one = flat(link(1e30, 0.0), name="node")
    for workers, grains, factor in ((1, 3, 1.0), (2, 2, 1.2), (3, 1, 1.6)):
        found = at(workers, workload, in_one, DDP).step_seconds
        assert found == pytest.approx(factor * (grains * 0.04 + 0.5))
    assert at(3, workload, FREE, DDP).step_seconds == pytest.approx(0.04 + 0.5)
    assert CLUSTERS["summit"].side_by_side(4) == 1  # its GPUs are not these cores


def test_measured_factors_are_drawn_as_they_were_measured() -> None:
    factors = measured_factors({4: [0.9, 1.0, 1.0, 1.1, 3.0], 8: [2.0, 2.0, 2.0]})
    assert factors == pytest.approx((0.9, 1, 1, 1, 1, 1, 1.1, 3.0))
    workload = replace(load(batch=4, fixed=True), grain_factors=factors)
    found = draw(workload, share_out(workload, 1000, "weak"), seed=0, trials=range(20))
    drawn = found.last / 0.04
    assert drawn.min() == pytest.approx(0.9)
    assert drawn.max() == pytest.approx(3.0)
    assert np.median(drawn) == pytest.approx(1.0)
    assert np.mean(drawn) == pytest.approx(np.mean(factors), rel=0.01)


# ---- the queue


def play_queue(
    ready: list[float],
    num_bytes: list[int],
    cost: Cost,
    policy: Queue,
    workers: int,
    agree: float,
    phase: float,
) -> float:
    """One trial, cycle by cycle, without skipping any."""
    period = max(policy.cycle_seconds, agree)
    now, link_free, done = phase * period, 0.0, 0
    while done < len(ready):
        new = [i for i in range(done, len(ready)) if ready[i] <= now]
        if not new:
            now += period
            continue
        agreed = now + agree + policy.message_seconds * workers * len(new)
        while new:
            fused = [new.pop(0)]
            while new and sum(num_bytes[i] for i in fused) + num_bytes[new[0]] <= (
                policy.fusion_bytes
            ):
                fused.append(new.pop(0))
            link_free = max(link_free, agreed) + cost(sum(num_bytes[i] for i in fused))
            done += len(fused)
        now = max(now + policy.cycle_seconds, max(link_free, agreed) if policy.waits else agreed)
    return link_free


@settings(deadline=None, max_examples=200)
@given(
    gaps=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 50), min_size=12, max_size=12),
    fusion=st.integers(0, 120),
    cycle=st.integers(1, 9),
    message=st.integers(0, 4),
    agree=st.integers(0, 12),
    fixed=st.integers(0, 5),
    phase=st.integers(0, 7),
    waits=st.booleans(),
)
def test_the_queue_against_one_played_cycle_by_cycle(
    gaps: list[int],
    sizes: list[int],
    fusion: int,
    cycle: int,
    message: int,
    agree: int,
    fixed: int,
    phase: int,
    waits: bool,
) -> None:
    """Eighths throughout: exact in floating point, so that both see the same cycles."""
    ready = np.cumsum(gaps) / 8.0
    num_bytes = sizes[: len(gaps)]
    cost = Cost(fixed / 8.0, 1.0 / 8.0)
    policy = Queue(
        cycle_seconds=cycle / 8.0, fusion_bytes=fusion, message_seconds=message / 64.0, waits=waits
    )
    both = np.stack([ready, ready + 0.125])  # two trials, so that rows must not mix
    found = run_queue(
        both,
        both[:, -1],
        num_bytes,
        cost,
        policy,
        workers=8,
        agree_seconds=agree / 8.0,
        phase=np.array([phase / 8.0, 0.0]),
    )
    for row, start in enumerate((phase / 8.0, 0.0)):
        times = both[row].tolist()
        expected = play_queue(times, num_bytes, cost, policy, 8, agree / 8.0, start)
        assert found.finished[row] == pytest.approx(expected)
        assert found.busy[row] >= found.hidden[row] >= 0.0


def test_a_queue_without_delay_is_static() -> None:
    workload = load(num_bytes=(30_000, 10_000, 60_000), spread=0.2)
    machine = flat(link(1e6, 0.0))
    static = at(5, workload, machine, Buckets(bucket_bytes=0, algorithm="ring"))
    queue = at(5, workload, machine, Queue(cycle_seconds=1e-7, fusion_bytes=0, message_seconds=0.0))
    assert queue.step_seconds == pytest.approx(static.step_seconds, rel=1e-5)
    assert queue.hidden == pytest.approx(static.hidden, rel=1e-3)


# ---- what must not change, or only one way


@settings(deadline=None, max_examples=40)
@given(
    workers=st.integers(2, 40),
    rate=st.floats(1e5, 1e9),
    latency=st.floats(0.0, 1e-2),
    worse=st.floats(1.0, 10.0),
    algorithm=st.sampled_from(["samepath", "ring", "tree"]),
)
def test_a_worse_link_never_helps_and_overlap_never_hurts(
    workers: int, rate: float, latency: float, worse: float, algorithm: str
) -> None:
    policy = Buckets(bucket_bytes=20_000, algorithm=algorithm)  # type: ignore[arg-type]
    workload = load(num_bytes=(10_000,) * 6, spread=0.1)

    def step(rate: float, latency: float, workload: Workload = workload) -> float:
        return at(workers, workload, flat(link(rate, latency)), policy).step_seconds

    best = step(rate, latency)
    assert step(rate / worse, latency) >= best - 1e-12
    assert step(rate, latency * worse) >= best - 1e-12
    assert step(rate, latency, replace(workload, tensor_ready=(1.0,) * 6)) >= best - 1e-12


@settings(deadline=None, max_examples=40)
@given(workers=st.integers(1, 300), more=st.integers(1, 300), seed=st.integers(0, 9))
def test_more_workers_wait_for_a_slower_slowest(workers: int, more: int, seed: int) -> None:
    """Draws are keyed by worker and grain, so this holds draw by draw, not only on average."""
    workload = load(batch=8, spread=0.2, stragglers=0.1)
    few, many = simulate(
        workload, FREE, [workers, workers + more], policy=DDP, scaling="weak", seed=seed, trials=5
    )
    assert many.low_seconds >= few.low_seconds - 1e-12
    assert many.high_seconds >= few.high_seconds - 1e-12
    assert many.efficiency <= few.efficiency + 1e-12


def test_a_seed_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load(spread=0.2, stragglers=0.1)
    for policy in (DDP, Queue()):
        first = simulate(workload, SLOW, [1, 3, 8], policy=policy, seed=3)
        assert simulate(workload, SLOW, [1, 3, 8], policy=policy, seed=3) == first
        assert simulate(workload, SLOW, [8, 3], policy=policy, seed=3) == (first[2], first[1])
        assert simulate(workload, SLOW, [1, 3, 8], policy=policy, seed=4) != first
        with monkeypatch.context() as patch:
            patch.setattr(module, "MOST_AT_ONCE", 100)  # a few trials at a time
            assert simulate(workload, SLOW, [1, 3, 8], policy=policy, seed=3) == first


def test_every_result_says_modelled() -> None:
    found = simulate(load(), SLOW, [1, 2], policy=DDP)
    assert {result.how for result in found} == {"modelled"}
    assert found[0].hidden is None
    assert found[0].efficiency == pytest.approx(1.0)


def test_buckets_are_filled_as_the_engine_does() -> None:
    import torch

    from samepath.engine.comm.tree_sum import lay_out

    sizes = (16, 160, 320, 16, 640, 32)
    tensors = [torch.empty(size, dtype=torch.float32) for size in sizes]
    _, lengths = lay_out(tensors, 2000)
    backward = [4 * size for size in reversed(sizes)]
    found, last = bucket_up(backward, Buckets(bucket_bytes=2000))
    assert found == [4 * length for length in lengths]
    assert last[-1] == len(sizes) - 1
    assert bucket_up([8, 8, 8, 8], Buckets(bucket_bytes=24, first_bucket_bytes=8)) == (
        [8, 24],
        [0, 3],
    )


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("latency", [0.0, 1e-4, 1e-3, 1.0])
def test_the_engine_and_the_model_cut_alike_on_a_link(
    workers: int, latency: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from samepath.engine.comm.collective import Alone
    from samepath.engine.comm.tree_sum import TreeSum

    cut: list[int] = []
    collective = Alone(torch.device("cpu"))
    collective.num_workers, collective.speed = workers, LinkSpeed(latency, 1e6)
    monkeypatch.setattr(collective, "bucket", lambda length, *_, **__: cut.append(4 * length))
    sizes = (16, 160, 320, 16, 640, 32)
    TreeSum(collective, [torch.empty(size) for size in sizes], exact=True)
    backward = tuple(4 * size for size in reversed(sizes))
    policies: list[Buckets] = []

    def look(*given: Any, **words: Any) -> Any:
        policies.append(given[4])
        return run_buckets(*given, **words)

    monkeypatch.setattr(module, "run_buckets", look)
    at(workers, load(num_bytes=backward), flat(link(1e6, latency)), Buckets())
    assert bucket_up(backward, policies[-1])[0] == cut
    assert {0.0: len(cut) == len(sizes), 1.0: len(cut) == 1}.get(latency, len(cut) > 1)


@pytest.mark.alone
@pytest.mark.parametrize("policy", [DDP, Buckets(), Queue()])
def test_1536_workers_take_seconds(policy: Policy) -> None:
    workload = load(batch=64, num_bytes=(600_000,) * 160, fixed=True, spread=0.05, stragglers=0.02)
    began = time.perf_counter()
    simulate(workload, CLUSTERS["summit"], [1536], policy=policy, scaling="weak")
    assert time.perf_counter() - began < 5.0


# ---- what was measured, to be simulated


def test_a_workload_is_what_was_measured() -> None:
    workload = workload_from(made())
    assert workload.grain_seconds == {1: 0.005, 2: 0.006, 4: 0.010}
    assert workload.crowding == {2: 1.25}
    assert (workload.batch_size, workload.grain_size) == (8, 4)
    assert len(workload.grain_factors) == 9  # too few of size 4 to stand alone
    many = made(grain_times={"2": (0.1, 0.9), "4": (0.009, 0.010, 0.012) * 20})
    factors = sorted(set(workload_from(many).grain_factors))
    assert factors == pytest.approx([0.9, 1.0, 1.2])
    assert workload_from(made(), batch_size=2).grain_size == 2
    assert workload_from(made(), batch_size=64, grain_size=2).grain_size == 2
    assert workload_from(made(grain_fixed=True), grain_size=4).grain_size == 4


def test_bad_input() -> None:
    with pytest.raises(UserError, match=r"normalises over a grain .* again with --grain 2"):
        workload_from(made(grain_fixed=True), grain_size=2)
    with pytest.raises(UserError, match="a batch of 0 in grains of None: both are at least 1"):
        workload_from(made(), batch_size=0)
    with pytest.raises(UserError, match="numbers from 1 on"):
        simulate(load(), FREE, [0, 2], policy=DDP)
    with pytest.raises(UserError, match="at least one"):
        simulate(load(), FREE, [2], policy=DDP, trials=0)
    with pytest.raises(UserError, match="at least 2"):
        measured_factors({4: [1.0]})


# ---- the clock of a study

batches, many_workers = st.integers(1, 200), st.integers(1, 300)
AFTER = {"gradient_bytes": 1000, "tensor_bytes": (1000,), "tensor_ready": (1.0,)}
"""One gradient, there when a grain is done: nothing of its reduction can hide."""


def told_seconds(workers: int) -> float:
    """Small records from all to all, beside the gradients."""
    return (1.0 + MESSAGE_LATENCIES * (workers - 2)) * 1e-3 if workers > 1 else 0.0


def parts(batch_size: int, workers: int, fixed: bool) -> tuple[float, float]:
    """Computing of the busiest worker, and the reduction, by hand."""
    size = 4 if fixed else min(4, -(-batch_size // workers))
    sizes = [min(size, batch_size - first) for first in range(0, batch_size, size)]
    seconds = np.interp(sizes, [1, 2, 4], [0.005, 0.006, 0.010])
    runs = assign(len(sizes), min(workers, len(sizes)))
    busy = len(runs)
    cost = reduction_cost(SLOW, busy, "samepath", num_grains=len(sizes))
    told = told_seconds(busy)
    return max(sum(seconds[run.start : run.stop]) for run in runs), max(cost(1000), told)


@given(batches, many_workers, st.booleans())
def test_a_step_of_the_clock_by_hand(batch_size: int, workers: int, fixed: bool) -> None:
    clock = Clock(made_clock(grain_fixed=fixed, **AFTER))
    compute, reduce = parts(batch_size, workers, fixed)
    found = clock.modelled(batch_size=batch_size, workers=workers)
    assert found == pytest.approx(0.002 + compute + reduce)
    early = Clock(made_clock(grain_fixed=fixed)).modelled(batch_size=batch_size, workers=workers)
    assert early <= found + 1e-9  # some of it hides behind the last grain


@given(batches, many_workers)
def test_a_stale_step_hides_the_reduction_and_not_the_records(batch: int, workers: int) -> None:
    compute, _ = parts(batch, workers, False)
    busy = min(workers, -(-batch // min(4, -(-batch // workers))))
    size = -(-batch // min(4, -(-batch // workers)))
    cost = reduction_cost(SLOW, busy, "samepath", num_grains=size)
    clock = Clock(made_clock(**AFTER))
    found = clock.modelled(batch_size=batch, workers=workers, mode="stale")
    told = compute + told_seconds(busy)
    assert found == pytest.approx(0.002 + max(cost(1000), told))


@given(batches, many_workers)
def test_asynchronous_updates_come_as_fast_as_the_server(batch: int, workers: int) -> None:
    clock = Clock(made_clock())
    server = 2 * (1e-3 + 1e-3) + 0.002  # in, update, out
    compute, _ = parts(batch, 1, False)
    found = clock.modelled(batch_size=batch, workers=workers, mode="asynchronous")
    assert found == pytest.approx(max((compute + server) / workers, server))


@given(batches, many_workers, st.sampled_from(["synchronous", "stale", "asynchronous"]))
def test_measured_is_said_only_of_what_was_measured(
    batch_size: int, workers: int, mode: Mode
) -> None:
    measured = {"64x2": 7.0, f"{batch_size}x1": 5.0}
    clock = Clock(made_clock(measured_step_seconds=measured))
    seconds, how = clock.step_seconds(batch_size=batch_size, workers=workers, mode=mode)
    known = mode == "synchronous" and (workers == 1 or (batch_size, workers) == (64, 2))
    assert how == ("measured" if known else "modelled")
    if not known:
        assert seconds == clock.modelled(batch_size=batch_size, workers=workers, mode=mode)
    assert clock.step_seconds(batch_size=64, workers=2) == (7.0, "measured")


def test_predictions_by_hand() -> None:
    """Over the link of this machine, whose workers slow each other down."""
    here = replace(link(1e6, 1e-3), name="here")
    measured = {"32x1": 40.0, "32x2": 25.0, "64x2": 50.0, "32x4": 20.0, "96x2": 1.0, "64x1": 80.0}
    facts = made_clock(local=here, crowding={"2": 1.5}, measured_step_seconds=measured)
    found = predictions(Clock(facts), batch_size=32)
    assert [(p.strategy, p.workers) for p in found] == [("strong", 2), ("strong", 4), ("weak", 2)]
    assert [p.measured_efficiency for p in found] == pytest.approx([0.8, 0.5, 0.8])
    local = Clock(replace(facts, network=here))
    alone, two, four, weak = (
        local.modelled(batch_size=batch, workers=k)
        for batch, k in ((32, 1), (32, 2), (32, 4), (64, 2))
    )
    assert alone == pytest.approx(0.082)
    assert two > 1.5 * (0.04 + 0.002)
    efficiencies = [p.modelled_efficiency for p in found]
    assert efficiencies == pytest.approx([alone / (2 * two), alone / (4 * four), alone / weak])
    unknown = made_clock(measured_step_seconds={"32x2": 25.0})
    assert predictions(Clock(unknown), batch_size=32) == []


def test_rows_are_sent_where_they_are_fewer() -> None:
    """samepath alone sends factors, and only while they are less than half of the matrix."""
    dense = load(num_bytes=(1000, 4_000_000))
    with_rows = replace(dense, row_bytes=(0.0, 10_000.0))
    assert with_rows.sent_bytes(32) == (1000, 160_000)
    assert with_rows.sent_bytes(200) == (1000, 1_000_000)
    assert with_rows.sent_bytes(201) == dense.sent_bytes(201) == (1000, 4_000_000)
    ours, fewer = (at(2, each, SLOW, Buckets()).step_seconds for each in (dense, with_rows))
    assert fewer < ours
    assert at(2, dense, SLOW, DDP) == at(2, with_rows, SLOW, DDP)
