"""A timeline as a Chrome trace, for ui.perfetto.dev or chrome://tracing.

In: a Timeline. Out: Trace Event JSON: one process per worker, with a track for what its own thread
does and as many as it takes for what happens beside. Guaranteed: times are whole nanoseconds from
the first event on (written in microseconds, as the format wants); on a track events follow or
enclose one another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samepath.files import write_atomically
from samepath.insight.profile.timeline import MAIN, Event, Timeline, lanes


def chrome_trace(timeline: Timeline, about: Mapping[str, Any]) -> dict[str, Any]:
    """`about` is shown as the trace's metadata."""
    first = min(event.begin for event in timeline.events)
    rows: list[dict[str, Any]] = []
    for worker in range(timeline.num_workers):
        beside = lanes(timeline.of("reduction", "negotiation", worker=worker))
        tracks = {"computing": timeline.of("step", *MAIN, worker=worker)}
        for number, lane in enumerate(beside, 1):
            tracks["reductions" + (f" ({number})" if len(beside) > 1 else "")] = lane
        rows.append(_name(worker, 0, "process_name", {"name": f"worker {worker}"}))
        rows.append(_name(worker, 0, "process_sort_index", {"sort_index": worker}))
        for track, (name, events) in enumerate(tracks.items()):
            rows.append(_name(worker, track, "thread_name", {"name": name}))
            rows.append(_name(worker, track, "thread_sort_index", {"sort_index": track}))
            rows += [_complete(event, track, first) for event in events]
    return {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": dict(about)}


def write_trace(path: Path, timeline: Timeline, about: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(chrome_trace(timeline, about)) + "\n")


def _name(worker: int, track: int, what: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": worker, "tid": track, "name": what, "args": dict(value)}


def _complete(event: Event, track: int, first: float) -> dict[str, Any]:
    begin, end = (round((moment - first) * 1e9) for moment in (event.begin, event.end))
    facts: dict[str, Any] = {"step": event.step}
    if event.bytes_sent:
        facts["bytes_sent"] = event.bytes_sent
    called = f"step {event.step}" if event.phase == "step" else event.phase
    if event.phase in ("reduction", "negotiation"):
        called = event.name
    elif event.name:
        called = f"{event.phase}: {event.name}"
    return {
        "ph": "X",
        "name": called,
        "cat": event.phase,
        "pid": event.worker,
        "tid": track,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "args": facts,
    }
