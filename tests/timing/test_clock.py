"""The clock's arithmetic: what a reduction sends, what a step is made of, what a link is called."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from samepath.errors import UserError
from samepath.plan import assign, reduction
from samepath.study.collect import predictions
from samepath.timing.links import (
    MESSAGE_LATENCIES,
    PRESETS,
    NetworkFacts,
    Traffic,
    fit_link,
    flat,
    parse_network,
    reduction_cost,
    traffic,
)
from samepath.timing.measured import ClockFacts
from samepath.timing.model import Clock, Mode
from samepath.timing.stopwatch import fit_steps, grain_sizes, normalises_over_grains
from samepath.timing.stopwatch_worker import StepShape

FREE = NetworkFacts(name="free", how="given", bytes_per_second=1e30, latency_seconds=0.0)
SLOW = NetworkFacts(name="slow", how="given", bytes_per_second=1e6, latency_seconds=1e-3)


def clock(
    *,
    network: NetworkFacts = SLOW,
    serial: float = 0.5,
    per_grain: float = 0.25,
    per_example: float = 1.0,
    grain_size: int = 8,
    fixed: bool = False,
    measured: dict[str, float] | None = None,
) -> Clock:
    """A clock whose grain of g examples takes per_grain + g * per_example."""
    sizes = grain_sizes(grain_size, fixed=fixed)
    return Clock(
        ClockFacts(
            network=network,
            local=network,
            gradient_bytes=1_000_000,
            serial_seconds=serial,
            grain_seconds={str(size): per_grain + size * per_example for size in sizes},
            measured_step_seconds=measured or {},
            threads=1,
            machine="imagined",
            grain_size=grain_size,
            grain_fixed=fixed,
            busy_cores=0.0,
        )
    )


# ---- names of links


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_found_whatever_the_case(name: str) -> None:
    assert parse_network(name.upper()) == parse_network(f" {name.lower()} ") == PRESETS[name]
    assert PRESETS[name].how == "preset"
    assert PRESETS[name].name == name


def test_presets_become_faster() -> None:
    links = list(PRESETS.values())
    assert [n.name for n in links] == ["1GbE", "10GbE", "100Gb", "NVLink"]
    assert links == sorted(links, key=lambda n: (n.bytes_per_second, -n.latency_seconds))
    assert links == sorted(links, key=lambda n: -n.latency_seconds)


def test_here_is_for_later() -> None:
    assert parse_network("Here") == "here"


@pytest.mark.parametrize(
    ("text", "bytes_per_second", "latency_seconds"),
    [
        ("940Mbit/s:60us", 117.5e6, 60e-6),
        ("11.6GB/s:2us", 11.6e9, 2e-6),
        ("10Gbps:0.03ms", 1.25e9, 30e-6),
        ("1Gb/s : 1 s", 0.125e9, 1.0),
        ("512kB/s:500ns", 512e3, 5e-7),
        ("1MiB/s:5µs", 2**20, 5e-6),
        ("25 Gbit/s:0us", 3.125e9, 0.0),
    ],
)
def test_a_measured_link(text: str, bytes_per_second: float, latency_seconds: float) -> None:
    found = parse_network(text)
    assert isinstance(found, NetworkFacts)
    assert (found.name, found.how) == (text, "given")
    assert found.bytes_per_second == pytest.approx(bytes_per_second, rel=1e-12)
    assert found.latency_seconds == pytest.approx(latency_seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nvlnk", "did you mean NVLink?"),
        ("10gb", "did you mean 10GbE?"),
        ("hree", "did you mean here?"),
        ("token ring", "use 1GbE, 10GbE, 100Gb, NVLink, here"),
        ("", "use 1GbE, 10GbE, 100Gb, NVLink, here"),
        ("940Mbit/s", "the latency is missing; write it like 940Mbit/s:60us"),
        ("940Mbit/s:60", "'60' is not a time; write it like 940Mbit/s:60us"),
        ("940:60us", "'940' is not a bandwidth; write it like 940Mbit/s"),
        ("60us:940Mbit/s", "'60us' is not a bandwidth"),
        ("-1GB/s:2us", "'-1GB/s' is not a bandwidth"),
        ("1.2.3GB/s:2us", "'1.2.3' is not a number"),
        ("0GB/s:2us", "a bandwidth of 0 carries nothing"),
    ],
)
def test_a_wrong_link_says_what_to_type(text: str, says: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_network(text)
    message = str(raised.value)
    assert message.startswith(f"--network {text}")
    assert says in message
    assert "\n" not in message


# ---- what a reduction sends

workers_and_grains = st.tuples(st.integers(1, 70), st.integers(1, 300))


def sent_and_received(workers: int, num_grains: int) -> list[tuple[float, float]]:
    """By each worker, in gradients: every message of NetworkBucket, one by one."""
    sums = reduction(num_grains, workers).num_sums
    sent, received = [0.0] * workers, [0.0] * workers
    for a in range(workers):
        for b in range(workers):
            if a != b:
                chunks = sums[a] + 1  # b's chunk of a's sums; then a's chunk of the totals
                sent[a] += chunks / workers
                received[b] += chunks / workers
    return list(zip(sent, received, strict=True))


@given(workers_and_grains)
def test_traffic_is_the_slowest_workers(case: tuple[int, int]) -> None:
    workers, num_grains = case
    assume(1 < workers <= num_grains)
    expected = max(max(both) for both in sent_and_received(workers, num_grains))
    assert traffic(workers, num_grains).gradients == pytest.approx(expected)
    messages = sum(traffic(workers, num_grains)[:2])
    assert messages == 2 * (workers - 1)


@given(workers_and_grains)
def test_never_less_than_a_ring(case: tuple[int, int]) -> None:
    workers, num_grains = case
    active = min(case)
    found = traffic(workers, num_grains)
    ring = 2 * (active - 1) / active
    assert found.gradients >= ring - 1e-12
    if max(reduction(num_grains, active).num_sums) == 1:
        assert found.gradients == pytest.approx(ring)


def test_traffic_by_hand() -> None:
    assert traffic(1, 8) == Traffic(0, 0, 0.0)
    assert traffic(2, 8) == Traffic(2, 0, 1.0)
    assert traffic(2, 6) == Traffic(2, 0, 1.5)  # two sums each: one gradient out, half of one back
    assert traffic(4, 8) == Traffic(2, 4, 1.5)
    assert traffic(100, 4) == traffic(4, 4)  # 96 of them have nothing to do


@given(workers_and_grains)
def test_reduction_time(case: tuple[int, int]) -> None:
    workers, num_grains = case
    found = traffic(workers, num_grains)
    expected = (found.rounds + MESSAGE_LATENCIES * found.further) * 1e-3 + found.gradients * 2.0
    cost = reduction_cost(flat(SLOW), min(case), "samepath", num_grains=num_grains)
    assert cost(2_000_000) == pytest.approx(expected)


@given(st.floats(1e-7, 1e-2), st.floats(1e5, 1e12), st.integers(0, 2**32))
def test_a_link_is_found_again(latency: float, bandwidth: float, seed: int) -> None:
    """From times that are a little wrong, one of them by much."""
    draws = random.Random(seed)
    samples = []
    for rounds, share in ((2, 1.0), (2, 1.5)):
        for size in (latency * bandwidth * 4.0**power for power in range(-4, 5)):
            seconds = rounds * latency + share * size / bandwidth
            samples.append((rounds, share * size, seconds * draws.uniform(0.98, 1.02)))
    bad = draws.randrange(len(samples))
    samples[bad] = (*samples[bad][:2], samples[bad][2] * 5)
    found_latency, found_bandwidth = fit_link(samples)
    assert found_latency == pytest.approx(latency, rel=0.1)
    assert found_bandwidth == pytest.approx(bandwidth, rel=0.1)


# ---- what a step is made of


@given(
    st.floats(0, 10),
    st.dictionaries(st.integers(1, 64), st.floats(1e-6, 10), min_size=1),
    st.lists(st.integers(1, 16), min_size=2, unique=True),
)
def test_exact_steps_are_taken_apart_exactly(
    serial: float, grains: dict[int, float], numbers: list[int]
) -> None:
    steps = {
        StepShape(number * size, size): serial + number * seconds
        for size, seconds in grains.items()
        for number in numbers
    }
    found_serial, found = fit_steps(steps)
    assert found_serial == pytest.approx(serial, abs=1e-8)
    assert found == pytest.approx(grains, abs=1e-8)
    assert list(found) == sorted(grains)


shapes = st.integers(1, 9).map(lambda number: StepShape(number * 4, 4))


@given(st.dictionaries(shapes, st.floats(1e-9, 1e3), min_size=1))
def test_no_noise_makes_a_time_negative(steps: dict[StepShape, float]) -> None:
    serial, grains = fit_steps(steps)
    assert serial >= 0
    assert all(seconds >= 0 for seconds in grains.values())


def test_one_bad_time_is_outvoted() -> None:
    steps = {StepShape(8 * n, 8): 1.0 + 2.0 * n for n in (1, 2, 4, 8)}
    steps[StepShape(16, 8)] *= 10
    serial, grains = fit_steps(steps)
    assert serial == pytest.approx(1.0, abs=0.5)
    assert grains[8] == pytest.approx(2.0, rel=0.1)


def test_without_a_line_everything_is_grains() -> None:
    assert fit_steps({StepShape(8, 8): 3.0}) == (0.0, {8: 3.0})


def test_sizes_to_time() -> None:
    assert grain_sizes(1, fixed=False) == [1]
    assert grain_sizes(8, fixed=False) == [1, 2, 4, 8]
    assert grain_sizes(12, fixed=False) == [1, 2, 4, 8, 12]
    assert grain_sizes(12, fixed=True) == [12]


def test_only_batch_norm_fixes_grains() -> None:
    assert normalises_over_grains(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm3d(1)))
    assert normalises_over_grains(nn.SyncBatchNorm(1))
    assert not normalises_over_grains(nn.Sequential(nn.GroupNorm(1, 1), nn.InstanceNorm2d(1)))


# ---- the clock

batches = st.integers(1, 200)
many = st.integers(1, 300)
modes = st.sampled_from(["synchronous", "stale", "asynchronous"])


def test_a_step_by_hand() -> None:
    """33 examples, grains of 8: three workers have 2, 2 and 1 grains, the last of one example."""
    assert [len(run) for run in assign(5, 3)] == [2, 2, 1]
    made = clock()
    assert made.compute_seconds(batch_size=33, workers=3) == pytest.approx(2 * 8.25)
    assert made.compute_seconds(batch_size=33, workers=1) == pytest.approx(4 * 8.25 + 1.25)
    reduced = 2.25e-3 + traffic(3, 5).gradients  # two exchanges, two further messages
    assert made.modelled(batch_size=33, workers=3) == pytest.approx(0.5 + 16.5 + reduced)
    # grains of 3 for 11 workers: the line between the sizes 2 and 4
    assert made.grain_size(batch_size=33, workers=11) == 3
    assert made.compute_seconds(batch_size=33, workers=11) == pytest.approx(3.25)


def test_fixed_grains_leave_workers_idle() -> None:
    finer, fixed = clock(), clock(fixed=True)
    for workers in (1, 2, 4):
        seconds = [c.modelled(batch_size=32, workers=workers) for c in (finer, fixed)]
        assert seconds[0] == seconds[1]
    assert fixed.modelled(batch_size=32, workers=64) == fixed.modelled(batch_size=32, workers=4)
    assert fixed.grain_size(batch_size=5, workers=2) == 5
    assert finer.compute_seconds(batch_size=32, workers=16) == pytest.approx(2.25)


@given(batches, many, st.booleans())
def test_without_a_network_more_workers_never_cost_and_never_more_than_pay(
    batch_size: int, workers: int, fixed: bool
) -> None:
    made = clock(network=FREE, fixed=fixed)
    alone = made.modelled(batch_size=batch_size, workers=1)
    together = made.modelled(batch_size=batch_size, workers=workers)
    assert together <= alone + 1e-9
    # a short grain of a model with fixed grains counts as a whole one: it is not measured
    assert workers * together >= alone - 1e-9


@given(batches, many, st.booleans())
def test_a_stale_step_hides_the_shorter_part(batch_size: int, workers: int, fixed: bool) -> None:
    made = clock(fixed=fixed, per_example=0.2)
    compute = made.compute_seconds(batch_size=batch_size, workers=workers)
    reduce = made.reduction_seconds(batch_size=batch_size, workers=workers)
    stale = made.modelled(batch_size=batch_size, workers=workers, mode="stale")
    waiting = made.modelled(batch_size=batch_size, workers=workers)
    assert stale == pytest.approx(0.5 + max(compute, reduce))
    assert waiting == pytest.approx(0.5 + compute + reduce)


@given(batches, many)
def test_asynchronous_updates_come_as_fast_as_the_server(batch_size: int, workers: int) -> None:
    made = clock()
    compute = made.compute_seconds(batch_size=batch_size, workers=1)
    server = 2 * (1e-3 + 1.0) + 0.5  # in, update, out
    update = made.modelled(batch_size=batch_size, workers=workers, mode="asynchronous")
    assert update == pytest.approx(max((compute + server) / workers, server))
    free = clock(network=FREE)
    assert free.modelled(batch_size=batch_size, workers=1, mode="asynchronous") == pytest.approx(
        free.modelled(batch_size=batch_size, workers=1)
    )


@given(batches, many, modes)
def test_measured_is_said_only_of_what_was_measured(
    batch_size: int, workers: int, mode: Mode
) -> None:
    made = clock(measured={"64x2": 7.0, f"{batch_size}x1": 5.0})
    seconds, how = made.step_seconds(batch_size=batch_size, workers=workers, mode=mode)
    known = mode == "synchronous" and (workers == 1 or (batch_size, workers) == (64, 2))
    assert how == ("measured" if known else "modelled")
    if not known:
        assert seconds == made.modelled(batch_size=batch_size, workers=workers, mode=mode)
    assert made.step_seconds(batch_size=64, workers=2) == (7.0, "measured")


def test_predictions_by_hand() -> None:
    measured = {"32x1": 40.0, "32x2": 25.0, "64x2": 50.0, "32x4": 20.0, "96x2": 1.0, "64x1": 80.0}
    made = clock(measured=measured)
    found = predictions(made, batch_size=32)
    assert [(p.strategy, p.workers) for p in found] == [("strong", 2), ("strong", 4), ("weak", 2)]
    assert [p.measured_efficiency for p in found] == pytest.approx([0.8, 0.5, 0.8])
    alone = 0.5 + 4 * 8.25
    assert [p.modelled_efficiency for p in found] == pytest.approx(
        [
            alone / (2 * made.modelled(batch_size=32, workers=2)),
            alone / (4 * made.modelled(batch_size=32, workers=4)),
            alone / made.modelled(batch_size=64, workers=2),
        ]
    )


def test_nothing_to_predict_without_a_step_alone() -> None:
    assert predictions(clock(measured={"32x2": 25.0}), batch_size=32) == []


def test_a_better_network_only_helps() -> None:
    times = [
        Clock(replace(clock().facts, network=network)).modelled(batch_size=64, workers=8)
        for network in PRESETS.values()
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
