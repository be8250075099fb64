"""The report of a profile: traces, timelines, `profile.html`, and last `profile.json`.

In: a Profile. Out: the page's path. A timeline has a row per worker, a colour per phase, and
buckets on rows of their own. Guaranteed: the page opens without a network and without the other
files; engines beside each other share one scale of time; the step shown is the one of median
length; if writing is interrupted nothing is left behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from samepath.console import count
from samepath.files import write_atomically
from samepath.insight.profile.profile import Profile
from samepath.insight.profile.timeline import (
    Interval,
    Timeline,
    TimelineEvent,
    chrome_trace,
    lanes,
    self_times,
)
from samepath.report import style
from samepath.report.page import Section, command_section, table_sections, write_finding_page
from samepath.report.words import Tables, facts_rows
from samepath.report.words import milliseconds as ms

PHASES = ("load", "forward", "backward", "reduce", "wait", "update", "other")
CALLED = {"reduce": "adding", "wait": "waiting"}
"""What a table calls a phase, if not by its name."""
NOTE = (
    "Times in milliseconds; phases add up to the median step: their shares of the middle half of "
    "the steps, over all workers. adding: summing, packing and "
    "copying gradients in the worker's own thread; update: norm, clipping and optimizer; other: "
    "the rest, such as adding up grains. communication: a bucket is under way, launched by all "
    "workers and not arrived; hidden: the part of it in which a worker neither waited nor was "
    "adding. Waiting on the slowest worker: while another worker still computes; on reductions: "
    "the rest; both as parts of the step. sent: bytes sent per worker (calculated, not measured)."
)
OPEN = "open it at ui.perfetto.dev or chrome://tracing"


def trace_name(engine: str) -> str:
    return f"trace-{engine}.json"


def write_profile(profile: Profile, folder: Path, *, recipe: str, command: Sequence[str]) -> Path:
    """Write everything; the page's path."""
    title = f"{Path(recipe).name} on {count(profile.num_workers, 'worker')}: step timeline"

    def sections() -> Iterator[Section]:
        for timeline in profile.timelines:
            about = {"recipe": recipe, "clock": profile.clock, "engine": timeline.engine}
            trace = json.dumps(chrome_trace(timeline, about)) + "\n"
            write_atomically(folder / trace_name(timeline.engine), trace)
        yield from _sections(profile, folder, title)
        yield command_section(command)

    said, step = content_of(profile), profile.measured
    return write_finding_page(
        folder, "profile", title, sections(), said, recipe=recipe, command=command, measured=step
    )


def content_of(profile: Profile) -> dict[str, object]:
    """What `profile.json` says."""
    return {
        "options": asdict(profile.options),
        "num_workers": profile.num_workers,
        "clock": profile.clock,
        "busy_cores": profile.busy_cores,
        "queue": asdict(profile.queue),
        "engines": {each.engine: asdict(each) for each in profile.numbers},
        "traces": {each.engine: trace_name(each.engine) for each in profile.numbers},
        "summary": summary(profile),
    }


def _sections(profile: Profile, folder: Path, title: str) -> Iterator[Section]:
    yield Section(heading="In short", words=summary(profile))
    yield from table_sections(tables_in_short(profile))
    if len(profile.timelines) > 1:
        above, out = f"{title} (a median step each)", folder / "profile.png"
        picture = draw_timelines(above, profile.timelines, out, num_steps=1)
        yield Section(heading="One step of each, on one scale", picture=picture)
    for timeline in profile.timelines:
        out = folder / f"timeline-{timeline.engine}.png"
        yield Section(
            heading=f"Timeline: {timeline.engine}",
            words=f"All of its steps are in {trace_name(timeline.engine)}; {OPEN}.",
            picture=draw_timelines(title, [timeline], out, num_steps=2),
        )
    options, queue = profile.options, profile.queue
    shaping = ("recipe", "data", "keep", "batch_size", "grain_size", "seed", "threads")
    facts = {
        **{name.replace("_", " "): getattr(options, name) for name in shaping},
        "workers": profile.num_workers,
        "steps timed, of each engine": profile.numbers[0].num_steps,
        "clock": profile.clock,
        "cores used by other processes": f"{profile.busy_cores:.1f}",
    }
    if any(each.engine == "queue" for each in profile.numbers):
        facts["cycle"] = f"{1e3 * queue.cycle_seconds:g} ms"
        facts["fusion buffer"] = f"{queue.fusion_bytes / (1 << 20):g} MiB"
    yield Section(heading="The profile", table=facts_rows(facts))


