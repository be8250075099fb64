"""A loss that is no mean over examples, noticed before the first step.

In: a loss, a model, the first grains of a batch. Out: nothing, or why the loss could not be judged,
or an error that says what it looks like and what to write. Grains are trained on one at a time and
their losses averaged, which is the loss of the batch only if that is a mean over its examples.

The loss of two grains together is compared with the mean of their losses, for the first grain and
each of the others, on a copy of the model in evaluation mode (no dropout, no batch norm over a
grain). A loss that is random there is given the same random numbers for each example. Guaranteed:
the model, its buffers and every global generator are left as they were; the answer depends on the
first batch alone. Not judged are a loss that fails or is not finite there, one whose random numbers
belong to no example, and grains that cannot be joined.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from samepath.data.randomness import random_state_kept, seed_everything
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.checks.same_draws import SameDraws, Untold
from samepath.engine.comm.rows import joined, settled, tensors_in, with_tensors
from samepath.errors import UserError
from samepath.files import brief

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
    def _that_count(self) -> list[tuple[float, float]]:
        # a grain that counts for nothing may have no loss to speak of (0 / 0)
        return [(x, w) for x, w in zip(self.losses, self.weights, strict=True) if w]

    @property
    def needs_both(self) -> bool:
        """Whether there is a loss of both, and none of one alone."""
        return not all(math.isfinite(loss) for loss, _ in self._that_count)

    @property
    def mean(self) -> float:
        return math.fsum(x * w for x, w in self._that_count) / math.fsum(self.weights)

    @property
    def is_mean(self) -> bool:
        return not self.needs_both and abs(self.together - self.mean) <= self.tolerance

    def words(self) -> str:
        """What was found, in words."""
        if self.needs_both:
            alone = " and ".join(f"{loss:.6g}" for loss, _ in self._that_count)
            return f"the loss of two grains together is {self.together:.6g}, and alone {alone}"
        return (
            f"the loss of two grains together is {self.together:.6g}, and the mean of their losses "
            f"{self.mean:.6g}"
        )

    def looks_like(self, seen: _Counted) -> str:
        """Which kind of loss it may be, and what to write."""
        low, high = sorted(self.losses)
        if not self.needs_both:
            if abs(self.together - sum(self.losses)) <= self.tolerance:
                return "a sum over examples; use their mean (reduction='mean')"
            if not low - self.tolerance <= self.together <= high + self.tolerance:
                return (
                    "a loss in which examples meet each other (contrastive, ranking); give encode= "
                    "and batch_loss= in place of loss= (docs/bring/contrastive.md)"
                )
        kinds = [
            "a loss in which examples meet each other or a ratio of sums (AUC, ranking, Dice over "
            "the batch); give encode= and batch_loss= in place of loss= "
            "(docs/bring/contrastive.md)",
            "a mean in which examples count differently (class weights, labels that are ignored); "
            "give weight=, the sum of what a batch's examples count for "
            "(docs/bring/class-weights.md)",
        ]
        return ". Or ".join(kinds[::-1] if seen.differently else kinds)


def refuse_not_a_mean(
    loss: Loss,
    model: nn.Module,
    grains: Sequence[Any],
    weights: Sequence[float] | None,
    sizes: Sequence[int],
    forward_context: Context,
) -> str | None:
    """Raise for a loss of which two grains show that it is no mean over examples; why that cannot
    be told, in words, where it cannot. `weights`: what the recipe's weight() says of the grains,
    where it has one; `sizes`: their examples."""
    as_it_is = LeftAlone(model)  # a loss may use another way to it than its argument
    seen = _Counted()
    count = [float(size) for size in sizes] if weights is None else weights
    try:
        with random_state_kept(), torch.no_grad():
            found = _look(_Look(loss, model, sizes, count, forward_context, seen), grains)
            if isinstance(found, TwoGrains) and not found.is_mean:
                # once more with room for numbers that cancel, where that can be computed
                wide = [with_tensors(grain, [*map(_wide, tensors_in(grain))]) for grain in grains]
                look = _Look(loss, model, sizes, count, nullcontext, seen, wide=True)
                again = _look(look, wide)
                found = again if isinstance(again, TwoGrains) else found
    finally:
        as_it_is.put_back()
    if not isinstance(found, TwoGrains):
        return found
    if not found.is_mean:
        raise UserError(
            f"{found.words()}: samepath averages losses over grains, and would train on another "
            f"loss than yours. It looks like {found.looks_like(seen)}. {_IF_MEANT}"
        )
    if weights is None and seen.are_hidden:
        raise UserError(
            "the loss is a cross entropy with class weights, which divides by the sum of its "
            "examples' weights, and not by their number (the first grains do not show it, for all "
            "have the same classes); give weight=, the sum of what a batch's examples count for "
            f"(docs/bring/class-weights.md). {_IF_MEANT}"
        )
    return None


_IF_MEANT = (
    "If each grain is meant to have a loss of its own: --i-know, or i_know=True in the recipe or "
    "prepare()"
)


class _Counted(TorchFunctionMode):
    """Cross entropies that a loss computes: with class weights (two grains of the same classes do
    not show them, and a rare class is seldom in the first grains), or with labels that are
    ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        """Since they were last counted."""
        self.of_the_batch = False
        """Whether one is called as often for two grains together as for one: not once for each
        example, whose mean is a mean."""
        self.means: set[float] = set()
        """Of the weights in each call. With several the losses have shown what they are."""
        self.ignores = False
        """Whether a label was ignored."""

    @property
    def differently(self) -> bool:
        """Whether examples count differently in one of them."""
        return self.ignores or bool(self.means)

    @property
    def are_hidden(self) -> bool:
        return self.of_the_batch and len(self.means) == 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.cross_entropy, F.nll_loss):
            given = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
            weight, target = given.get("weight"), given["target"]
            is_mean = given.get("reduction", "mean") == "mean" and not target.is_floating_point()
            if is_mean:
                self.ignores |= bool((target == given.get("ignore_index", -100)).any())
            if is_mean and weight is not None and bool((weight != weight[0]).any()):
                self.calls += 1
                self.means.add(round(float(weight[target.clamp(0)].mean()), 6))
        return func(*args, **(kwargs or {}))

    def count(self) -> int:
        found, self.calls = self.calls, 0
        return found


