"""Reading metrics.jsonl while it is written, and curves of any length as few points."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ui_folders import make_run, metrics_lines, step_line

from samepath.engine.state.metrics_log import MetricColumns, newest_values, sample_values
from samepath.engine.state.run_folder import RunFolder
from samepath.web.dashboard.runs import NUM_POINTS, comparison, curves, shorten


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
    metrics = read(MetricColumns(), json.dumps(odd) + "\n")
    assert np.isnan(metrics.columns["train_loss"].values[0])
    assert metrics.columns["measured_rate"].values[0] == 2
    drawn = curves(metrics)
    assert set(drawn) == {"measured_rate"}
    json.dumps(drawn, allow_nan=False)


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


# ---- thinning


def test_a_short_curve_is_as_it_is() -> None:
    values = np.array([1.0, np.nan, 3.123456789, np.inf])
    curve = shorten(np.arange(4.0), np.arange(4.0), values)
    assert curve == {"step": [0, 1, 2, 3], "time": [0, 1, 2, 3], "value": [1, None, 3.12346, None]}


def test_peaks_survive() -> None:
    steps = np.arange(1.0, 100_001.0)
    values = np.ones(100_000)
    values[54_321], values[77_777], values[0] = 50.0, -3.0, 9.0
    values[60_000:60_600] = np.nan
    curve = shorten(steps, steps, values)
    assert all(len(part) == NUM_POINTS for part in curve.values())
    assert max(v for v in curve["high"] if v is not None) == 50.0
    assert min(v for v in curve["low"] if v is not None) == -3.0
    assert curve["high"][0] == 9.0
    assert curve["step"][-1] == 100_000
    assert curve["value"].count(None) == curve["high"].count(None) > 0
    whole = [v for v in curve["value"] if v is not None]
    assert np.mean(whole) == pytest.approx(np.nanmean(values), rel=0.01)


@pytest.mark.parametrize("number", [10, 10_000])
def test_an_interval_without_a_bound_stays_without(number: int) -> None:
    steps = np.arange(float(number))
    low, high = np.full(number, 1.0), np.full(number, 9.0)
    high[: number // 2] = np.nan
    curve = shorten(steps, steps, np.full(number, 4.0), (low, high))
    half = len(curve["high"]) // 2
    assert curve["high"][: half - 1] == [None] * (half - 1)
    assert curve["high"][half + 1 :] == [9.0] * (len(curve["high"]) - half - 1)
    assert set(curve["low"]) == {1.0}


def test_noise_has_its_interval_and_a_stretch_can_be_chosen() -> None:
    metrics = read(MetricColumns(), lines(100))
    drawn = curves(metrics, 10, 20)
    assert drawn["train_loss"]["step"] == list(range(10, 21))
    assert drawn["noise_scale"]["low"] == [20.0] * 11
    assert "noise_low" not in drawn
    assert curves(metrics)["noise_scale"]["high"][3] is None


# ---- the same path, in words


def words(*texts: str, digests: tuple[str, ...]) -> list[str]:
    names = ["one", "two", "three"][: len(texts)]
    said = comparison(names, digests, [read(MetricColumns(), text) for text in texts])
    return [each["words"] for each in said]


def test_equal_digests_are_the_same_path() -> None:
    both = words(lines(9), lines(9, seconds=2.0), digests=("a" * 64, "a" * 64))
    assert both == ["Same path: one and two ended with the same bits (digest aaaaaaaaaaaa)."]


def test_runs_under_way_are_compared_by_their_losses() -> None:
    other = lines(9).replace('"step": 7, "epoch": 0, "train_loss": 1', '"step": 7, "train_loss": 2')
    assert words(lines(20), lines(9), other, digests=("a", "", "")) == [
        "Same path so far: two has the same losses as one, bit for bit, in the 9 steps they share.",
        "three is on another path than one from step 7.",
    ]
    assert words(lines(9), lines(9), digests=("a", "b")) == [
        "two has the same losses as one, bit for bit, in the 9 steps they share, but ended with "
        "another digest."
    ]
    assert words(lines(5), "", digests=("", "")) == ["two and one have no step in common yet."]