def tables_in_short(profile: Profile) -> Tables:
    """What the terminal and the page show: engines side by side."""
    first = profile.numbers[0]
    columns = []
    for each in profile.numbers:
        column = {
            "": each.engine,
            "step (median)": ms(each.step_seconds),
            "25-75% range": f"{ms(each.step_low)} to {ms(each.step_high)}",
            f"step / {first.engine}'s": f"{each.step_seconds / first.step_seconds:.2f}",
            **{CALLED.get(phase, phase): ms(each.phase_seconds[phase]) for phase in PHASES},
            "communication": ms(each.communication_seconds),
            "hidden": "-" if each.hidden_share is None else f"{each.hidden_share:.0%}",
            "waiting on the slowest": f"{each.slowest_share:.0%}",
            "waiting on reductions": f"{each.waiting_share - each.slowest_share:.0%}",
            "buckets": f"{each.num_reductions:.3g}",
            "sent (calculated)": _bytes(each.bytes_sent),
        }
        if len(profile.numbers) == 1:
            del column[f"step / {first.engine}'s"]
        columns.append(column)
    table = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return [(f"A step on {count(profile.num_workers, 'worker')}", table, NOTE)]


def summary(profile: Profile) -> str:
    """A sentence on step times, and one on communication."""
    first, *others = profile.numbers
    words = (
        f"A step takes {ms(first.step_seconds)} ms with {first.engine} on "
        f"{count(profile.num_workers, 'worker')} (25-75% range {ms(first.step_low)} to "
        f"{ms(first.step_high)} ms)"
    )
    for other in others:
        words += f", {other.step_seconds / first.step_seconds:.2f} times that with {other.engine}"
    said = [
        f"{each.engine}: {each.hidden_share:.0%} of the communication is hidden behind computing, "
        f"{each.waiting_share:.0%} of the time is waiting, {each.slowest_share:.0%} on "
        "the slowest worker."
        for each in profile.numbers
        if each.hidden_share is not None
    ]
    return f"{words}. {' '.join(said) or 'A single worker has nothing to communicate.'}"


def _bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


# ------------------------------------------------------------------------------------- timelines

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


def draw_timelines(title: str, timelines: Sequence[Timeline], out: Path, *, num_steps: int) -> Path:
    """One under the other, each from the beginning of its median step, or so many from there."""
    shown = [_window(timeline, num_steps) for timeline in timelines]
    heights = [_height(t, events) for t, events in zip(timelines, shown, strict=True)]
    figure = style.new_figure(11.0, 1.1 + sum(0.42 * height + 0.35 for height in heights), title)
    rows = figure.subplots(len(timelines), 1, sharex=True, squeeze=False, height_ratios=heights)
    seen: set[str] = set()
    longest = 0.0
    for axes, timeline, events in zip(rows[:, 0], timelines, shown, strict=True):
        start = min(event.begin for event in events)
        # a queue's negotiation may go on when the step has ended
        ends = [event.end for event in events if event.phase != "negotiation"]
        longest = max(longest, 1e3 * (max(ends) - start))
        seen |= _draw_rows(axes, timeline, events, start)
        axes.set_title(timeline.engine, loc="left", fontsize=10)
    rows[-1, 0].set_xlabel("milliseconds")
    rows[-1, 0].set_xlim(-0.005 * longest, 1.005 * longest)
    handles: list[Artist] = [
        Patch(facecolor=colour, edgecolor="0.4", linewidth=0.4, label=WORDS.get(phase, phase))
        for phase, colour in COLOURS.items()
        if phase in seen
    ]
    return style.finish(figure, handles, out)


def _window(timeline: Timeline, num_steps: int) -> list[TimelineEvent]:
    """The events of the step of median length and of those that follow it at once."""
    steps = {step: timeline.of("step", step=step) for step in timeline.steps}
    spans = {
        step: max(e.end for e in events) - max(e.begin for e in events)
        for step, events in steps.items()
    }
    middle = sorted(spans, key=lambda step: (spans[step], step))[(len(spans) - 1) // 2]
    wanted = [middle]
    for step in timeline.steps[timeline.steps.index(middle) + 1 :][: num_steps - 1]:
        if steps[step][0].begin - steps[wanted[-1]][0].end > spans[middle]:
            break  # other engines ran in between
        wanted.append(step)
    return [e for e in timeline.events if e.step in wanted and e.worker < MOST_WORKERS]


def _lanes(events: Sequence[TimelineEvent], worker: int) -> list[list[TimelineEvent]]:
    """Buckets under way, which are drawn below a worker's row, in rows without overlap."""
    beside = ("reduction", "negotiation")
    return lanes([e for e in events if e.worker == worker and e.phase in beside])[:MOST_LANES]


def _height(timeline: Timeline, events: Sequence[TimelineEvent]) -> float:
    workers = range(min(timeline.num_workers, MOST_WORKERS))
    return sum(_ROW + _GAP + _LANE * len(_lanes(events, worker)) for worker in workers)


def _draw_rows(
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
        for lane in _lanes(events, worker):
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
    axes: Axes, intervals: Sequence[Interval], start: float, top: float, height: float, phase: str
) -> None:
    axes.broken_barh(
        [(1e3 * (begin - start), 1e3 * (end - begin)) for begin, end in intervals],
        (top + 0.06 * height, 0.88 * height),
        facecolor=COLOURS[phase],
        edgecolor="0.4" if phase == "wait" else "none",
        linewidth=0.3,
    )
