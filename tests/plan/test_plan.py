"""The plan is arithmetic: these are its theorems, checked on whatever hypothesis thinks of."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samepath.errors import UserError
from samepath.plan import (
    LinkSpeed,
    Plan,
    Reduction,
    assign,
    bucket_bytes,
    divide,
    epoch_order,
    grain_size_for,
    reduction,
    settled,
    whole_bytes,
)
from samepath.plan.link import (
    BUCKET_BYTES,
    ROUND_BYTES,
    SLOWER,
    WHOLE_BYTES,
    empty_seconds,
    parse_speed,
)
from samepath.plan.tree import reduction_of

seeds = st.integers(0, 2**63 - 1)
counts = st.integers(1, 200)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    num_examples = draw(st.integers(1, 300))
    batch_size = draw(st.integers(1, num_examples))
    grain_size = draw(st.integers(1, batch_size))
    return Plan(
        num_examples=num_examples, batch_size=batch_size, grain_size=grain_size, seed=draw(seeds)
    )


# ---- order


@given(plans(), st.integers(0, 5))
def test_every_example_exactly_once_per_epoch(plan: Plan, epoch: int) -> None:
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    batches = [plan.batch(step) for step in steps]
    assert [batch.step for batch in batches] == list(steps)
    assert {batch.epoch for batch in batches} == {epoch}
    seen = np.concatenate([batch.examples for batch in batches])
    assert sorted(seen) == list(range(plan.num_examples))


@given(plans(), st.integers(0, 3))
def test_drop_last_leaves_out_the_short_batch_and_nothing_else(plan: Plan, epoch: int) -> None:
    cut, whole = replace(plan, drop_last=True), plan.num_examples // plan.batch_size
    assert cut.steps_per_epoch == whole
    for place in range(whole):
        batch = cut.batch(epoch * whole + place)
        assert batch.epoch == epoch
        same = plan.batch(epoch * plan.steps_per_epoch + place)
        np.testing.assert_array_equal(batch.examples, same.examples)
        assert len(batch.examples) == plan.batch_size


@given(plans())
def test_only_the_last_batch_and_grain_are_short(plan: Plan) -> None:
    batches = [plan.batch(step) for step in range(plan.steps_per_epoch)]
    assert all(len(batch.examples) == plan.batch_size for batch in batches[:-1])
    assert len(batches[-1].examples) == (plan.num_examples - 1) % plan.batch_size + 1
    for batch in batches:
        grains = [batch.grain(number) for number in range(batch.num_grains)]
        np.testing.assert_array_equal(np.concatenate(grains), batch.examples)
        assert all(len(grain) == plan.grain_size for grain in grains[:-1])
        assert 1 <= len(grains[-1]) <= plan.grain_size
    assert batches[0].num_grains == plan.num_grains


@given(plans(), st.integers(0, 20))
def test_order_depends_on_seed_and_epoch_only(plan: Plan, epoch: int) -> None:
    """Not on batch or grain size, nor on which epochs were asked for before."""
    order = epoch_order(plan.num_examples, plan.seed, epoch).copy()
    epoch_order.cache_clear()
    for other in range(6):  # more than the cache holds
        epoch_order(plan.num_examples, plan.seed + 1, other)
    np.testing.assert_array_equal(epoch_order(plan.num_examples, plan.seed, epoch), order)
    first = epoch * plan.steps_per_epoch
    steps = range(first, first + plan.steps_per_epoch)
    ours = np.concatenate([plan.batch(step).examples for step in steps])
    np.testing.assert_array_equal(ours, order)


@given(seeds, seeds, st.integers(0, 1000), st.integers(0, 1000))
def test_orders_differ_between_seeds_and_epochs(
    seed: int, other_seed: int, epoch: int, other_epoch: int
) -> None:
    """Swapped words too: seed 1, epoch 2 is not seed 2, epoch 1."""
    same = np.array_equal(epoch_order(100, seed, epoch), epoch_order(100, other_seed, other_epoch))
    assert same == ((seed, epoch) == (other_seed, other_epoch))
    if seed != epoch:
        assert not np.array_equal(epoch_order(100, seed, epoch), epoch_order(100, epoch, seed))


def test_orders_are_shuffled_evenly() -> None:
    """Each place holds each example about as often; the spread is that of chance."""
    places = np.stack([epoch_order(10, 1, epoch) for epoch in range(5000)])
    for place in range(10):
        counts = np.bincount(places[:, place], minlength=10)
        assert abs(counts - 500).max() < 5 * math.sqrt(500 * 0.9)


def test_the_order_of_one_epoch_is_pinned() -> None:
    """A change here changes everybody's runs: do it on purpose, and say so."""
    order = epoch_order(8, 0, 0)
    assert order.tolist() == [7, 4, 2, 1, 5, 3, 6, 0]
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 3


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((0, 1, 1), "num_examples is 0"),
        ((4, 0, 1), "batch_size is 0"),
        ((4, 2, 0), "grain_size is 0"),
        ((4, 5, 1), "a batch of 5 is larger than the data"),
        ((4, 2, 3), "a grain of 3 is larger than the batch"),
    ],
)
def test_sizes_that_make_no_plan(sizes: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Plan(num_examples=sizes[0], batch_size=sizes[1], grain_size=sizes[2], seed=0)


# ---- grains from the most workers


def test_the_grain_is_the_largest_that_lets_so_many_take_part() -> None:
    for batch in range(1, 65):
        for most in range(1, batch + 1):
            share = math.ceil(batch / most)
            lets = [g for g in range(1, share + 1) if math.ceil(batch / g) >= most]
            assert grain_size_for(batch, most) == max(lets)


@given(st.integers(1, 200), st.data())
def test_where_they_share_evenly_each_has_one_grain(share: int, data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 64))
    size = grain_size_for(share * most, most)
    plan = Plan(num_examples=share * most, batch_size=share * most, grain_size=size, seed=0)
    division = divide(plan.batch(0), most, exact=True)
    assert (size, plan.num_grains, division.most_grains) == (share, most, 1)


