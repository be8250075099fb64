"""The batch's gradient, from the gradients of its grains.

In: parameters, and after each grain's backward pass their `.grad`. Out: the batch's gradient.
Guaranteed: the bits do not depend on which worker computed which grain (see comm/tree_sum.py). A
parameter that no grain used has no gradient.

The pair at the bottom of the tree is added by autograd itself, into `.grad`. Where sums must
travel, each gradient of the last grain is folded into its bucket the moment it exists. Both only
where a backward pass has shown that each parameter's gradient comes in one piece (a module that is
used in several segments of `checkpoint(use_reentrant=True)` gets it in several).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from samepath.engine.checks.refuse import OwnHook, refuse_own_backward, refuse_sparse
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.factor_sums import FactorSums, Rows
from samepath.engine.comm.tree_sum import Sums, TreeSum
from samepath.engine.step.factors import Factors
from samepath.errors import UserError
from samepath.plan import Division


class GradientSum:
    """The batch gradient of a model's parameters, one grain after another."""

    def __init__(
        self,
        collective: Collective,
        parameters: Mapping[str, nn.Parameter],
        factors: Factors,
        also_in_tree: set[str],
        *,
        exact: bool,
    ) -> None:
        """`parameters` are all of the model's; those that require no gradient now have none. Those
        of `factors` are not in the tree, except for `also_in_tree`: weights that were found to
        have other gradients too."""
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.requires_grad = [parameter.requires_grad for parameter in self.parameters]
        self.factors = factors
        self._also_in_tree = also_in_tree
        self._apart = [n for n in factors.weights if self.names[n] not in also_in_tree]
        self._trained = [
            number
            for number, needs in enumerate(self.requires_grad)
            if needs and number not in self._apart
        ]
        weights = {number: self.parameters[number] for number in factors.weights}
        self._rows = FactorSums(collective, weights, exact=exact)
        self._here = [self.parameters[index] for index in self._trained]
        self._tree = TreeSum(collective, self._here, exact=exact)
        self._overlap = collective.num_workers > 1
        self._comes_once: bool | None = None
        """Each gradient comes in one piece; None before a backward pass has shown it."""
        self._listens = self._writing = self._measuring = False
        self._merged = 0
        self._correction = 1.0
        self._pieces = [0] * len(self._here)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(OwnHook(partial(self._ready, place)))
            for place, parameter in enumerate(self._here)
        ]

    def fits(self, parameters: Mapping[str, nn.Parameter]) -> bool:
        """Whether these are still the parameters (people replace, freeze and unfreeze them)."""
        return (
            list(parameters) == self.names
            and all(map(operator.is_, parameters.values(), self.parameters))
            and [p.requires_grad for p in parameters.values()] == self.requires_grad
            and self._also_in_tree.isdisjoint(self.names[number] for number in self._apart)
        )

    def _ready(self, place: int, parameter: Tensor) -> None:
        """Take note that a gradient, or a piece of it, has come (autograd calls this)."""
        if not self._listens:
            return  # a backward pass of another batch, or of the user's own
        self._pieces[place] += 1
        if not self._writing:
            return
        self._refuse_pieces(place)
        self._refuse_sparse(place)
        if parameter.grad is not None:
            if self._correction != 1.0:
                parameter.grad.mul_(self._correction)
            if self._measuring:
                self._measure(place, parameter.grad)
        self._tree.write_last(place, parameter.grad)
        parameter.grad = None  # it is in its bucket; the memory can go

    def _refuse_pieces(self, place: int) -> None:
        """Raise if there was more than one, where that is too late or changes the order of sums."""
        if self._pieces[place] > 1:
            raise UserError(
                f"the gradient of {self._name(place)!r} comes in several pieces in one backward "
                "pass, and came in one before; use checkpoint(..., use_reentrant=False)"
            )

    def _name(self, place: int) -> str:
        return self.names[self._trained[place]]

    def _refuse_sparse(self, place: int) -> None:
        gradient = self._here[place].grad
        if gradient is not None and gradient.is_sparse:
            raise refuse_sparse(self._name(place))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin(self, division: Division) -> None:
        self._totals: Sums | None = None
        self._of_tree: Sums | None = None
        self._tree.begin(division.reduction)
        self._rows.begin(division)
        self._norms: list[list[Tensor]] = []
        self._squares: list[list[Tensor]] = []

    def before_forward(self) -> None:
        """Clear `.grad`, so that a backward pass inside the forward pass shows."""
        for parameter in self.parameters:
            parameter.grad = None

    def backward(self, loss: Tensor, scale: float, *, measure: bool) -> None:
        """Run a grain's backward pass: its gradient counts for `scale` in the batch's. `measure`
        takes its norm."""
        start = torch.full_like(loss, scale)
        # a loss of 16 bits has no room for most scales; what is lost of them is made up for in the
        # gradients, which have more
        correction = 1.0
        if scale and loss.dtype.itemsize < 4:
            if not float(start):  # too small for any
                start = torch.ones_like(loss)
            correction = scale / float(start)
        self._before_backward(measure=measure, correction=correction)
        # a grain that counts for nothing may have no loss to speak of (0 / 0); one of which nothing
        # is to be learnt may have one without a gradient
        if scale and loss.requires_grad:
            with self.factors.collecting():
                loss.backward(start)

    def backward_rows(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Run a grain's backward pass from the gradients of its outputs: those of the whole batch's
        loss, which have the grain's share in them."""
        self._before_backward(measure=False, correction=1.0)
        if outputs:
            with self.factors.collecting():
                torch.autograd.backward(list(outputs), list(gradients))

    def refuse_own_backward(self) -> None:
        """Raise if a forward pass has left gradients."""
        if any(parameter.grad is not None for parameter in self.parameters):
            refuse_own_backward(dict(zip(self.names, self.parameters, strict=True)))

    def _before_backward(self, *, measure: bool, correction: float) -> None:
        """Arrange `.grad` so that autograd adds this grain to its pair, or starts afresh. `measure`
        is only for a grain with an even number: it starts afresh. A gradient is multiplied by
        `correction` before it is added to anything."""
        self.refuse_own_backward()
        on_last, once = self._overlap and self._tree.on_last_grain, self._comes_once is True
        merges = self._tree.merges_with_previous and not on_last
        self._writing = on_last and once
        self._merged = int(merges and once and correction == 1.0)
        self._pieces = [0] * len(self._here)
        self._listens = True
        self._correction = correction
        self._versions = [-1] * len(self._here)
        if self._merged:
            for place, gradient in enumerate(self._tree.pop()):
                if gradient is not None:
                    self._here[place].grad = gradient
                    self._versions[place] = gradient._version
        self._measuring = measure
        if measure:
            assert not self._merged, "an odd grain may have been added to its pair"
            self._norms.append([])
            self._squares.append([])
            self._dense: dict[int, Tensor] = {}

    def after_backward(self) -> None:
        self._listens = False
        if self._writing:
            self._writing = False
            for place, pieces in enumerate(self._pieces):
                if not pieces:
                    self._tree.write_last(place, None)
        else:
            self._take_gradients()
        self._take_rows()
        if self._comes_once is not False and any(self._pieces):
            self._comes_once = max(self._pieces) == 1
            if not self._overlap:  # from now on versions tell, which cost less
                self.close()
        self._measuring = False

    def _take_gradients(self) -> None:
        """Take the whole grain's gradients, which are in `.grad`."""
        gradients = [parameter.grad for parameter in self._here]
        if self._merged and not self._overlap:
            # a piece is added to its pair in place, which counts a version
            self._pieces = [
                0 if gradient is None or before < 0 else gradient._version - before
                for gradient, before in zip(gradients, self._versions, strict=True)
            ]
        if self._merged and max(self._pieces, default=0) > 1:
            for place in range(len(gradients)):
                self._refuse_pieces(place)
        present = [gradient for gradient in gradients if gradient is not None]
        if any(gradient.is_sparse for gradient in present):
            for place in range(len(gradients)):
                self._refuse_sparse(place)
        if self._correction != 1.0 and present:
            torch._foreach_mul_(present, self._correction)
        if self._measuring and present:
            self._norms[-1] += torch._foreach_norm(present)
            for place, gradient in enumerate(gradients):
                self._remember(place, gradient)
        if self._overlap and self._tree.on_last_grain:
            self._tree.add(gradients)
            self._tree.write_added()
        else:
            self._tree.push(gradients, merged=self._merged)

    def _measure(self, place: int, gradient: Tensor) -> None:
        self._norms[-1] += torch._foreach_norm([gradient])
        self._remember(place, gradient)

    def _remember(self, place: int, gradient: Tensor | None) -> None:
        """Keep what the tree gets of a weight that has factors too: a norm needs both."""
        number = self._trained[place]
        if gradient is not None and number in self.factors.weights:
            self._dense[number] = gradient.clone()

    def _take_rows(self) -> None:
        """Take the grain's factors, and what else its weights have in `.grad`."""
        rows = self.factors.grain(self._correction)
        further: dict[int, Tensor] = {}
        for number in self._apart:
            gradient = self.parameters[number].grad
            if gradient is not None:
                if gradient.is_sparse:
                    raise refuse_sparse(self.names[number])
                further[number] = gradient
                if self._correction != 1.0:
                    gradient.mul_(self._correction)
        if self._measuring:
            self._norms[-1] += torch._foreach_norm(list(further.values())) if further else []
            parts: dict[int, list[Rows | Tensor]] = {
                number: [gradient] for number, gradient in (self._dense | further).items()
            }
            for key, found in rows.items():
                others = parts.setdefault(key.weight, [])
                self._squares[-1].append(found.inner(found))
                self._squares[-1] += [2.0 * found.inner(other) for other in others]
                others.append(found)
        self.rows = [(self.names[key.weight], found) for key, found in rows.items()]
        self._rows.add(rows, further)

    def launch_rest(self) -> None:
        self._tree.launch_rest()
        self._rows.launch_rest()

    def squared_norms(self) -> list[float]:
        """Squared norms of this worker's measured grains. fsum rounds once: parameters have no
        order in it (and backward finds them in another than they are listed in)."""
        return [
            math.fsum([*(norm * norm for norm in _values(norms)), *_values(squares)])
            for norms, squares in zip(self._norms, self._squares, strict=True)
        ]

    def wait(self) -> None:
        """Wait for the sums of the tree."""
        self._of_tree = self._tree.finish()

    def finish(self) -> Sums:
        """The batch's gradient, in the order of the parameters: None for those that require none.
        What no grain used is in it too (see `used`), as nothing."""
        if self._totals is None:
            if self._of_tree is None:
                self.wait()
            assert self._of_tree is not None
            self._totals = [None] * len(self.parameters)
            for number, total in zip(self._trained, self._of_tree, strict=True):
                self._totals[number] = total
            products, with_more = self._rows.finish()
            for number, product in products.items():
                known = self._totals[number]
                self._totals[number] = product if known is None else product.add_(known)
            self._also_in_tree |= {self.names[number] for number in with_more}
        return self._totals

    @property
    def used(self) -> list[bool]:
        """Which parameters this worker's grains used."""
        with_rows = self._rows.used
        used = [number in with_rows for number in range(len(self.parameters))]
        for number, use in zip(self._trained, self._tree.used, strict=True):
            used[number] |= use
        return used


def _values(tensors: list[Tensor]) -> list[float]:
    return torch.stack([tensor.float() for tensor in tensors]).tolist() if tensors else []
