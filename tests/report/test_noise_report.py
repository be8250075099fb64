"""The noise scale in a run's report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from samepath.report.show import draw_noise, noise_lines
from samepath.report.words import noise_meaning, noise_words

LINES: list[dict[str, Any]] = [
    {"step": 1, "train_loss": 2.0},  # of a batch of one grain
    {"step": 2, "noise_scale": None, "noise_low": None, "noise_high": None},
    {"step": 3, "noise_scale": 50.0, "noise_low": None, "noise_high": None},
    *(
        {"step": s, "noise_scale": 10.0 * s, "noise_low": 5.0 * s, "noise_high": None}
        for s in range(4, 8)
    ),
    *(
        {"step": s, "noise_scale": 10.0 * s, "noise_low": 5.0 * s, "noise_high": 20.0 * s}
        for s in range(8, 40)
    ),
]


def test_draws_what_is_there(tmp_path: Path) -> None:
    assert [line["step"] for line in noise_lines(LINES)] == list(range(3, 40))
    draw_noise(LINES, 64, tmp_path / "noise.png", "digits: 5$ of noise$")
    image = imread(tmp_path / "noise.png")[:, :, :3]
    for colour in ([8, 81, 156], [217, 95, 2]):  # the scale, the batch size
        assert (np.abs(image * 255 - colour).max(axis=2) < 12).sum() > 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((320.4, 250.0, 410.0), "320 examples (95%: 250 to 410)"),
        ((320.4, 250.0, None), "320 examples (95%: at least 250)"),
        ((320.4, None, None), "320 examples"),
    ],
)
def test_words(arguments: tuple[float, float | None, float | None], words: str) -> None:
    assert noise_words(*arguments) == words


@pytest.mark.parametrize(
    ("value", "words"), [(600.0, "nearly in proportion"), (150.0, "less than"), (50.0, "hardly")]
)
def test_meaning(value: float, words: str) -> None:
    assert words in noise_meaning(value, 100)
