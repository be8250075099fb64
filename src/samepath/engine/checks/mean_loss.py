"""A loss that is no mean over examples, noticed before the first step.

In: a loss, a model, the first grains of a batch. Out: nothing, or an error that says what the
loss looks like and what to write. Grains are trained on one at a time and their losses averaged,
which is the loss of the batch only if that is a mean over its examples.

The loss of two grains together is compared with the mean of their losses, for the first grain and
each of the others, on a copy of the model in evaluation mode (no dropout, no batch norm over a
grain). Guaranteed: the model, its buffers and
every global generator are left as they were; the answer depends on the first batch alone. Not
judged are a loss that is random, fails or is not finite there, and grains that cannot be joined.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from samepath.data.randomness import random_state_kept, seed_everything
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.rows import joined, settled, tensors_in, with_tensors
from samepath.errors import UserError

TOLERANCE = {8: 2e-5, 4: 2e-5, 2: 5e-2, 1: 5e-2}
"""The tolerance as a share of the losses' size, by the bytes of the coarsest floating-point type
that takes part: some hundred roundings of float32, which parts of a float64 model may be computed
in. (Class weights change a loss by a thousandth and more.)"""
TENSOR_CORES = 5e-3
"""The tolerance on a GPU, which may compute products of float32 numbers with fewer digits."""
NOISE = 30
"""Roundings, as seen when the two grains change places, that are let pass."""
GRAINS = 4
"""Of the first batch, that are looked at: a rare class, an ignored label may be in one of them."""

Loss = Callable[[nn.Module, Any], Any]
Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class TwoGrains:
    """Losses of two grains, each alone and both together."""

    losses: tuple[float, float]
    weights: tuple[float, float]
    """What each counts for: its examples, or what weight() says."""
    together: float
    tolerance: float

    @property
    def mean(self) -> float:
        pairs = zip(self.losses, self.weights, strict=True)
        # a grain that counts for nothing may have no loss to speak of (0 / 0)
        return math.fsum(x * w for x, w in pairs if w) / math.fsum(self.weights)

    @property
    def is_mean(self) -> bool:
        return abs(self.together - self.mean) <= self.tolerance

    def looks_like(self) -> str:
        """Which kind of loss it may be, and what to write."""
        low, high = sorted(self.losses)
        if abs(self.together - sum(self.losses)) <= self.tolerance:
            return "a sum over examples; use their mean (reduction='mean')"
        if low - self.tolerance <= self.together <= high + self.tolerance:
            return (
                "a mean in which examples count differently (class weights, labels that are "
                "ignored); give weight=, the sum of what a batch's examples count for "
                "(docs/bring/class-weights.md). Or a ratio of sums (Dice over the batch); give "
                "encode= and batch_loss= (docs/bring/contrastive.md)"
            )
        return (
            "a loss in which examples meet each other (contrastive, ranking); give encode= and "
            "batch_loss= in place of loss= (docs/bring/contrastive.md)"
        )


def refuse_not_a_mean(
    loss: Loss,
    model: nn.Module,
    grains: Sequence[Any],
    weights: Sequence[float] | None,
    sizes: Sequence[int],
    forward_context: Context,
) -> None:
    """Raise for a loss of which two grains show that it is no mean over examples. `weights`: what
    the recipe's weight() says of the grains, where it has one; `sizes`: their examples."""
    as_it_is = LeftAlone(model)  # a loss may use another way to it than its argument
    seen = _ClassWeights()
    count = [float(size) for size in sizes] if weights is None else weights
    try:
        with random_state_kept(), torch.no_grad():
            found = _look(loss, model, grains, count, forward_context, seen)
            if found is not None and not found.is_mean:
                # once more with room for numbers that cancel, where that can be computed
                wide = [with_tensors(grain, [*map(_wide, tensors_in(grain))]) for grain in grains]
                again = _look(loss, model, wide, count, nullcontext, seen, wide=True)
                found = found if again is None else again
    finally:
        as_it_is.put_back()
    if found is None:
        return
    if not found.is_mean:
        raise UserError(
            f"the loss of two grains together is {found.together:.6g}, and the mean of their "
            f"losses {found.mean:.6g}: samepath averages losses over grains, and would train on "
            f"another loss than yours. It looks like {found.looks_like()}. {_IF_MEANT}"
        )
    if weights is None and seen.are_hidden:
        raise UserError(
            "the loss is a cross entropy with class weights, which divides by the sum of its "
            "examples' weights, and not by their number (the first grains do not show it, for all "
            "have the same classes); give weight=, the sum of what a batch's examples count for "
            f"(docs/bring/class-weights.md). {_IF_MEANT}"
        )


