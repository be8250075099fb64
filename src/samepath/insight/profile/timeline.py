"""What every worker did when, what that says of an engine, and the same as a Chrome trace.

In: events with time stamps, of some steps on some workers. Out: Numbers: how long a step takes,
where its time goes, how much of the communication lies behind computing, how much of the waiting
is for the slowest worker; and a file for ui.perfetto.dev or chrome://tracing. Pure arithmetic but
for writing that file: intervals in, seconds out.

Words. A worker's *main* events are what its own thread does: load, forward, backward, reduce
(adding, packing and copying sums), wait, update. They follow or enclose each other; the innermost
counts. A *reduction* is one bucket from launch to arrival: it travels while the worker computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

MainPhase: TypeAlias = Literal["load", "forward", "backward", "reduce", "wait", "update"]
Phase: TypeAlias = MainPhase | Literal["step", "reduction", "negotiation"]
MAIN: tuple[MainPhase, ...] = get_args(MainPhase)
_INNERMOST_FIRST: tuple[MainPhase, ...] = (
    "wait", "reduce", "load", "update", "forward", "backward",
)  # fmt: skip

Interval: TypeAlias = tuple[float, float]


class TimelineEvent(NamedTuple):
    """Something that took a worker, or the link, from one moment to another."""

    worker: int
    step: int
    """Its number among the steps that were timed."""
    phase: Phase
    name: str
    """The grain or bucket it belongs to, if any."""
    begin: float
    """Seconds, on a clock that all workers share."""
    end: float
    bytes_sent: int = 0
    """Bytes this worker sends in a reduction: calculated (an all-reduce of B bytes sends
    2(N - 1)/N B from each of N workers), not measured."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Some steps of one engine."""

    engine: str
    num_workers: int
    events: tuple[TimelineEvent, ...]
    """Events in the order in which they begin."""

    @property
    def steps(self) -> list[int]:
        return sorted({event.step for event in self.events})

    def of(
        self, *phases: Phase, step: int | None = None, worker: int | None = None
    ) -> list[TimelineEvent]:
        """Events of these phases, of all steps and workers or of one."""
        return [
            event
            for event in self.events
            if event.phase in phases
            and (step is None or event.step == step)
            and (worker is None or event.worker == worker)
        ]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Times and shares of one engine's steps. Shares are of all workers' time in typical steps, the
    middle half by length: one step that was held up does not count. Times of parts are these shares
    of the median step."""

    engine: str
    num_workers: int
    num_steps: int
    step_seconds: float
    """Median over steps: from when the last worker began it to when the last worker ended it (a
    step begins where the one before ended, so that these add up to the whole time)."""
    step_low: float
    step_high: float
    """The quartiles: half of the steps took between these."""
    phase_seconds: dict[str, float]
    """Seconds of the median step in each main phase, and in `other`: none of them. They add up to
    `step_seconds`."""
    shares: dict[str, float]
    """The same as parts of all workers' step time: they add up to 1."""
    communication_seconds: float
    """Seconds of the median step during which some reduction was under way: launched by all
    workers, and not arrived here."""
    hidden_share: float | None
    """The part of these in which the worker neither waited nor was itself adding: communication
    behind computing. None where nothing was communicated."""
    waiting_share: float
    """The part of all workers' step time in which they waited."""
    slowest_share: float
    """The part of all workers' step time in which they waited and some worker had not ended its
    last backward pass yet: waiting on the slowest worker. The rest of the waiting is for the
    reductions themselves."""
    bytes_sent: float
    """Mean of a worker and step; calculated, not measured."""
    num_reductions: float
    """Mean of a worker and step: buckets, or filled fusion buffers."""


def numbers(timeline: Timeline) -> Numbers:
    """The numbers of a timeline of at least one step, with a `step` event from every worker."""
    workers = range(timeline.num_workers)
    spans = {
        step: sorted(timeline.of("step", step=step), key=lambda e: e.worker)
        for step in timeline.steps
    }
    assert all([span.worker for span in each] == list(workers) for each in spans.values())
    seconds = {
        step: max(s.end for s in each) - max(s.begin for s in each) for step, each in spans.items()
    }
    low, middle, high = np.quantile(list(seconds.values()), [0.25, 0.5, 0.75]).tolist()
    left_out = len(seconds) // 4
    typical = sorted(seconds, key=seconds.__getitem__)[left_out : len(seconds) - left_out]
    whole = communicating = hidden = slowest = 0.0
    phases: dict[str, float] = dict.fromkeys(MAIN, 0.0)
    for step in typical:
        events = [event for event in timeline.events if event.step == step]
        whole += sum(span.end - span.begin for span in spans[step])
        all_computed = max((e.end for e in events if e.phase == "backward"), default=0.0)
        launched: dict[str, float] = {}  # by the last worker: nothing can arrive before
        for event in events:
            if event.phase == "reduction":
                launched[event.name] = max(launched.get(event.name, event.begin), event.begin)
        for worker in workers:
            mine = [event for event in events if event.worker == worker]
            own = self_times(mine)
            for phase, intervals in own.items():
                phases[phase] += length(intervals)
            slowest += length(minus(own["wait"], [(all_computed, float("inf"))]))
            travelling = union(
                (max(e.begin, launched[e.name]), e.end) for e in mine if e.phase == "reduction"
            )
            communicating += length(travelling)
            hidden += length(minus(travelling, union([*own["wait"], *own["reduce"]])))
    reductions = timeline.of("reduction")
    times = len(seconds) * timeline.num_workers
    parts = {**phases, "other": max(whole - sum(phases.values()), 0.0)}
    shares = {name: value / whole for name, value in parts.items()}
    return Numbers(
        engine=timeline.engine,
        num_workers=timeline.num_workers,
        num_steps=len(seconds),
        step_seconds=middle,
        step_low=low,
        step_high=high,
        phase_seconds={name: middle * share for name, share in shares.items()},
        shares=shares,
        communication_seconds=middle * communicating / whole,
        hidden_share=hidden / communicating if communicating > 0.0 else None,
        waiting_share=phases["wait"] / whole,
        slowest_share=slowest / whole,
        bytes_sent=sum(event.bytes_sent for event in reductions) / times,
        num_reductions=len(reductions) / times,
    )