class _NotOneNumber(Exception):
    """A loss is no tensor with one number."""


@dataclass(frozen=True)
class _Look:
    """How a loss is looked at."""

    loss: Loss
    model: nn.Module
    sizes: Sequence[int]
    weights: Sequence[float]
    context: Context
    seen: _Counted
    wide: bool = False
    """In float64."""

    def value(self, model: nn.Module, data: Any) -> Tensor:
        with self.context(), self.seen:
            found = self.loss(model, settled(data))
        found = found[0] if isinstance(found, tuple) else found
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise _NotOneNumber
        return found.detach()


def _look(look: _Look, grains: Sequence[Any]) -> TwoGrains | str | None:
    """Compare the first grain with each of the others, until two show that the loss is no mean;
    where nothing can be judged, why (None: it is not finite there, which a step will say)."""
    why: str | None = None
    # a gradient penalty has no loss without gradients
    ways = ((nn.Module.eval, False), (_without_dropout, False), (nn.Module.eval, True))
    for calm, with_gradients in ways:
        judged: TwoGrains | None = None
        for other in range(1, len(grains)):
            with torch.set_grad_enabled(with_gradients):
                found = _look_at_two(look, calm, grains, other)
            if isinstance(found, TwoGrains):
                judged = found
            why = found if isinstance(found, str) and why is None else why
            if isinstance(found, str) or (found is not None and not found.is_mean):
                break
        if judged is not None:
            return judged
    return why


def _look_at_two(
    look: _Look, calm: Callable[[nn.Module], nn.Module], grains: Sequence[Any], other: int
) -> TwoGrains | str | None:
    """Compute the losses of two grains; why they cannot be judged, where they cannot."""
    weights, sizes = (look.weights[0], look.weights[other]), (look.sizes[0], look.sizes[other])
    two = grains[0], grains[other]
    try:
        both = joined(two, "a batch"), joined(two[::-1], "a batch")
    except UserError as error:
        return str(error)
    try:
        own = calm(copy.deepcopy(getattr(look.model, "_orig_mod", look.model)))
        own = own.double() if look.wide else own

        def value(data: Any, seed: int = 0) -> Tensor:
            seed_everything(seed)
            return look.value(own, data)

        look.seen.count()
        first = value(two[0])
        calls = look.seen.count()
        again, second = value(two[0], 1), value(two[1])
        look.seen.count()
        together = value(both[0])
        look.seen.of_the_batch |= 0 < calls == look.seen.count()
        # NaN is no other number than NaN
        if not torch.equal(first.nan_to_num(), again.nan_to_num()):
            return _look_at_chance(look, own, (*two, *both), weights, sizes)
        return _judged(look, own, (first, second, together, value(both[1])), weights)
    except _NotOneNumber:  # which the step refuses
        return None
    except Exception as error:  # the step that meets it can say where, and on which worker
        return f"on a copy of the model it raises {type(error).__name__}: {brief(error)}"


def _look_at_chance(
    look: _Look,
    own: nn.Module,
    parts: Sequence[Any],
    weights: tuple[float, float],
    sizes: tuple[int, int],
) -> TwoGrains | str | None:
    """Compute the losses of two grains and of both, each example with the same random numbers."""
    first, total = range(sizes[0]), sum(sizes)
    second = range(sizes[0], total)
    of_parts = (None, first, first, second, [*second, *first])
    found = None
    for interleaved in (False, True):
        draws, values = SameDraws(total, interleaved=interleaved), []
        for rows, part in zip(of_parts, (parts[2], parts[0], *parts[:2], parts[3]), strict=True):
            draws.begin(rows)
            try:
                with draws:
                    values.append(look.value(own, part))
                draws.end()
            except Untold:
                return _RANDOM
        together, once, again, other, swapped = values
        if not torch.equal(once.nan_to_num(), again.nan_to_num()):
            return _RANDOM
        if draws.outside or draws.several:  # where places count, what differs is not rounding
            swapped = together
        found = _judged(look, own, (once, other, together, swapped), weights)
        if found is None or found.is_mean or not draws.several:
            break
    return _RANDOM if found is not None and not found.is_mean and draws.outside else found


_RANDOM = "it changes from call to call, by more than random numbers that belong to examples"


def _judged(
    look: _Look, own: nn.Module, values: tuple[Tensor, ...], weights: tuple[float, float]
) -> TwoGrains | None:
    """What was found of two grains, from the losses of each, of both, and of both swapped; None
    where there is nothing to judge."""
    first, second, together, swapped = values
    used = [float(x) for x, w in zip((first, second), weights, strict=True) if w]
    if not used or not all(math.isfinite(x) for x in (together, swapped)):
        return None
    found = TwoGrains((float(first), float(second)), weights, float(together), 0.0)
    if found.needs_both:
        return found
    scale = max(map(abs, (*used, float(together))))
    noise = abs(float(together) - float(swapped))
    return replace(found, tolerance=scale * _tolerance(own, together, look.context) + NOISE * noise)


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
