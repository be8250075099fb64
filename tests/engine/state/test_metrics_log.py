"""metrics.jsonl: lines are brought to the disk as they come, and read while they are written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ui_folders import make_run, metrics_lines, step_line

from samepath.engine.state import metrics_log as lines_module
from samepath.engine.state.metrics_log import (
    Lines,
    MetricColumns,
    TrainingClock,
    newest_values,
    sample_values,
)
from samepath.engine.state.run_folder import RunFolder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Sizes of the file when it was brought to the disk, by the call that did it."""
    sizes: dict[str, list[int]] = {"fsync": [], "fdatasync": []}

    def watch(name: str, sync: Callable[[int], None]) -> None:
        def watched(file: int) -> None:
            sync(file)
            sizes[name].append(os.fstat(file).st_size)

        monkeypatch.setattr(os, name, watched)

    for name in sizes:
        watch(name, getattr(os, name))
    return sizes


def test_eager_lines_are_synced_soon(file: Path, synced: dict[str, list[int]]) -> None:
    lines = Lines(file, 0, eager=True)
    for number in range(3):
        lines.add(f"line {number}")
        lines.flush()
        until = time.monotonic() + 60
        while max(synced["fdatasync"], default=0) < 7 * (number + 1):
            assert time.monotonic() < until
            time.sleep(0.01)
    assert lines.close()
    assert not [t for t in threading.enumerate() if t.name == "samepath-sync"]
    assert file.read_text() == "line 0\nline 1\nline 2\n"


