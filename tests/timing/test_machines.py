"""Clusters of several levels: which links a reduction passes, and what that costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samepath.errors import UserError
from samepath.timing.links import (
    CLUSTERS,
    MESSAGE_LATENCIES,
    PRESETS,
    Algorithm,
    Cluster,
    Level,
    NetworkFacts,
    find_cluster,
    flat,
    reduction_cost,
    tree_seconds,
)


def link(bytes_per_second: float, latency_seconds: float) -> NetworkFacts:
    return NetworkFacts(
        name="x", how="given", bytes_per_second=bytes_per_second, latency_seconds=latency_seconds
    )


NESTED = Cluster(
    name="nested",
    levels=(
        Level(name="node", workers=4, network=link(100.0, 1.0)),
        Level(name="rack", workers=12, network=link(10.0, 10.0)),
        Level(name="machine", workers=None, network=link(20.0, 100.0)),
    ),
)
ALGORITHMS: tuple[Algorithm, ...] = ("samepath", "ring", "tree")


@given(workers=st.integers(2, 3000))
def test_a_flat_ring_is_the_textbook_one(workers: int) -> None:
    cost = reduction_cost(flat(link(50.0, 0.5)), workers, "ring")
    assert cost(1000.0) == pytest.approx(
        2 * (workers - 1) * 0.5 + 2 * (workers - 1) / workers * 1000.0 / 50.0
    )


def test_what_stays_in_a_node_pays_for_the_node_only() -> None:
    for algorithm in ALGORITHMS:
        inside = reduction_cost(NESTED, 4, algorithm)
        assert inside == reduction_cost(flat(link(100.0, 1.0)), 4, algorithm)


def test_a_ring_through_all_levels() -> None:
    """30 workers: 8 nodes (22 links inside), 3 racks (5 between nodes), 2 between racks."""
    cost = reduction_cost(NESTED, 30, "ring")
    assert cost.fixed_seconds == pytest.approx(2 * (22 * 1.0 + 5 * 10.0 + 2 * 100.0))
    assert cost.seconds_per_byte == pytest.approx(2 * 29 / 30 / 10.0)


def test_a_tree_through_all_levels() -> None:
    """30 workers: 4 in a node (depth 2), 3 nodes in a rack (2), 3 racks (2)."""
    assert tree_seconds(NESTED, 30) == pytest.approx(2 * (2 * 1.0 + 2 * 10.0 + 2 * 100.0))
    assert reduction_cost(NESTED, 30, "tree").seconds_per_byte == pytest.approx(2.0 / 10.0)


def test_everybody_to_everybody_shares_the_door_of_a_node() -> None:
    """24 workers, a sum each. Worker's door: 2 (23/24) bytes at 100/s; a node's: what 4 workers
    have for the 20 outside, at 10/s; a rack's: what 12 have for the other 12, at 20/s."""
    each = 2 * 23 / 24
    doors = [each / 100.0, 4 * each * 20 / 23 / 10.0, 12 * each * 12 / 23 / 20.0]
    cost = reduction_cost(NESTED, 24, "samepath")
    assert cost.seconds_per_byte == pytest.approx(max(doors))
    messages = 2 * (3 * 1.0 + 8 * 10.0 + 12 * 100.0)
    assert cost.fixed_seconds == pytest.approx(MESSAGE_LATENCIES * messages)
    assert cost.latency_seconds == pytest.approx(2 * (1 - MESSAGE_LATENCIES) * 100.0)


def test_messages_of_an_all_to_all_travel_together_those_of_a_ring_do_not() -> None:
    flat_link = flat(link(1e9, 1e-5))
    for workers in (2, 8, 64, 1536):
        ours = reduction_cost(flat_link, workers, "samepath")
        ring = reduction_cost(flat_link, workers, "ring")
        assert ours(0) == pytest.approx(2e-5 * (1 + (workers - 2) * MESSAGE_LATENCIES))
        assert ring(0) == ring.occupied(0) == pytest.approx(2e-5 * (workers - 1))


@given(workers=st.integers(1, 2000), more=st.integers(0, 500))
def test_more_workers_never_cost_less(workers: int, more: int) -> None:
    for cluster in (NESTED, *CLUSTERS.values()):
        for algorithm in ("ring", "tree"):
            few = reduction_cost(cluster, workers, algorithm)
            many = reduction_cost(cluster, workers + more, algorithm)
            assert many.fixed_seconds >= few.fixed_seconds
            assert many.seconds_per_byte >= few.seconds_per_byte


def test_one_worker_sends_nothing() -> None:
    assert {reduction_cost(NESTED, 1, a)(1e9) for a in ALGORITHMS} == {0.0}
    assert tree_seconds(NESTED, 1) == 0.0


def test_presets_by_name() -> None:
    assert set(PRESETS) < set(CLUSTERS)
    assert find_cluster(" 1gbe ") is CLUSTERS["1GbE"]
    assert find_cluster("summit").levels[0].workers == 6
    given_link = find_cluster("940Mbit/s:60us")
    assert given_link.levels[0].network.bytes_per_second == pytest.approx(117.5e6)
    here = link(3e9, 4e-6)
    assert find_cluster("here", here).levels[0].network is here
    assert find_cluster("here", here).side_by_side(2) == 2
    assert find_cluster("10GbE").side_by_side(2) == 1


def test_an_unknown_preset_lists_them_all() -> None:
    with pytest.raises(UserError) as error:
        find_cluster("infiniband")
    message = str(error.value)
    assert "\n" not in message
    assert all(name in message for name in CLUSTERS)
    assert ", here" not in message
    with pytest.raises(UserError, match="dgx-a100, here, or"):
        find_cluster("infiniband", link(1.0, 1.0))
    with pytest.raises(UserError, match="is not a bandwidth"):
        find_cluster("fast:60us")
