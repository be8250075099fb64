"""Timelines as figures: a row per worker, a colour per phase, buckets on rows of their own.

In: timelines. Out: a PNG. Guaranteed: engines beside each other share one scale of time, so that
what looks longer took longer; the step shown is the one of median length.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from samepath.insight.profile.timeline import (
    Interval,
    MainPhase,
    Timeline,
    TimelineEvent,
    lanes,
    self_times,
)
from samepath.report.sheet import save_figure
from samepath.report.study_style import legend_beside, new_figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; waiting is pale, as nothing is
# done in it.
COLOURS: dict[str, str] = {
    "load": "#CC79A7",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "reduce": "#000000",
    "wait": "#F5DFA8",
    "update": "#009E73",
    "reduction": "#D55E00",
    "negotiation": "#999999",
    "step": "#E4E4E4",
}
WORDS = {
    "reduce": "adding, copying sums",
    "wait": "waiting",
    "reduction": "a bucket under way",
    "step": "other",
}
MOST_WORKERS = 8
MOST_LANES = 3
_ROW, _LANE, _GAP = 1.0, 0.42, 0.35


def draw_timelines(title: str, timelines: Sequence[Timeline], out: Path, *, num_steps: int) -> None:
    """One under the other, each from the beginning of its median step, or so many from there."""
    shown = [_window(timeline, num_steps) for timeline in timelines]
    heights = [_height(t, events) for t, events in zip(timelines, shown, strict=True)]
    figure = new_figure(11.0, 1.1 + sum(0.42 * height + 0.35 for height in heights), title)
    rows = figure.subplots(len(timelines), 1, sharex=True, squeeze=False, height_ratios=heights)
    seen: set[str] = set()
    longest = 0.0
    for axes, timeline, events in zip(rows[:, 0], timelines, shown, strict=True):
        start = min(event.begin for event in events)
        # a queue's negotiation may go on when the step has ended
        ends = [event.end for event in events if event.phase != "negotiation"]
        longest = max(longest, 1e3 * (max(ends) - start))
        seen |= _draw(axes, timeline, events, start)
        axes.set_title(timeline.engine, loc="left", fontsize=10)
    rows[-1, 0].set_xlabel("milliseconds")
    rows[-1, 0].set_xlim(-0.005 * longest, 1.005 * longest)
    handles: list[Artist] = [
        Patch(facecolor=colour, edgecolor="0.4", linewidth=0.4, label=WORDS.get(phase, phase))
        for phase, colour in COLOURS.items()
        if phase in seen
    ]
    legend_beside(figure, handles)
    save_figure(figure, out)


def _window(timeline: Timeline, num_steps: int) -> list[TimelineEvent]:
    """The events of the step of median length and of those that follow it at once."""
    spans = {
        step: max(e.end for e in timeline.of("step", step=step))
        - max(e.begin for e in timeline.of("step", step=step))
        for step in timeline.steps
    }
    middle = sorted(spans, key=lambda step: (spans[step], step))[(len(spans) - 1) // 2]
    wanted = [middle]
    for step in timeline.steps[timeline.steps.index(middle) + 1 :][: num_steps - 1]:
        gap = timeline.of("step", step=step)[0].begin - timeline.of("step", step=wanted[-1])[0].end
        if gap > spans[middle]:
            break  # other engines ran in between
        wanted.append(step)
    return [
        event for event in timeline.events if event.step in wanted and event.worker < MOST_WORKERS
    ]


def _num_lanes(events: Sequence[TimelineEvent], worker: int) -> int:
    return min(len(lanes(_beside(events, worker))), MOST_LANES)


def _beside(events: Sequence[TimelineEvent], worker: int) -> list[TimelineEvent]:
    return [e for e in events if e.worker == worker and e.phase in ("reduction", "negotiation")]


def _height(timeline: Timeline, events: Sequence[TimelineEvent]) -> float:
    workers = range(min(timeline.num_workers, MOST_WORKERS))
    return sum(_ROW + _GAP + _LANE * _num_lanes(events, worker) for worker in workers)


def _draw(
    axes: Axes, timeline: Timeline, events: Sequence[TimelineEvent], start: float
) -> set[str]:
    """The rows of one engine; which phases were there to be seen."""
    seen = {"step"}
    top = 0.0
    ticks: list[float] = []
    workers = min(timeline.num_workers, MOST_WORKERS)
    for worker in range(workers):
        mine = [event for event in events if event.worker == worker]
        steps = [(event.begin, event.end) for event in mine if event.phase == "step"]
        _bars(axes, steps, start, top, _ROW, "step")
        for phase, intervals in self_times(mine).items():
            _bars(axes, intervals, start, top, _ROW, phase)
            seen |= {phase} if intervals else set()
        ticks.append(top + _ROW / 2)
        below = top + _ROW
        for lane in lanes(_beside(events, worker))[:MOST_LANES]:
            for event in lane:
                _bars(axes, [(event.begin, event.end)], start, below, _LANE, event.phase)
                seen.add(event.phase)
            below += _LANE
        for event in mine:
            if event.phase == "step":
                end = 1e3 * (event.end - start)
                axes.plot([end, end], [top - 0.1, below], color="0.2", linewidth=0.9)
        top = below + _GAP
    axes.set_ylim(top - _GAP / 2, -_GAP / 2)
    axes.set_yticks(ticks, [f"worker {worker}" for worker in range(workers)], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if timeline.num_workers > workers:
        rest = f"and {timeline.num_workers - workers} more workers"
        axes.text(1.0, 1.01, rest, transform=axes.transAxes, ha="right", fontsize=8, color="0.4")
    return seen


def _bars(
    axes: Axes,
    intervals: Sequence[Interval],
    start: float,
    top: float,
    height: float,
    phase: MainPhase | str,
) -> None:
    axes.broken_barh(
        [(1e3 * (begin - start), 1e3 * (end - begin)) for begin, end in intervals],
        (top + 0.06 * height, 0.88 * height),
        facecolor=COLOURS[phase],
        edgecolor="0.4" if phase == "wait" else "none",
        linewidth=0.3,
    )
