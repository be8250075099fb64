"""Fair tuning: the trials that a strategy gets, and which of them is chosen.

In: a strategy as it was typed, the learning rate it begins from, the number of a study. Out:
settings to try, what the strategy prescribes first; then the place of the best. Guaranteed: within
a study all strategies at all worker counts meet the same quasi-random points, so that strategies on
one path share their trials; more trials begin with the same ones; every setting is a strategy and a
rate that a person could have typed.

A trial draws the learning rate and, where the strategy has one, its warm-up length or its lag. LARS
and LAMB scale each layer's step by its trust, to which their rate is proportional: the rate is what
is tuned. The bound of asynchronous updates is not: a lower one makes workers wait, which modelled
times do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from samepath.keys import key
from samepath.strategies import BUILT_IN, find_strategy
from samepath.study.results import Range, TuningTrial

RATE = Range(setting="learning rate", low=0.1, high=10.0, factor=True)
OWN = {
    "epochs": Range(setting="warm-up epochs", low=0.25, high=4.0, factor=True),
    "lag": Range(setting="lag in updates", low=1.0, high=4.0, factor=False),
}
"""What strategies have of their own, by the name of the parameter."""
Point = tuple[float, float]


class Setting(NamedTuple):
    """A strategy with parameters, and the learning rate of one worker."""

    strategy: str
    learning_rate: float | None
    """None: the study's."""


def trial_points(study: int, number: int) -> list[Point]:
    """Points of the unit square for the trials after the first: a scrambled Halton sequence."""
    from scipy.stats import qmc

    sequence = qmc.Halton(2, seed=np.random.default_rng(key("trials", study)))
    return [(float(x), float(y)) for x, y in sequence.random(number - 1)]


def settings_to_try(
    text: str, learning_rate: float, points: Sequence[Point], prescribed_rate: float | None
) -> list[Setting]:
    """What the strategy prescribes, and a setting for each point."""
    return [
        Setting(text, prescribed_rate),
        *(_setting(text, learning_rate, prescribed_rate, point) for point in points),
    ]


def _setting(text: str, learning_rate: float, prescribed: float | None, point: Point) -> Setting:
    strategy = find_strategy(text).function if text.split(":")[0] in BUILT_IN else None
    for name, span in OWN.items():
        if (own := getattr(strategy, name, None)) is not None:
            value = _between(span, point[1], own)
            text = with_parameter(text, name, value if span.factor else max(1, round(value)))
    if (rate := getattr(strategy, "rate", None)) is not None:  # its own, in place of the recipe's
        return Setting(with_parameter(text, "rate", _between(RATE, point[0], rate)), prescribed)
    return Setting(text, _rounded(_between(RATE, point[0], learning_rate)))


def _between(span: Range, place: float, own: float) -> float:
    drawn = span.low * math.exp(place * math.log(span.high / span.low))
    return own * drawn if span.factor else drawn


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def with_parameter(text: str, name: str, value: float) -> str:
    """A strategy's text with a parameter set: "warmup:epochs=3" of "warmup:epochs=5"."""
    others = [part for part in text.split(":") if not part.startswith(f"{name}=")]
    return ":".join([*others, f"{name}={value:.4g}"])


def best_trial(trials: Sequence[TuningTrial]) -> int:
    """Find the one that reached the target soonest; if none did, that with the lowest loss. Of
    equal ones the first."""

    def rank(place: int) -> tuple[float, float]:
        trial = trials[place]
        loss = math.inf if math.isnan(trial.loss) else trial.loss
        return trial.seconds, loss if math.isinf(trial.seconds) else 0.0

    return min(range(len(trials)), key=rank)


def ranges_of(strategies: Sequence[str]) -> tuple[Range, ...]:
    """The ranges that trials of these strategies draw from."""
    found = [find_strategy(text).function for text in strategies if text.split(":")[0] in BUILT_IN]
    used = [span for name, span in OWN.items() if any(hasattr(each, name) for each in found)]
    return RATE, *used
