"""Curves of any length as few points, and which runs are on the same path."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from ui_folders import metrics_lines

from samepath.engine.state.metrics_log import MetricColumns
from samepath.web.dashboard.items import NUM_POINTS, comparison, curves, shorten


def read(metrics: MetricColumns, text: str | bytes) -> MetricColumns:
    metrics.read_on(io.BytesIO(text.encode() if isinstance(text, str) else text))
    return metrics


def lines(num_steps: int, **how: Any) -> str:
    return "".join(line + "\n" for line in metrics_lines(num_steps, **how))


def test_a_column_without_a_number_is_no_curve() -> None:
    odd = {"step": 4, "train_loss": "nan", "gradient_norm": "inf", "measured": {"rate": 2}}
    drawn = curves(read(MetricColumns(), json.dumps(odd) + "\n"))
    assert set(drawn) == {"measured_rate"}
    json.dumps(drawn, allow_nan=False)


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


def test_runs_are_compared_by_digest_or_by_their_losses() -> None:
    both = words(lines(9), lines(9, seconds=2.0), digests=("a" * 64, "a" * 64))
    assert both == ["Same path: one and two ended with the same bits (digest aaaaaaaaaaaa)."]
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
