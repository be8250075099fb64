"""Links and clusters: what they are called, what a reduction sends, and what that costs."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from measured_steps import link

from samepath.errors import UserError
from samepath.plan import LinkSpeed, reduction, whole_bytes
from samepath.plan.link import MESSAGE_LATENCIES, empty_seconds
from samepath.timing.links import (
    CLUSTERS,
    PRESETS,
    Algorithm,
    Cluster,
    Level,
    NetworkFacts,
    Sample,
    Traffic,
    find_cluster,
    flat,
    in_nodes,
    link_of,
    parse_network,
    reduction_cost,
    speed_seen,
    traffic,
    tree_seconds,
)

# ---- names of links and clusters


def test_presets_are_found_whatever_the_case_and_become_faster() -> None:
    for name, preset in PRESETS.items():
        assert parse_network(name.upper()) == parse_network(f" {name.lower()} ") == preset
        assert (preset.name, preset.how) == (name, "preset")
    links = list(PRESETS.values())
    assert [n.name for n in links] == ["1GbE", "10GbE", "100Gb", "NVLink"]
    assert links == sorted(links, key=lambda n: n.bytes_per_second)
    assert links == sorted(links, key=lambda n: -n.latency_seconds)
    assert parse_network("Here") == "here"  # measured later


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


def test_clusters_by_name() -> None:
    assert set(PRESETS) < set(CLUSTERS)
    assert find_cluster(" 1gbe ") is CLUSTERS["1GbE"]
    assert find_cluster("summit").levels[0].workers == 6
    assert find_cluster("940Mbit/s:60us").levels[0].network == parse_network("940Mbit/s:60us")
    here = link(3e9, 4e-6)
    assert find_cluster("here", here).levels[0].network is here
    assert find_cluster("here", here).side_by_side(2) == 2
    assert find_cluster("10GbE").side_by_side(2) == 1
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        find_cluster("infiniband")
    assert all(name in str(error.value) for name in CLUSTERS)
    assert ", here" not in str(error.value)
    with pytest.raises(UserError, match=r"dgx-a100, here \(or"):
        find_cluster("infiniband", here)
    with pytest.raises(UserError, match="is not a bandwidth"):
        find_cluster("fast:60us")


def test_clusters_with_other_nodes() -> None:
    here = link(3e9, 4e-6)
    pairs = in_nodes(find_cluster("1GbE"), 2, here)
    assert [(level.name, level.workers) for level in pairs.levels] == [
        ("node", 2),
        ("machine", None),
    ]
    assert pairs.levels[0].network is here
    assert [pairs.side_by_side(n) for n in (1, 2, 8)] == [1, 2, 2], "computers like this one"
    racks = in_nodes(find_cluster("10GbE-racks"), 3, here)
    assert [level.workers for level in racks.levels] == [3, 120, None], "forty nodes in a rack"
    assert racks.levels[0].network is find_cluster("10GbE-racks").levels[0].network
    assert racks.side_by_side(3) == 1
    assert in_nodes(find_cluster("1GbE-pairs"), 1, here).workers_per_node == 1


# ---- what a reduction sends

workers_and_grains = st.tuples(st.integers(1, 70), st.integers(1, 300))


@given(workers_and_grains)
def test_traffic_is_the_slowest_workers_and_never_less_than_a_rings(case: tuple[int, int]) -> None:
    """Every message of NetworkBucket, one by one."""
    workers, num_grains = case
    assume(1 < workers <= num_grains)
    sums = reduction(num_grains, workers).num_sums
    sent, received = [0.0] * workers, [0.0] * workers
    for a in range(workers):
        for b in range(workers):
            if a != b:
                chunks = sums[a] + 1  # b's chunk of a's sums; then a's chunk of the totals
                sent[a] += chunks / workers
                received[b] += chunks / workers
    few = whole_bytes(sums)
    whole = traffic(workers, num_grains, few)  # all sums of all workers, at once
    assert whole.gradients == max(*(n * (workers - 1) for n in sums), sum(sums) - min(sums))
    assert (whole.rounds, whole.further) == (1, workers - 2)
    assert traffic(workers, num_grains, few + 1) == traffic(workers, num_grains)
    found = traffic(workers, num_grains)
    assert found.gradients == pytest.approx(max(*sent, *received))
    assert found.rounds + found.further == 2 * (workers - 1)
    ring = 2 * (workers - 1) / workers
    assert found.gradients >= ring - 1e-12
    if max(sums) == 1:
        assert found.gradients == pytest.approx(ring)


def test_traffic_by_hand() -> None:
    assert traffic(1, 8) == Traffic(0, 0, 0.0)
    assert traffic(2, 8) == Traffic(2, 0, 1.0)
    assert traffic(2, 8, 1000) == Traffic(1, 0, 1.0)
    assert traffic(2, 6) == Traffic(2, 0, 1.5)  # two sums each: one gradient out, half of one back
    assert traffic(4, 8) == Traffic(2, 4, 1.5)
    assert traffic(100, 4) == traffic(4, 4)  # 96 of them have nothing to do


# ---- what it costs

NESTED = Cluster(
    name="nested",
    levels=(
        Level(name="node", workers=4, network=link(100.0, 1.0)),
        Level(name="rack", workers=12, network=link(10.0, 10.0)),
        Level(name="machine", workers=None, network=link(20.0, 100.0)),
    ),
)
ALGORITHMS: tuple[Algorithm, ...] = ("samepath", "ring", "tree")


@given(workers_and_grains)
def test_our_reduction_on_a_flat_link(case: tuple[int, int]) -> None:
    workers, num_grains = case
    cost = reduction_cost(flat(link(1e6, 1e-3)), min(case), "samepath", num_grains=num_grains)
    for num_bytes in (100, 2_000_000):
        found = traffic(workers, num_grains, num_bytes, LinkSpeed(1e-3, 1e6))
        expected = (found.rounds + MESSAGE_LATENCIES * found.further) * 1e-3
        assert cost(num_bytes) == pytest.approx(expected + found.gradients * num_bytes / 1e6)


@given(workers=st.integers(2, 3000))
def test_the_speed_that_workers_would_measure(workers: int) -> None:
    """On a flat link its own; in a node none, as workers share memory; beyond, what an exchange
    between all of them takes."""
    seen = speed_seen(flat(link(1e6, 1e-3)), workers)
    assert seen is not None
    assert (seen.latency_seconds, seen.bytes_per_second) == pytest.approx((1e-3, 1e6))
    assert speed_seen(flat(link(1e6, 1e-3), name="node"), workers) is None
    nested = speed_seen(NESTED, workers)
    assert (nested is None) == (workers <= 4)
    if nested is not None:
        cost = reduction_cost(NESTED, workers, "samepath")
        empty = empty_seconds(workers, nested.latency_seconds)
        assert cost.fixed_seconds + cost.latency_seconds == pytest.approx(2 * empty)
        chunks = 2 * (workers - 1) / workers
        assert cost.seconds_per_byte == pytest.approx(chunks / nested.bytes_per_second)


@given(workers=st.integers(2, 3000))
def test_a_flat_ring_is_the_textbook_one(workers: int) -> None:
    cost = reduction_cost(flat(link(50.0, 0.5)), workers, "ring")
    assert cost(0) == cost.occupied(0) == pytest.approx((workers - 1) * 1.0)
    assert cost(1000.0) == pytest.approx(cost(0) + 2 * (workers - 1) / workers * 1000.0 / 50.0)


def test_what_stays_in_a_node_pays_for_the_node_only() -> None:
    for algorithm in ALGORITHMS:
        inside = reduction_cost(NESTED, 4, algorithm)
        assert inside == reduction_cost(flat(link(100.0, 1.0), name="node"), 4, algorithm)
        assert reduction_cost(NESTED, 1, algorithm)(1e9) == 0.0
    assert tree_seconds(NESTED, 1) == 0.0


def test_rings_and_trees_through_all_levels() -> None:
    """30 workers: 8 nodes (22 links inside), 3 racks (5 between nodes), 2 between racks. A tree: 4
    in a node (depth 2), 3 nodes in a rack (2), 3 racks (2)."""
    cost = reduction_cost(NESTED, 30, "ring")
    assert cost.fixed_seconds == pytest.approx(2 * (22 * 1.0 + 5 * 10.0 + 2 * 100.0))
    assert cost.seconds_per_byte == pytest.approx(2 * 29 / 30 / 10.0)
    assert tree_seconds(NESTED, 30) == pytest.approx(2 * (2 * 1.0 + 2 * 10.0 + 2 * 100.0))
    assert reduction_cost(NESTED, 30, "tree").seconds_per_byte == pytest.approx(2.0 / 10.0)


def test_an_all_to_all_shares_the_door_of_a_node() -> None:
    """24 workers, a sum each. Worker's door: 2 (23/24) bytes at 100/s; a node's: what 4 workers
    have for the 20 outside, at 10/s; a rack's: what 12 have for the other 12, at 20/s."""
    each = 2 * 23 / 24
    doors = [each / 100.0, 4 * each * 20 / 23 / 10.0, 12 * each * 12 / 23 / 20.0]
    cost = reduction_cost(NESTED, 24, "samepath")
    assert cost.seconds_per_byte == pytest.approx(max(doors))
    messages = 2 * (3 * 1.0 + 8 * 10.0 + 12 * 100.0)
    assert cost.fixed_seconds == pytest.approx(MESSAGE_LATENCIES * messages)
    assert cost.latency_seconds == pytest.approx(2 * (1 - MESSAGE_LATENCIES) * 100.0)


