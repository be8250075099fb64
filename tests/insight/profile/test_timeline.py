"""The arithmetic of timelines, on ones made by hand; and the trace and pages made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chrome_trace import check_trace, nested

from samepath.insight.profile.timeline import (
    Phase,
    Timeline,
    TimelineEvent,
    chrome_trace,
    lanes,
    length,
    meet,
    minus,
    numbers,
    self_times,
    union,
)


def event(
    phase: Phase, begin: float, end: float, name: str = "", sent: int = 0, *, worker: int = 0,
    step: int = 0,
) -> TimelineEvent:  # fmt: skip
    return TimelineEvent(worker, step, phase, name, begin, end, sent)


def two_workers() -> Timeline:
    """Worker 1 is slower: 0 waits from 6 to 9 for its backward pass, to 10 for the reduction.

    Bucket a: launched at 4 and at 5, there at 7. Bucket b: launched at 6 and 9, there at 10.
    """
    first = [
        event("step", 0, 12),
        event("load", 0, 1),
        event("forward", 1, 3),
        event("backward", 3, 6),
        event("reduce", 5, 5.5, "a"),
        event("reduction", 4, 7, "a", 100),
        event("reduction", 6, 10, "b", 20),
        event("wait", 6, 10),
        event("update", 10, 11),
    ]
    second = [
        event("step", 1, 13),
        event("load", 1, 2),
        event("forward", 2, 5),
        event("backward", 5, 9),
        event("reduction", 5, 7, "a", 100),
        event("reduction", 9, 10, "b", 20),
        event("wait", 9, 10),
        event("update", 10, 13),
    ]
    others = [each._replace(worker=1) for each in second]
    return Timeline(engine="made", num_workers=2, events=(*first, *others))


def test_numbers_of_a_timeline_made_by_hand() -> None:
    found = numbers(two_workers())
    assert (found.num_steps, found.num_workers) == (1, 2)
    assert found.step_seconds == found.step_low == found.step_high == 13 - 1
    # both workers' steps are 12 long
    assert found.phase_seconds == {
        "load": 1.0,
        "forward": 2.5,
        "backward": (2.5 + 4) / 2,  # half a second of worker 0's was adding
        "reduce": 0.25,
        "wait": 2.5,
        "update": 2.0,
        "other": 0.5,
    }
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares["wait"] == found.waiting_share == pytest.approx(5 / 24)
    # worker 0 waited 3 seconds while worker 1 still computed, and worker 1 not at all
    assert found.slowest_share == pytest.approx(3 / 24)
    # on both: a from 5 (when the last launched it) to 7, b from 9 to 10
    assert found.communication_seconds == pytest.approx(3.0)
    # worker 0 added until 5.5 and waited from 6: half a second is hidden. Worker 1 computed until 9
    # and waited from then on: all of a is hidden, nothing of b.
    assert found.hidden_share == pytest.approx((0.5 + 2.0) / 6.0)
    assert (found.bytes_sent, found.num_reductions) == (120.0, 2.0)


def test_steps_add_up_to_the_whole_time() -> None:
    """Each from the moment the last worker began it: where the one before had ended."""
    ends = {0: [2.0, 5.0, 6.0], 1: [3.0, 4.0, 9.0]}
    events = [
        event("step", begin, end, worker=worker, step=step)
        for worker, all_ends in ends.items()
        for step, (begin, end) in enumerate(zip([0.0, *all_ends], all_ends, strict=False))
    ]
    found = numbers(Timeline(engine="made", num_workers=2, events=tuple(events)))
    assert found.step_seconds == pytest.approx(3.0)  # 3, 2 and 4
    assert (found.step_low, found.step_high) == pytest.approx((2.5, 3.5))
    assert found.shares["other"] == pytest.approx(1.0)
    assert (found.hidden_share, found.communication_seconds) == (None, 0.0)
    assert (found.waiting_share, found.slowest_share, found.bytes_sent) == (0.0, 0.0, 0.0)


def test_phases_add_up_to_the_median_step() -> None:
    """Also where one step of eight was held up: it is no part of a typical one."""
    events, now = [], 0.0
    for step, wait in enumerate([1.0, 1.2, 0.8, 1.0, 40.0, 1.1, 0.9, 1.0]):
        events += [
            event("step", now, now + 2.0 + wait, step=step),
            event("forward", now, now + 2.0, step=step),
            event("wait", now + 2.0, now + 2.0 + wait, step=step),
        ]
        now += 2.0 + wait
    found = numbers(Timeline(engine="made", num_workers=1, events=tuple(events)))
    assert found.step_seconds == pytest.approx(3.0)
    assert sum(found.phase_seconds.values()) == pytest.approx(found.step_seconds)
    assert found.phase_seconds["forward"] == pytest.approx(2.0, rel=0.02)
    assert found.waiting_share == pytest.approx(1 / 3, rel=0.02)


def test_intervals() -> None:
    assert union([(3, 4), (0, 1), (0.5, 2), (2, 2.5), (7, 7)]) == [(0, 2.5), (3, 4)]
    assert minus([(0, 10)], [(1, 2), (4, 5), (9, 12)]) == [(0, 1), (2, 4), (5, 9)]
    assert minus([(0, 1), (2, 3)], [(-1, 5)]) == []
    assert minus([(0, 1)], []) == [(0, 1)]
    assert length([(0, 1), (2, 4)]) == 3


def test_inner_events_count() -> None:
    own = self_times([event("backward", 0, 10), event("reduce", 2, 3), event("wait", 2.5, 2.75)])
    assert own["backward"] == [(0, 2), (3, 10)]
    assert own["reduce"] == [(2, 2.5), (2.75, 3)]
    assert own["wait"] == [(2.5, 2.75)]


def test_lanes_hold_no_overlap() -> None:
    found = lanes([event("reduction", a, b, str(a)) for a, b in [(0, 5), (1, 2), (2, 3), (5, 6)]])
    assert [[e.name for e in lane] for lane in found] == [["0", "5"], ["1", "2"]]


def test_a_shared_reduction_ends_with_the_last_worker() -> None:
    mine = event("reduction", 0, 2, "a")
    other = event("reduction", 1, 5, "a", worker=1)
    later = event("reduction", 7, 8, "a", step=1)
    waits = [event("wait", 1, 2, "a"), event("wait", 1, 4, "a", worker=1)]
    assert [e.end for e in meet([mine, other, later, *waits])] == [5, 5, 8, 2, 4]


def test_the_trace_of_a_timeline_made_by_hand() -> None:
    trace = chrome_trace(two_workers(), {"recipe": "made"})
    check_trace(trace)
    rows = [row for row in trace["traceEvents"] if row["ph"] == "X"]
    assert len(rows) == len(two_workers().events)
    bucket = next(row for row in rows if row["name"] == "b" and row["pid"] == 1)
    assert (bucket["ts"], bucket["dur"]) == (9e6, 1e6)
    assert bucket["args"] == {"step": 0, "bytes_sent": 20}
    a, b = (next(r for r in rows if r["name"] == n and r["pid"] == 0) for n in "ab")
    assert a["tid"] != b["tid"], "buckets under way at once are on tracks of their own"
    b["tid"] = a["tid"]
    with pytest.raises(AssertionError, match="overlap"):
        check_trace(trace)
    assert nested([(0, 9), (0, 2), (2, 9)])
    assert not nested([(0, 2), (1, 3)])


def test_figures_of_timelines(tmp_path: Path) -> None:
    from matplotlib.image import imread

    from samepath.report.profile import draw_timelines

    both = [two_workers(), replace(two_workers(), engine="again")]
    draw_timelines("two", both, tmp_path / "two.png", num_steps=1)
    draw_timelines("one", both[:1], tmp_path / "one.png", num_steps=2)
    two, one = (imread(tmp_path / name) for name in ("two.png", "one.png"))
    assert two.shape[0] > one.shape[0]
    blue = (abs(two[:, :, :3] - [0.0, 0x72 / 255, 0xB2 / 255]).max(axis=2) < 0.02).mean()
    assert blue > 0.02, "backward passes are to be seen"
