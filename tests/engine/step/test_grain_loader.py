"""What comes is what a step asks for, however far a source reads ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samepath.data import GrainRequest
from samepath.engine.step.grain_loader import GrainLoader, Grains
from samepath.plan import Batch, Plan

PLAN = Plan(num_examples=22, batch_size=8, grain_size=2, seed=3)  # the third batch is of 6


class Ahead:
    """A source that asks for so many grains more than have been taken."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.opened = 0

    def __len__(self) -> int:
        return PLAN.num_examples

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        self.opened += 1
        asked, waiting = iter(requests), list[GrainRequest]()
        while True:
            waiting += itertools.islice(asked, self.ahead + 1 - len(waiting))
            if not waiting:
                return
            request = waiting.pop(0)
            yield request.epoch, request.examples.tolist()


def some_of(batch: Batch, numbers: Iterable[int]) -> Grains:
    return {n: batch.grain(n) for n in numbers if n < batch.num_grains}


def taken(feed: GrainLoader, step: int, mine: Grains) -> list[Any]:
    feed.turn_to(step, mine)
    return [next(feed) for _ in mine]


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9),
)
def test_any_assignment_at_any_step(ahead: int, cuts: list[tuple[int, int]]) -> None:
    """The rule changes after every step, to whatever; with it what has been loaded ahead."""
    now = 0
    source = Ahead(ahead)
    feed = GrainLoader(
        source, PLAN.batch, 9, lambda batch: some_of(batch, range(*sorted(cuts[now])))
    )
    for step, cut in enumerate(cuts):
        now = step
        batch = PLAN.batch(step)
        mine = some_of(batch, range(*sorted(cut)))
        expected = [(batch.epoch, examples.tolist()) for examples in mine.values()]
        assert taken(feed, step, mine) == expected


@pytest.mark.parametrize("ahead", [0, 1, 5, 100])
def test_loading_begins_anew_only_for_a_change(ahead: int) -> None:
    source, last = Ahead(ahead), 3
    feed = GrainLoader(source, PLAN.batch, 12, lambda batch: some_of(batch, range(last)))
    for step in range(12):
        if step == 7:
            last = 1
        taken(feed, step, some_of(PLAN.batch(step), range(last)))
        if step == 6:
            assert source.opened == 1
    assert source.opened == (2 if ahead else 1), "what was not loaded yet need not be dropped"


def test_a_batch_that_is_left_out_or_given_up() -> None:
    """It takes its grains with it."""
    feed = GrainLoader(Ahead(2), PLAN.batch, 9, lambda batch: some_of(batch, range(4)))
    for step in (0, 1, 4, 6):
        batch = PLAN.batch(step)
        found = taken(feed, step, some_of(batch, range(4)))
        assert found == [(batch.epoch, batch.grain(n).tolist()) for n in range(batch.num_grains)]
        if step == 4:
            feed.turn_to(5, some_of(PLAN.batch(5), range(4)))
            next(feed)  # and no more of it
