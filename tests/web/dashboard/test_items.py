"""Curves of any length as few points, and which runs are on the same path."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from ui_folders import metrics_lines

from samepath.engine.state.metrics_log import MetricColumns
from samepath.web.dashboard.items import (
    NUM_POINTS,
    ShownRun,
    _seconds_left,
    comparison,
    curves,
    run_line,
    shorten,
)


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


def words(*texts: str, digests: tuple[str, ...], configs: Any = None) -> list[str]:
    names = ["one", "two", "three"][: len(texts)]
    metrics = [read(MetricColumns(), text) for text in texts]
    said = comparison(names, digests, metrics, configs or [{}] * len(texts))
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


def test_runs_of_other_recipes_and_settings_are_said_to_be() -> None:
    digits, nodules = ({"recipe": name, "identity": name} for name in ("digits", "nodules"))
    (said,) = words(lines(9), lines(9), digests=("a", "b"), configs=[digits, nodules])
    assert said == "one and two are of different recipes (digits and nodules): no path to compare."
    changed = [{"recipe": "mine.py", "identity": identity} for identity in ("1", "2")]
    (said,) = words(lines(9), lines(9), digests=("a", "b"), configs=changed)
    assert "different recipes (mine.py changed between them)" in said
    other = lines(9).replace('"train_loss": 1', '"train_loss": 2')
    seeds = [digits | {"seed": seed, "batch_size": 8} for seed in (0, 1)]
    (said,) = words(lines(9), other, digests=("a", "b"), configs=seeds)
    assert said.endswith("from step 3. Their settings differ: seed (0, 1).")


def test_the_batch_is_that_of_the_strategy() -> None:
    config = {"recipe": "digits", "batch_size": 64, "strategy": "weak", "epochs": 2}
    start = {"command": [], "versions": {}, "batch_size": 128}

    def shown(start: Any, newest: Any, result: Any) -> Any:
        content = {"status": "running", "config": config, "starts": [start], "result": result}
        return run_line(ShownRun.of(content), False, newest)["batch_size"]

    assert shown({"command": [], "versions": {}}, {}, None) == 64, "of an older samepath"
    assert shown(start, {}, None) == 128
    assert shown(start, {"batch_size": 256}, None) == 256
    assert shown(start, {}, {"batch_size": 512}) == 512


def test_a_run_says_on_which_host_it_was_started_last() -> None:
    def host(*starts: Any) -> Any:
        content: dict[str, Any] = {"status": "running", "config": {}, "starts": list(starts)}
        return run_line(ShownRun.of(content), True, {})["host"]

    assert host({"host": "node1"}, {"host": "node7"}) == "node7"
    assert host({"host": 3}) == host({}) == host() == ""


@pytest.mark.parametrize(
    ("to_do", "now", "left"),
    [
        (100, {"steps": 25, "seconds": 10.0}, 30.0),
        (100, {"steps": 103, "seconds": 10.0}, 0.0),
        (None, {"steps": 25, "seconds": 10.0}, None),
        (100, {"steps": None, "seconds": 10.0}, None),
        (100, {"steps": 25}, None),
    ],
)
def test_the_time_left_is_that_of_the_rest_at_the_pace_so_far(
    to_do: int | None, now: dict[str, Any], left: float | None
) -> None:
    assert _seconds_left(to_do, now) == left
