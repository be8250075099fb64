"""What Perfetto needs of a trace, and what ours promises beyond it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def check_trace(trace: dict[str, Any]) -> None:
    """Fail unless every event is complete and on a named track, where it follows or encloses the
    others."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    named: set[tuple[str, int, int]] = set()
    for row in json.loads(json.dumps(trace))["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= set(row)
        if row["ph"] == "M":
            named.add((row["name"], row["pid"], row["tid"]))
            continue
        assert row["ph"] == "X"
        assert row["ts"] >= 0
        assert row["dur"] >= 0
        begin = round(row["ts"] * 1e3)  # nanoseconds, so that no rounding makes an overlap
        end = begin + round(row["dur"] * 1e3)
        tracks.setdefault((row["pid"], row["tid"]), []).append((begin, end))
    assert tracks
    for (worker, track), spans in tracks.items():
        assert ("process_name", worker, 0) in named
        assert ("thread_name", worker, track) in named
        assert nested(spans), f"events overlap on track {track} of worker {worker}"


def nested(spans: Iterable[tuple[float, float]]) -> bool:
    """True when any two of these spans follow, or lie within, each other."""
    open_until: list[float] = []
    for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        if open_until and end > open_until[-1]:
            return False
        open_until.append(end)
    return True
