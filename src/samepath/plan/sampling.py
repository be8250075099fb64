"""Weighted sampling: which examples an epoch draws, by weights.

In: a weight per example, how many draws an epoch has, with or without replacement; then (seed,
epoch). Out: the drawn examples, in order. Guaranteed: a function of these alone; the worker count
is not an input. An example of weight 0 is never drawn; without replacement none is drawn twice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samepath.errors import UserError
from samepath.keys import key, keys_for


@dataclass(frozen=True, eq=False)
class WeightedSampler:
    """Draws examples in proportion to weights (class-imbalanced data: one over the class's size).

    Not torch's WeightedRandomSampler, though it draws from the same distribution: that one draws
    from a generator whose state depends on what was drawn before.
    """

    weights: ArrayLike
    """One for each training example, in order; they need not add up to 1."""
    num_examples: int = None  # type: ignore[assignment]  # __post_init__ makes it a number
    """Draws of an epoch. As many as there are weights where it is not given (without replacement:
    weights above 0)."""
    replacement: bool = True
    """An example may be drawn several times in an epoch."""

    def __post_init__(self) -> None:
        try:
            weights = np.asarray(self.weights).astype(np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"sampler: weights are not numbers ({error})") from None
        if weights.ndim != 1 or not len(weights):
            raise UserError(
                f"sampler: weights have the shape {weights.shape}; give one number for each "
                "training example"
            )
        for wrong, what in ((~np.isfinite(weights), "not a number"), (weights < 0, "negative")):
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                raise UserError(
                    f"sampler: the weight of example {place} is {weights[place]:g}, {what}; give "
                    "0 for an example that is not to be drawn"
                )
        if not isinstance(self.replacement, bool):
            raise UserError(f"sampler: replacement is {self.replacement!r}; use True or False")
        positive = int(np.count_nonzero(weights))
        if not positive:
            raise UserError("sampler: all weights are 0; give some example a weight above 0")
        number = self.num_examples
        if number is None:
            number = len(weights) if self.replacement else positive
        if not isinstance(number, Integral) or number < 1:
            raise UserError(
                f"sampler: num_examples is {number!r}; it must be a whole number, at least 1"
            )
        if not self.replacement and number > positive:
            raise UserError(
                f"sampler: num_examples is {number}, and {positive} examples have a weight above "
                "0; draw at most so many, or set replacement=True"
            )
        weights.flags.writeable = False
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "num_examples", int(number))

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The examples that an epoch draws."""
        weights: NDArray[np.float64] = np.asarray(self.weights)
        number = self.num_examples if self.replacement else len(weights)
        keys = keys_for(key("sampler", seed, epoch), np.arange(number, dtype=np.int64))
        unit = (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53
        if self.replacement:
            ends = np.cumsum(weights)
            drawn: NDArray[np.int64] = np.searchsorted(ends, unit * ends[-1], side="right")
            last = np.flatnonzero(weights)[-1]
            drawn[drawn > last] = last  # where rounding has reached the end
            return drawn
        # Efraimidis and Spirakis 2006: the smallest of exponential numbers with these rates
        with np.errstate(divide="ignore"):
            times = np.where(weights > 0, -np.log1p(-unit) / weights, np.inf)
        return np.argsort(times, kind="stable")[: self.num_examples].astype(np.int64)

    def refuse_other_data(self, num_examples: int) -> None:
        """Raise unless there is a weight for each example."""
        if len(np.asarray(self.weights)) != num_examples:
            raise UserError(
                f"sampler: {len(np.asarray(self.weights))} weights for {num_examples} training "
                "examples; give one for each, in order"
            )

    def only(self, rows: NDArray[np.int64]) -> WeightedSampler:
        """The sampler of some of the examples, with as many draws in proportion."""
        weights = np.asarray(self.weights)
        left = weights[rows]
        number = max(1, round(self.num_examples * len(rows) / len(weights)))
        if not self.replacement:
            number = min(number, int(np.count_nonzero(left)))
        return WeightedSampler(left, number or None, self.replacement)  # type: ignore[arg-type]

    def of_length(self, num_examples: int) -> WeightedSampler:
        """The sampler with another number of draws."""
        return replace(self, num_examples=num_examples)

    def describe(self) -> str:
        """Say what it is, for run.json: another text, another path."""
        weights = np.asarray(self.weights)
        digest = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
        how = "with" if self.replacement else "without"
        return f"{self.num_examples} of {len(weights)} {how} replacement, weights {digest}"


def refuse_sampler(given: Any) -> None:
    """Raise for what is no sampler of ours."""
    if given is not None and not isinstance(given, WeightedSampler):
        raise UserError(
            f"sampler is {type(given).__name__}; give samepath.WeightedSampler(weights), or a "
            "DataLoader with torch's WeightedRandomSampler as the data"
        )
