"""Numbers and names in words."""

from __future__ import annotations

import math

from samepath.report.words import (
    duration,
    endings,
    listed,
    milliseconds,
    noise_meaning,
    noise_words,
    number,
)


def test_words() -> None:
    times = [0.012, 4.04, 45.6, 186.0, 7300.0, 3e5, math.inf]
    said = ["0.012 s", "4.0 s", "46 s", "3.1 min", "2.0 h", "3.5 days", "inf s"]
    assert [duration(time) for time in times] == said
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert number(None) == ""
    assert number(math.nan) == "NaN"
    assert endings({"diverged": 3}) == "diverged"
    both = "target reached (1 of 3 seeds), stuck (2 of 3 seeds)"
    assert endings({"target": 1, "stuck": 2}) == both


def test_milliseconds_keep_three_digits_and_no_exponent() -> None:
    seconds = [0.0, 1e-6, 0.00123456, 0.0123456, 0.123456, 1.23456, 123.456]
    said = ["0", "0", "1.23", "12.3", "123", "1,235", "123,456"]
    assert [milliseconds(each) for each in seconds] == said


def test_the_noise_scale_in_words() -> None:
    assert noise_words(320.4, 250.0, 410.0) == "320 examples (95%: 250 to 410)"
    assert noise_words(320.4, 250.0, None) == "320 examples (95%: at least 250)"
    assert noise_words(320.4, None, None) == "320 examples"
    said = {600.0: "nearly in proportion", 150.0: "less than", 50.0: "hardly"}
    assert all(words in noise_meaning(value, 100) for value, words in said.items())
