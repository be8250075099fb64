"""What `samepath curate` says of the labels."""

from __future__ import annotations

from typing import Any

import pytest

from samepath.cli.curate import _noise_lines
from samepath.report.curation import noise_words


def noise(**facts: Any) -> dict[str, Any]:
    return {
        "judge": "out-of-fold predictions",
        "rate": 0.0,
        "rate_low": 0.0,
        "rate_high": 0.0,
        "num_taken": 0,
        "num_contradicted": 3,
        "confusions": [],
        **facts,
    }


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "the labels look clean"),
        ({"num_contradicted": 26}, "it contradicts 26 of 1,437 labels"),
        ({"rate": 0.02, "rate_low": 0.01, "rate_high": 0.03}, "2.0% of the labels are wrong"),
    ],
)
def test_labels_are_called_clean_where_the_judge_agrees(facts: dict[str, Any], said: str) -> None:
    (line,) = _noise_lines(noise(**facts), 1437)
    assert said in line
    assert ("clean" in line) == (said == "the labels look clean")
    shown = noise_words(noise(**facts), 1437)  # the report says the same
    assert said[1:] in shown
    assert ("clean" in shown) == ("clean" in line)