def test_a_disk_that_refuses_is_told_to_the_caller_that_syncs(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def failing(file: int) -> None:
        tried.set()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    monkeypatch.setattr(os, "fsync", failing)
    lines = Lines(file, 0, eager=True)
    lines.add("line")
    lines.flush()
    assert tried.wait(60)
    with pytest.raises(OSError, match="Input/output error"):
        lines.sync()
    assert not lines.close()


@pytest.mark.parametrize("eager", [False, True])
def test_more_than_is_kept_is_synced_on_the_way(
    file: Path, monkeypatch: pytest.MonkeyPatch, synced: dict[str, list[int]], eager: bool
) -> None:
    """A quick run writes megabytes between two checkpoints; and one line may be larger than all
    that is kept."""
    monkeypatch.setattr(lines_module, "MOST_UNSYNCED", 1000)
    lines = Lines(file, 0, eager=eager)
    expected = [f"line {number:04}" for number in range(500)] + ["x" * 1001, "short"]
    for line in expected:
        lines.add(line)
        lines.flush()
    assert file.read_text().splitlines() == expected
    # each time that the kernel alone has had more than 1000 bytes: 101 lines of 10
    assert synced["fsync"] == [1010, 2020, 3030, 4040, 5000 + 1002]
    lines.sync()
    assert synced["fsync"][-1] == 6008
    assert lines.close()


def test_a_disk_that_refuses_on_the_way_loses_and_doubles_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may not have is written once more, and in order."""
    monkeypatch.setattr(lines_module, "MOST_UNSYNCED", 100)
    sync, fails = os.fsync, True

    def failing(file: int) -> None:
        if fails:
            os.ftruncate(file, os.fstat(file).st_size - 30)  # pages that it lost
            raise OSError(5, "Input/output error")
        sync(file)

    monkeypatch.setattr(os, "fsync", failing)
    lines = Lines(file, 0)
    expected, refused = "", 0
    for number in range(60):
        fails = 15 < number < 40
        lines.add(f"line {number:04}")
        expected += f"line {number:04}\n"
        try:
            lines.flush()
        except OSError:
            refused += 1
    assert refused > 10
    assert lines.close()
    assert file.read_text() == expected


# ---- reading


def read(metrics: MetricColumns, text: str | bytes) -> MetricColumns:
    metrics.read_on(io.BytesIO(text.encode() if isinstance(text, str) else text))
    return metrics


def lines(num_steps: int, **how: Any) -> str:
    return "".join(line + "\n" for line in metrics_lines(num_steps, **how))


def test_columns_are_those_of_the_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 25)
    metrics = read(MetricColumns(), (run / "metrics.jsonl").read_bytes())
    logged = RunFolder(run).read_metrics()
    for name in ("train_loss", "valid_accuracy", "gradient_norm", "epoch_train_loss"):
        steps, times, values = metrics.columns[name].arrays()
        there = [line for line in logged if name in line]
        assert steps.tolist() == [line["step"] for line in there]
        assert times.tolist() == [line["seconds"] for line in there]
        assert values.tolist() == [line[name] for line in there]
    assert metrics.num_unreadable == 0
    assert not {"step", "epoch", "seconds"} & set(metrics.columns)


class Counted(io.BytesIO):
    num_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.num_read += len(found)
        return found


def test_only_what_is_new_is_read() -> None:
    metrics = read(MetricColumns(), lines(5000))
    file = Counted(lines(5003).encode())
    metrics.read_on(file)
    assert file.num_read < 2500
    assert metrics.columns["train_loss"].steps[-1] == 5003
    assert len(metrics.columns["train_loss"].steps) == 5003


def test_a_half_written_line_waits_for_its_other_half() -> None:
    text = lines(9)
    metrics = MetricColumns()
    for cut in range(0, len(text), 37):
        read(metrics, text[:cut])
    read(metrics, text)
    assert metrics.columns["train_loss"].steps.tolist() == list(range(1, 10))
    assert metrics.num_unreadable == 0


def test_a_resumed_run_that_rewrote_it_is_read_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 25)
    file = run / "metrics.jsonl"
    metrics = read(MetricColumns(), file.read_bytes())
    folder = RunFolder(run)
    folder.open_metrics(12)  # what it had done beyond its checkpoint goes
    for step in range(13, 41):
        folder.log(**{**step_line(step), "seconds": (step - 12) * 0.02})
    folder.close_metrics()
    read(metrics, file.read_bytes())
    steps, times, _ = metrics.columns["train_loss"].arrays()
    assert steps.tolist() == list(range(1, 41))
    assert times[11] == pytest.approx(0.12)
    assert times[12] == pytest.approx(0.12 + 0.02), "time goes on after a new start"
    read(metrics, lines(3))
    assert len(metrics.columns["train_loss"].steps) == 3, "and one that is shorter"


@pytest.mark.parametrize(
    "bad", ["{", "[]", "7", '{"step": "many"}', '{"step": null}', "\x00\x00", '{"step": 1e999}',
            '{"step": ' + "1" * 400 + "}", "[" * 3000]
)  # fmt: skip
def test_damaged_lines_are_counted(bad: str) -> None:
    metrics = read(MetricColumns(), lines(3) + bad + "\n" + json.dumps(step_line(4)) + "\n")
    assert metrics.num_unreadable == 1
    assert metrics.columns["train_loss"].steps.tolist() == [1, 2, 3, 4]


def test_numbers_that_are_none() -> None:
    odd = {"step": 4, "train_loss": "nan", "gradient_norm": "inf", "flag": True,
           "words": "hello", "list": [1], "seconds": "nan",
           "measured": {"rate": 2, "x": None}}  # fmt: skip
    columns = read(MetricColumns(), json.dumps(odd) + "\n").columns
    assert np.isnan(columns["train_loss"].values[0])
    assert columns["gradient_norm"].values[0] == np.inf
    assert columns["measured_rate"].values[0] == 2
    assert "list" not in columns


def test_the_end_of_a_file() -> None:
    assert newest_values(io.BytesIO(lines(29).encode()))["epochs_done"] == 2
    newest = newest_values(io.BytesIO((lines(30) + '{"step": 31, "ha').encode()))
    assert newest["epochs_done"] == 3
    assert newest["step"] == 30
    assert newest["valid_accuracy"] == 1 - 1 / 30
    assert newest_values(io.BytesIO(lines(20_000).encode()))["step"] == 20_000
    assert newest_values(io.BytesIO(b"")) == {}


@pytest.mark.parametrize("num_steps", [0, 1, 30, 10_000])
def test_a_sample_is_small_and_from_all_over(num_steps: int) -> None:
    values = sample_values(io.BytesIO(lines(num_steps).encode()), "train_loss", 40)
    assert len(values) <= 40
    if num_steps >= 30:
        assert len(values) > 25
        assert values == sorted(values, reverse=True)
        assert values[0] > 1.8


def test_the_clock_goes_on_over_restarts() -> None:
    clock = TrainingClock()
    assert [clock.advance(seconds) for seconds in (1.0, 2.5, 0.5, 0.5, 0.25)] == [
        1.0, 2.5, 3.0, 3.0, 3.25,
    ]  # fmt: skip
    assert clock.num_restarts == 2


def test_reading_needs_no_torch() -> None:
    code = "import sys, samepath.engine.state.metrics_log; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