# ---- assignment

costs_of_some = st.lists(st.integers(1, 1000), min_size=1, max_size=12).map(tuple)


@given(counts, counts | costs_of_some)
def test_every_grain_to_exactly_one_worker(num_grains: int, workers: int | tuple[int, ...]) -> None:
    """And no worker idles while there are grains, whether workers are equally fast or not."""
    num_workers, costs = (workers, ()) if isinstance(workers, int) else (len(workers), workers)
    runs = assign(num_grains, num_workers, costs)
    assert len(runs) == num_workers
    assert list(itertools.chain(*runs)) == list(range(num_grains))
    assert all(run.step == 1 for run in runs)
    assert sum(len(run) > 0 for run in runs) == min(num_grains, num_workers)
    assert expression(reduction(num_grains, num_workers, costs)) == tree(num_grains)


@given(counts, counts, st.none() | st.integers(1, 500))
def test_balance(num_grains: int, num_workers: int, cost: int | None) -> None:
    """Equal costs are no costs."""
    costs = () if cost is None else (cost,) * num_workers
    longest = max(len(run) for run in assign(num_grains, num_workers, costs))
    assert longest <= max(-(-num_grains // num_workers), 1.05 * num_grains / num_workers)
    assert assign(num_grains, num_workers, (1,) * num_workers) == assign(num_grains, num_workers)


@given(
    st.integers(1, 10),
    st.lists(st.integers(1, 400), min_size=1, max_size=4).map(tuple),
)
def test_nobody_could_be_done_sooner(more: int, costs: tuple[int, ...]) -> None:
    """Against all ways there are to give everybody some grains."""
    num_grains = len(costs) + more
    ways = (
        [b - a for a, b in itertools.pairwise((0, *cuts, num_grains))]
        for cuts in itertools.combinations(range(1, num_grains), len(costs) - 1)
    )
    best = min(max(map(operator.mul, way, costs)) for way in ways)
    ideal = num_grains / sum(1 / cost for cost in costs)
    runs = assign(num_grains, len(costs), costs)
    assert max(map(operator.mul, map(len, runs), costs)) <= max(best, 1.05 * ideal)


def test_cuts_fall_where_few_sums_travel() -> None:
    """5 and 3 of 8 would take as long as 6 and 2, and ship one sum more."""
    assert [len(run) for run in assign(8, 2, (100, 200))] == [6, 2]
    assert reduction(8, 2, (100, 200)).num_sums == (2, 1)
    assert [len(run) for run in assign(64, 2, (100, 200))] == [44, 20]
    assert max(reduction(1024, 2, (100, 200)).num_sums) <= 4
    assert max(reduction(1024, 5, (100, 130, 220, 170, 100)).num_sums) <= 6


def test_what_makes_no_assignment() -> None:
    with pytest.raises(ValueError, match="at least one"):
        assign(4, 0)
    for costs in ((1,), (1, 1, 1), (0, 1), (-3, 1)):
        with pytest.raises(ValueError, match="of 2 workers: give each one, above 0"):
            assign(8, 2, costs)


# ---- the tree

Expression = int | tuple["Expression", "Expression"]


def expression(plan: Reduction) -> Expression:
    """The sum of a batch as its workers compute it, with brackets for additions."""
    sums: list[Expression] = []
    for run, merges, num_sums in zip(plan.runs, plan.merges, plan.num_sums, strict=True):
        stack: list[Expression] = []
        for grain, count in zip(run, merges, strict=True):
            value: Expression = grain
            for _ in range(count):
                value = (stack.pop(), value)
            stack.append(value)
        assert len(stack) == num_sums
        sums.extend(stack)
    added: set[int] = set()
    for into, other in plan.additions:
        assert into not in added
        assert other not in added
        sums[into] = (sums[into], sums[other])
        added.add(other)
    assert len(added) == len(sums) - 1, "every sum is added, once"
    return sums[0]


def balanced(first: int, level: int, num_grains: int) -> Expression:
    """The tree as its definition says: left child plus right child, or the left one alone."""
    if level == 0:
        return first
    left = balanced(first, level - 1, num_grains)
    middle = first + 2 ** (level - 1)
    return left if middle >= num_grains else (left, balanced(middle, level - 1, num_grains))


def tree(num_grains: int) -> Expression:
    return balanced(0, (num_grains - 1).bit_length(), num_grains)


@given(counts.flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), max_size=12))))
def test_the_same_sum_for_any_contiguous_runs(case: tuple[int, list[int]]) -> None:
    num_grains, cuts = case
    edges = [0, *sorted(cuts), num_grains]
    runs = [range(start, stop) for start, stop in itertools.pairwise(edges)]
    assert expression(reduction_of(runs)) == tree(num_grains)


