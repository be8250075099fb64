"""What a loss tells beside the number that is minimised: `return loss, {"dice": ...}`.

In: what loss() returned for a grain. Out: the loss, and numbers by name. Guaranteed: the names are
the same in every grain of a training, on every worker, or it is refused by the name that differs.
Their means over a batch are taken with the loss's weights, in the record of the step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from samepath.engine.comm.collective import Collective
from samepath.errors import UserError

GrainMetrics = Mapping[str, Any]
"""The metrics of one grain: numbers, or tensors with one number."""


def split_loss(found: Any) -> tuple[Any, GrainMetrics]:
    """The loss, and the metrics if there are any, without the graph they were computed in."""
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        return found, {}
    loss, metrics = found
    return loss, {n: v.detach() if isinstance(v, Tensor) else v for n, v in metrics.items()}


def loss_alone(found: Any) -> Any:
    """The loss without its metrics."""
    return split_loss(found)[0]


def numbers_of(metrics: GrainMetrics) -> dict[str, float]:
    """A grain's metrics as numbers, or an error that names the one that is none."""
    numbers = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or name == "loss":
            raise UserError(
                f"loss() returned a metric called {name!r}; use any other text ('loss' is the loss)"
            )
        if isinstance(value, Tensor) and (value.numel() != 1 or value.is_complex()):
            raise UserError(
                f"loss() returned a metric {name!r} of shape {tuple(value.shape)}; return one "
                "number, the mean over the given examples"
            )
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise UserError(
                f"loss() returned a metric {name!r} that is {value!r}; return a number, or a "
                "tensor with one"
            ) from None
    return numbers


class MetricNames:
    """The names of a training's metrics, in order; known after the first grains."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._names: tuple[str, ...] | None = None

    def learn(self, grains: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
        """The names, which these grains of this worker must have (all workers together)."""
        if self._names is None:
            mine = json.dumps(sorted(grains[0]) if grains else None).encode()
            said = [json.loads(text) for text in self._collective.gather_bytes(mine)]
            known = [names for names in said if names is not None]
            for names in known:
                _refuse_others(names, known[0])
            self._names = tuple(known[0]) if known else ()
        for grain in grains:
            _refuse_others(sorted(grain), self._names)
        return self._names


def _refuse_others(found: Sequence[str], names: Sequence[str]) -> None:
    """Raise for the first name that only some grains have."""
    for name in sorted({*found} ^ {*names}):
        raise UserError(
            f"loss() returned the metric {name!r} for some examples and not for others; return the "
            "same names for every batch (float('nan') where there is nothing to say)"
        )
