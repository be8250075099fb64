"""The benchmark's reading of Horovod's own timeline."""

from __future__ import annotations

from typing import Any

import pytest

from horovod_engine import reductions
from samepath.insight.profile.timeline import TimelineEvent


def test_horovods_own_timeline_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are processes in it; those of two that were fused overlap."""
    monkeypatch.setattr("time.time", lambda: 5000.0)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    facts = {"start_time_since_epoch_in_micros": 4990e6}
    rows: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": facts}]
    rows += [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"allreduce.{name}"}}
        for pid, name in ((1, "a.weight"), (2, "a.bias"), (3, "b"))
    ]
    for pid, began, ended in ((1, 2.0e6, 3.0e6), (2, 2.1e6, 3.5e6), (3, 5.0e6, 6.0e6)):
        rows += [
            {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": pid, "ts": began - 1e6},
            {"ph": "E", "pid": pid, "ts": began - 0.5e6},
            {"ph": "B", "name": "ALLREDUCE", "pid": pid, "ts": began},
            {"ph": "B", "name": "GLOO_ALLREDUCE", "pid": pid, "ts": began + 0.1e6},
            {"ph": "E", "pid": pid, "ts": ended - 0.1e6},
            {"ph": "E", "pid": pid, "ts": ended},
        ]
    sizes = {"a.weight": 400, "a.bias": 40, "b": 4}
    step = TimelineEvent(1, 0, "step", "", 91.0, 94.0)
    found = reductions(rows, sizes, [step], worker=1, num_workers=2)
    (event,) = found  # b was reduced in no step that is timed
    assert (event.begin, event.end) == pytest.approx((92.0, 93.5))
    assert (event.worker, event.step, event.phase) == (1, 0, "reduction")
    assert event.bytes_sent == 440