def test_one_worker_adds_everything_itself() -> None:
    plan = reduction(7, 1)
    assert plan.num_sums == (1,)
    assert plan.additions == ()
    assert expression(plan) == (((0, 1), (2, 3)), ((4, 5), 6))


@pytest.mark.parametrize("num_grains", [8, 16, 32, 64, 128])
def test_few_sums_travel(num_grains: int) -> None:
    """Five sums out and one total back are three times a ring's one out and one back."""
    for num_workers in (2, 4, 8):
        assert reduction(num_grains, num_workers).num_sums == (1,) * num_workers
    for num_workers in (3, 5, 6, 7):
        assert max(reduction(num_grains, num_workers).num_sums) <= 5


@given(counts, counts)
def test_a_sum_is_settled_as_soon_as_no_later_grain_changes_it(
    num_grains: int, num_workers: int
) -> None:
    """Against the stack itself, of the sums' first and last grains, after every grain."""
    plan = reduction(num_grains, num_workers)
    for run, merges in zip(plan.runs, plan.merges, strict=True):
        stacks: list[list[tuple[int, int]]] = [[]]
        for grain, number in zip(run, merges, strict=True):
            *kept, last = [*stacks[-1], (grain, grain)]
            for _ in range(number):
                last = (kept.pop()[0], last[1])
            stacks.append([*kept, last])
        for done, (stack, number) in enumerate(zip(stacks, settled(merges), strict=True)):
            assert all(stack[:number] == later[:number] for later in stacks[done:])
            if number < len(stack):  # the next one changes
                assert any(stack[: number + 1] != later[: number + 1] for later in stacks[done:])


# ---- how the link decides

speeds = st.builds(LinkSpeed, st.floats(1e-7, 1.0), st.floats(1e3, 1e12))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=40), st.none() | speeds)
def test_a_bucket_goes_whole_where_that_takes_no_longer(
    num_sums: list[int], speed: LinkSpeed | None
) -> None:
    workers, most = len(num_sums), max(num_sums)
    empty = ROUND_BYTES if speed is None else empty_seconds(workers, speed.latency_seconds)
    rate = 1.0 if speed is None else speed.bytes_per_second

    def in_whole(num_bytes: int) -> float:
        return empty + num_bytes * (most * (workers - 1) + SLOWER) / rate

    def in_chunks(num_bytes: int) -> float:
        return 2 * empty + num_bytes * (most + 1) * (workers - 1) / workers / rate

    limit = whole_bytes(num_sums, speed)
    assert limit <= WHOLE_BYTES
    assert in_whole(limit) <= in_chunks(limit) * (1 + 1e-12)
    assert limit == WHOLE_BYTES or in_whole(limit + 1) >= in_chunks(limit + 1) * (1 - 1e-12)


@given(st.integers(2, 2000), st.integers(1, 1 << 36), speeds)
def test_buckets_are_of_the_size_that_takes_least(
    workers: int, total: int, speed: LinkSpeed
) -> None:
    """All but the last bucket hide; each costs two exchanges' latencies."""
    fixed = 2 * empty_seconds(workers, speed.latency_seconds)
    per_byte = 2 * (workers - 1) / workers / speed.bytes_per_second

    def seconds(num_bytes: float) -> float:
        return total / num_bytes * fixed + num_bytes * per_byte

    size = bucket_bytes(workers, total, speed)
    assert size >= 1
    if size > 1000:  # one byte more or less does not matter
        assert seconds(size) <= min(seconds(0.9 * size), seconds(1.1 * size))
    if total * per_byte <= fixed:
        assert size >= total  # small gradients go in one message
    slower = replace(speed, latency_seconds=2 * speed.latency_seconds)
    assert bucket_bytes(workers, total, slower) >= size


@given(st.integers(2, 2000), st.integers(1, 1 << 36))
def test_where_the_link_is_not_known_buckets_have_a_fixed_size(workers: int, total: int) -> None:
    assert bucket_bytes(workers, total) == bucket_bytes(workers, 1) >= BUCKET_BYTES
    assert bucket_bytes(workers, total) >= bucket_bytes(workers - 1, total)


def test_a_speed_as_typed() -> None:
    assert parse_speed("940Mbit/s:60us", "the link ") == LinkSpeed(60 * 1e-6, 117.5e6)
    with pytest.raises(UserError, match="the link fast:1us: 'fast' is not a bandwidth; write it"):
        parse_speed("fast:1us", "the link ")
    with pytest.raises(UserError, match="the link 1GB/s: the latency is missing; write it like"):
        parse_speed("1GB/s", "the link ")