@given(workers=st.integers(1, 2000), more=st.integers(0, 500))
def test_more_workers_never_cost_less(workers: int, more: int) -> None:
    for cluster in (NESTED, *CLUSTERS.values()):
        for algorithm in ("ring", "tree"):
            few = reduction_cost(cluster, workers, algorithm)
            many = reduction_cost(cluster, workers + more, algorithm)
            assert many.fixed_seconds >= few.fixed_seconds
            assert many.seconds_per_byte >= few.seconds_per_byte


@given(st.floats(1e-7, 1e-2), st.floats(1e5, 1e12), st.integers(0, 2**32))
def test_a_link_is_found_again(latency: float, bandwidth: float, seed: int) -> None:
    """From times that are a little wrong, one of them by much."""
    draws = random.Random(seed)
    samples = []
    for rounds, share in ((2, 1.0), (2, 1.5)):
        for size in (latency * bandwidth * 4.0**power for power in range(-4, 5)):
            seconds = rounds * latency + share * size / bandwidth
            samples.append(Sample(rounds, share * size, seconds * draws.uniform(0.98, 1.02), 0.0))
    bad = draws.randrange(len(samples))
    samples[bad] = samples[bad]._replace(seconds=samples[bad].seconds * 5)
    found = link_of(samples, "found again")
    assert found.latency_seconds == pytest.approx(latency, rel=0.1)
    assert found.bytes_per_second == pytest.approx(bandwidth, rel=0.1)