_IF_MEANT = (
    "If each grain is meant to have a loss of its own: --i-know, or i_know=True in the recipe or "
    "prepare()"
)


class _ClassWeights(TorchFunctionMode):
    """Cross entropies with class weights that a loss computes. Two grains of the same classes do
    not show them, and a rare class is seldom in the first grains."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        """Since they were last counted."""
        self.of_the_batch = False
        """Whether one is called as often for two grains together as for one: not once for each
        example, whose mean is a mean."""
        self.means: set[float] = set()
        """Of the weights in each call. With several the losses have shown what they are."""

    @property
    def are_hidden(self) -> bool:
        return self.of_the_batch and len(self.means) == 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.cross_entropy, F.nll_loss):
            given = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
            weight, target = given.get("weight"), given["target"]
            is_mean = given.get("reduction", "mean") == "mean" and not target.is_floating_point()
            if is_mean and weight is not None and bool((weight != weight[0]).any()):
                self.calls += 1
                self.means.add(round(float(weight[target.clamp(0)].mean()), 6))
        return func(*args, **(kwargs or {}))

    def count(self) -> int:
        found, self.calls = self.calls, 0
        return found


def _look(
    loss: Loss,
    model: nn.Module,
    grains: Sequence[Any],
    weights: Sequence[float],
    context: Context,
    seen: _ClassWeights,
    *,
    wide: bool = False,
) -> TwoGrains | None:
    """Compare the first grain with each of the others, `wide` in float64, until two show that the
    loss is no mean; None where nothing can be judged."""
    for calm in (nn.Module.eval, _without_dropout):
        judged = None
        for other in range(1, len(grains)):
            two, of_two = (grains[0], grains[other]), (weights[0], weights[other])
            found = _look_at_two(loss, model, two, of_two, context, seen, calm, wide=wide)
            judged = found or judged
            if found is None or not found.is_mean:
                break
        if judged is not None:
            return judged
    return None


def _look_at_two(
    loss: Loss,
    model: nn.Module,
    grains: Sequence[Any],
    weights: tuple[float, float],
    context: Context,
    seen: _ClassWeights,
    calm: Callable[[nn.Module], nn.Module],
    *,
    wide: bool,
) -> TwoGrains | None:
    """Compute the losses of two grains; None where they cannot be judged."""
    try:
        own = calm(copy.deepcopy(getattr(model, "_orig_mod", model)))
        own = own.double() if wide else own
        both = joined(grains, "a batch"), joined(grains[::-1], "a batch")

        def value(data: Any, seed: int = 0) -> Tensor:
            seed_everything(seed)
            with context(), seen:
                found = loss(own, settled(data))
            found = found[0] if isinstance(found, tuple) else found
            if not isinstance(found, Tensor) or found.numel() != 1:
                raise ValueError("not one number")
            return found.detach()

        seen.count()
        first = value(grains[0])
        calls = seen.count()
        again, second = value(grains[0], 1), value(grains[1])
        seen.count()
        together = value(both[0])
        seen.of_the_batch |= 0 < calls == seen.count()
        swapped = value(both[1])
    except Exception:  # the step that meets it can say where, and on which worker
        return None
    used = [x for x, w in zip((first, second), weights, strict=True) if w]
    finite = all(math.isfinite(x) for x in (*used, together, swapped))
    if not used or not finite or not torch.equal(first, again):
        return None  # nothing to judge, or random in this mode
    scale = max(abs(float(x)) for x in (*used, together))
    noise = abs(float(together) - float(swapped))
    tolerance = scale * _tolerance(own, together, context) + NOISE * noise
    return TwoGrains((float(first), float(second)), weights, float(together), tolerance)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _without_dropout(model: nn.Module) -> nn.Module:
    """A model in training mode, except for what makes grains differ: some return no loss in
    evaluation mode."""
    model.train()
    for module in model.modules():
        if isinstance(module, (_DropoutNd, _NormBase)):
            module.eval()
    return model


def _tolerance(model: nn.Module, loss: Tensor, context: Context) -> float:
    """How far rounding may lead, by the coarsest type that takes part."""
    floats = [t for t in (*model.parameters(), *model.buffers(), loss) if t.is_floating_point()]
    coarsest = min(tensor.dtype.itemsize for tensor in floats)
    device = loss.device.type
    with context():
        if torch.is_autocast_enabled(device):
            coarsest = min(coarsest, torch.get_autocast_dtype(device).itemsize)
    known = TOLERANCE[coarsest]
    return known if device == "cpu" else max(known, TENSOR_CORES)
