"""The rule of a parameter server that bounds staleness: kept, no stricter than it must be, and
never a deadlock."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from samepath.engine.server import keeps, may_apply, may_hand_out

bounds = st.none() | st.integers(0, 6)


class Server:
    """What the rule is for: outstanding gradients, in the order they were handed out."""

    def __init__(self, bound: int | None) -> None:
        self.bound = bound
        self.behind: list[int] = []
        self.arrived: list[bool] = []
        self.applied: list[int] = []
        self.handed_out = 0

    def hand_out(self) -> None:
        self.behind.append(0)
        self.arrived.append(False)
        self.handed_out += 1

    def apply(self, number: int) -> None:
        assert self.arrived.pop(number)
        self.applied.append(self.behind.pop(number))
        self.behind = [now + 1 for now in self.behind]

    def ready(self) -> list[int]:
        """What has arrived and may be applied."""
        return [
            number
            for number, here in enumerate(self.arrived)
            if here and may_apply(self.behind, number, self.bound)
        ]


def play(server: Server, choose: st.DataObject, num_workers: int) -> None:
    """Any course of events that the rule allows."""
    for _ in range(choose.draw(st.integers(0, 40))):
        missing = [number for number, here in enumerate(server.arrived) if not here]
        events = ["arrive"] * bool(missing) + ["apply"] * bool(server.ready())
        if len(missing) < num_workers and may_hand_out(server.behind, server.bound):
            events.append("hand out")
        # with nothing to wait for, something may be done: else the run would hang
        assert events
        event = choose.draw(st.sampled_from(events))
        if event == "hand out":
            server.hand_out()
        elif event == "arrive":
            server.arrived[choose.draw(st.sampled_from(missing))] = True
        else:
            server.apply(choose.draw(st.sampled_from(server.ready())))
        assert keeps(server.behind, server.bound)


@given(st.data(), bounds, st.integers(1, 8))
def test_the_bound_is_kept_and_no_work_is_lost(
    choose: st.DataObject, bound: int | None, num_workers: int
) -> None:
    server = Server(bound)
    play(server, choose, num_workers)
    if bound is None:
        assert may_hand_out(server.behind, None)
    else:
        assert len(server.behind) <= bound + 1
    server.arrived = [True] * len(server.arrived)
    while server.behind:  # in whatever order the rule allows
        ready = server.ready()
        assert 0 in ready, "the one in front may always be applied"
        assert bound is not None or len(ready) == len(server.behind), "nothing is forbidden"
        server.apply(choose.draw(st.sampled_from(ready)))
    assert bound is None or max(server.applied, default=0) <= bound
    assert len(server.applied) == server.handed_out


def some_order_keeps(behind: list[int], bound: int) -> bool:
    """The slow way: try them all."""
    return any(
        all(now + wait <= bound for wait, now in enumerate(order)) for order in permutations(behind)
    )


@given(st.lists(st.integers(0, 6), max_size=5), st.integers(0, 6))
def test_it_is_no_stricter_than_it_must_be(behind: list[int], bound: int) -> None:
    behind.sort(reverse=True)  # who was handed out later is never further behind
    assert keeps(behind, bound) == some_order_keeps(behind, bound)
    assert may_hand_out(behind, bound) == some_order_keeps([*behind, 0], bound)
    for number in range(len(behind)):
        left = [now + 1 for now in behind[:number] + behind[number + 1 :]]
        assert may_apply(behind, number, bound) == some_order_keeps(left, bound)