def self_times(events: Sequence[TimelineEvent]) -> dict[MainPhase, list[Interval]]:
    """Intervals of one worker by main phase; of events inside each other, the inner one's."""
    found: dict[MainPhase, list[Interval]] = {}
    taken: list[Interval] = []
    for phase in _INNERMOST_FIRST:
        mine = union((event.begin, event.end) for event in events if event.phase == phase)
        found[phase] = minus(mine, taken)
        taken = union([*taken, *mine])
    return found


# ---- intervals


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals into disjoint ones, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def minus(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """Moments of `left` that are not in `right`; both disjoint and in order."""
    found: list[Interval] = []
    for begin, end in left:
        for other_begin, other_end in right:
            if other_end <= begin or other_begin >= end:
                continue
            if begin < other_begin:
                found.append((begin, other_begin))
            begin = min(max(begin, other_end), end)
        if begin < end:
            found.append((begin, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def lanes(events: Iterable[TimelineEvent]) -> list[list[TimelineEvent]]:
    """Events of one worker in as few rows as it takes that none overlap in a row."""
    found: list[list[TimelineEvent]] = []
    for event in sorted(events, key=lambda e: (e.begin, e.end)):
        for lane in found:
            if lane[-1].end <= event.begin:
                lane.append(event)
                break
        else:
            found.append([event])
    return found


def meet(events: Sequence[TimelineEvent]) -> list[TimelineEvent]:
    """Give reductions in shared memory their end on the last worker: they end on all at once."""
    ends: dict[tuple[int, str, str], float] = {}
    for event in events:
        what = (event.step, event.phase, event.name)
        ends[what] = max(ends.get(what, event.end), event.end)
    return [
        event._replace(end=ends[event.step, event.phase, event.name])
        if event.phase == "reduction"
        else event
        for event in events
    ]


# ---- Chrome trace


def chrome_trace(timeline: Timeline, about: Mapping[str, Any]) -> dict[str, Any]:
    """Trace Event JSON: one process per worker, with a track for what its own thread does and as
    many as it takes for what happens beside. Times are whole nanoseconds from the first event on
    (written in microseconds, as the format wants); on a track events follow or enclose one another.
    `about` is shown as the trace's metadata."""
    first = min(event.begin for event in timeline.events)
    rows: list[dict[str, Any]] = []

    def describe(worker: int, track: int, what: str, **value: str | int) -> None:
        rows.append({"ph": "M", "pid": worker, "tid": track, "name": what, "args": value})

    for worker in range(timeline.num_workers):
        beside = lanes(timeline.of("reduction", "negotiation", worker=worker))
        tracks = {"computing": timeline.of("step", *MAIN, worker=worker)}
        for number, lane in enumerate(beside, 1):
            tracks["reductions" + (f" ({number})" if len(beside) > 1 else "")] = lane
        describe(worker, 0, "process_name", name=f"worker {worker}")
        describe(worker, 0, "process_sort_index", sort_index=worker)
        for track, (title, events) in enumerate(tracks.items()):
            describe(worker, track, "thread_name", name=title)
            describe(worker, track, "thread_sort_index", sort_index=track)
            rows += [_complete(event, track, first) for event in events]
    return {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": dict(about)}


def _complete(event: TimelineEvent, track: int, first: float) -> dict[str, Any]:
    begin, end = (round((moment - first) * 1e9) for moment in (event.begin, event.end))
    if event.phase == "step":
        name = f"step {event.step}"
    elif event.phase in ("reduction", "negotiation"):
        name = event.name
    else:
        name = f"{event.phase}: {event.name}" if event.name else event.phase
    sent = {"bytes_sent": event.bytes_sent} if event.bytes_sent else {}
    return {
        "ph": "X",
        "name": name,
        "cat": event.phase,
        "pid": event.worker,
        "tid": track,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "args": {"step": event.step, **sent},
    }
