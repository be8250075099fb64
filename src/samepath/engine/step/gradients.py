"""From the gradients of grains to the gradient of the batch.

In: parameters, and after each grain's backward pass their `.grad`. Out: `.grad` is the batch's.
Guaranteed: every element is added over the plan's tree, so the bits do not depend on who computed
which grain. A parameter no grain used keeps `.grad` None; one that some grains used counts as -0.0
in the others (x + -0.0 is x for every x), as if those additions had not been made.

A worker keeps finished subtrees on a stack, as in pairwise summation. The pair at the bottom of
the tree is added by autograd itself, into `.grad`. Where sums must travel, each gradient of the
last grain is folded into its bucket the moment it exists, and full buckets leave at once. Both only
where a backward pass has shown that each parameter's gradient comes in one piece (a module that is
used in several segments of `checkpoint(use_reentrant=True)` gets it in several).
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from samepath.engine.checks.refuse import OwnHook, refuse_sparse
from samepath.engine.comm.collective import Bucket, Collective
from samepath.engine.comm.tensors import dense_strides
from samepath.errors import UserError
from samepath.plan import BUCKET_BYTES, Reduction

Sums: TypeAlias = list[Tensor | None]
"""One partial sum: a tensor per parameter, None where no grain used it."""

ALIGNMENT_BYTES = 64
_OWN_REFERENCES = 4
"""Of a view that nobody else holds: among views, in a copy of them, by its name, and as an
argument."""


def add(left: Sums, right: Sums) -> Sums:
    """left + right, in left's memory."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]


@dataclass(frozen=True)
class Slot:
    """Where a value lies: which bucket, and where in it."""

    bucket: int
    offset: int


def lay_out(tensors: Sequence[Tensor], bucket_bytes: int) -> tuple[list[Slot], list[int]]:
    """A slot for each tensor and the length of each bucket: filled from the last tensor to the
    first (the order in which backward finds gradients), one dtype per bucket."""
    slots: list[Slot] = [Slot(0, 0)] * len(tensors)
    lengths: list[int] = []
    dtype: torch.dtype | None = None
    for index in reversed(range(len(tensors))):
        tensor = tensors[index]
        alignment = ALIGNMENT_BYTES // tensor.dtype.itemsize
        size = -(-tensor.numel() // alignment) * alignment
        full = lengths and (lengths[-1] + size) * tensor.dtype.itemsize > bucket_bytes
        if not lengths or full or tensor.dtype != dtype:
            lengths.append(0)
            dtype = tensor.dtype
        slots[index] = Slot(len(lengths) - 1, lengths[-1])
        lengths[-1] += size
    return slots, lengths


class TreeSum:
    """Adds lists of tensors over the plan's tree, across workers."""

    def __init__(
        self,
        collective: Collective,
        tensors: Sequence[Tensor],
        *,
        exact: bool,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._tensors = list(tensors)
        self._slots, lengths = lay_out(self._tensors, bucket_bytes)
        self._layouts = [(tensor.shape, dense_strides(tensor)) for tensor in tensors]
        self._views: dict[tuple[int, int], Tensor] = {}
        self._memory: list[int] = []
        dtypes = {slot.bucket: t.dtype for slot, t in zip(self._slots, tensors, strict=True)}
        self._worker = collective.worker
        self.buckets: list[Bucket] = []
        if collective.num_workers > 1:
            self.buckets = [
                collective.bucket(length, dtypes[number], exact=exact)
                for number, length in enumerate(lengths)
            ]
        self._in_bucket = [0] * len(lengths)
        for slot in self._slots:
            self._in_bucket[slot.bucket] += 1

    def begin(self, reduction: Reduction) -> None:
        """A new batch."""
        self._merges = reduction.merges[self._worker]
        self._num_sums = reduction.num_sums[self._worker]
        self._grain = 0
        self._stack: list[Sums] = []
        self._last: Sums | None = None
        self._missing = list(self._in_bucket)
        self._launched = 0
        self._used = [False] * len(self._tensors)
        self._give_away()
        for bucket in self.buckets:
            bucket.begin(reduction)
        memory = [bucket.rows.untyped_storage().data_ptr() for bucket in self.buckets]
        if memory != self._memory:  # some bucket has more room; views would keep the old alive
            self._views.clear()
            self._memory = memory

    def _give_away(self) -> None:
        """A total that somebody has kept (`previous = p.grad`) gets memory of its own: the bucket's
        is used again."""
        for where, view in list(self._views.items()):
            if sys.getrefcount(view) > _OWN_REFERENCES:
                own = view.clone()
                with torch.no_grad():
                    view.set_(own.untyped_storage(), 0, own.shape, own.stride())
                del self._views[where]

    @property
    def used(self) -> list[bool]:
        """After the last grain: which tensors this worker's grains had a value for."""
        return self._used if self.buckets else [t is not None for t in self._stack[0]]

    @property
    def on_last_grain(self) -> bool:
        return self._grain == len(self._merges) - 1

    @property
    def merges_with_previous(self) -> bool:
        """The grain to come completes a pair with the grain just pushed."""
        return (
            0 < self._grain < len(self._merges)
            and self._merges[self._grain] > 0
            and self._merges[self._grain - 1] == 0
        )

    def pop(self) -> Sums:
        return self._stack.pop()

    def push(self, sums: Sums, *, merged: int = 0) -> None:
        """A grain's values are complete; `merged` of its merges are already in them."""
        for _ in range(self._merges[self._grain] - merged):
            sums = add(self._stack.pop(), sums)
        self._stack.append(sums)
        self._grain += 1

    def write_early_sums(self) -> None:
        """Before the last grain: sums that it will not complete go to their rows."""
        for row in range(self._num_sums - 1):
            for index, tensor in enumerate(self._stack[row]):
                self._write(row, index, [] if tensor is None else [tensor])

    def write_last(self, index: int, tensor: Tensor | None) -> None:
        """During the last grain: one value is complete; fold it and start its bucket if full."""
        merges = self._merges[self._grain]
        terms = [tensor, *(self._stack[-1 - level][index] for level in range(merges))]
        present = [term for term in terms if term is not None]
        while len(present) > 2:
            present[:2] = [present[1].add_(present[0])]
        self._write(self._num_sums - 1, index, present)  # which adds the last two in its place
        number = self._slots[index].bucket
        self._missing[number] -= 1
        while self._launched < len(self.buckets) and self._missing[self._launched] == 0:
            self._launch_next()

    def launch_rest(self) -> None:
        """After the last grain. A worker without a grain in this batch has launched none yet."""
        while self._launched < len(self.buckets):
            self._launch_next()

    def _launch_next(self) -> None:
        self.buckets[self._launched].launch()
        self._launched += 1
        for bucket in self.buckets[: self._launched]:
            bucket.progress()

    def _write(self, row: int, index: int, terms: list[Tensor]) -> None:
        """A value, the sum of two, or nothing, to its place in a bucket's row."""
        place = self._view(self.buckets[self._slots[index].bucket].rows[row], index)
        self._used[index] |= bool(terms)
        if not terms:
            place.fill_(-0.0)
        elif len(terms) == 1:
            place.copy_(terms[0])
        else:
            torch.add(terms[1], terms[0], out=place)

    def finish(self) -> Sums:
        """The totals. Values nobody had are not told apart here (see `used`)."""
        if not self.buckets:
            (total,) = self._stack
            return total
        for bucket in self.buckets:
            bucket.settle()
        totals = [bucket.finish() for bucket in self.buckets]
        return [self._view(totals[slot.bucket], i) for i, slot in enumerate(self._slots)]

    def _view(self, flat: Tensor, index: int) -> Tensor:
        """A tensor's place in a bucket. Buckets keep their memory, so views are kept too."""
        where = (flat.data_ptr(), index)
        view = self._views.get(where)
        if view is None:
            shape, strides = self._layouts[index]
            offset = flat.storage_offset() + self._slots[index].offset
            view = self._views[where] = flat.as_strided(shape, strides, offset)
        return view

    def add(self, sums: Sums) -> None:
        """A grain's values, all at once; those of the last grain wait for `launch`."""
        if self.buckets and self.on_last_grain:
            self._last = sums
        else:
            self.push(sums)

    def write_added(self) -> None:
        """After `add` of the last grain: everything to its rows."""
        if self._last is not None:
            self.write_early_sums()
            for index, tensor in enumerate(self._last):
                self.write_last(index, tensor)

    def launch(self) -> None:
        """After `add` of every grain; `finish` ends it."""
        self.write_added()
        self.launch_rest()


class GradientSum:
    """The batch gradient of a model's parameters, one grain after another."""

    def __init__(
        self, collective: Collective, parameters: Mapping[str, nn.Parameter], *, exact: bool
    ) -> None:
        """`parameters` are all of the model's; those that require no gradient now have none."""
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.requires_grad = [parameter.requires_grad for parameter in self.parameters]
        self._trained = [index for index, needs in enumerate(self.requires_grad) if needs]
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
        )

    def _ready(self, place: int, parameter: Tensor) -> None:
        """A gradient has come, or a piece of it."""
        if not self._listens:
            return  # a backward pass of another batch, or of somebody else
        self._pieces[place] += 1
        if not self._writing:
            return
        self._refuse_pieces(place)
        self._refuse_sparse(place)
        if parameter.grad is not None:
            if self._correction != 1.0:
                parameter.grad.mul_(self._correction)
            if self._measuring:
                self._norms[-1] += torch._foreach_norm([parameter.grad])
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

    def begin(self, reduction: Reduction) -> None:
        self._totals: Sums | None = None
        self._tree.begin(reduction)
        self._norms: list[list[Tensor]] = []

    def before_forward(self) -> None:
        """Clear `.grad`, so that a backward pass inside the forward pass shows."""
        for parameter in self.parameters:
            parameter.grad = None

    def before_backward(self, *, measure: bool = False, correction: float = 1.0) -> None:
        """Arrange `.grad` so that autograd adds this grain to its pair, or starts afresh. `measure`
        takes its norm, which is only for a grain with an even number: it starts afresh. A gradient
        is multiplied by `correction` before it is added to anything."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None:
                raise UserError(
                    f"loss() or forward() ran a backward pass of its own into {name!r}; take "
                    "gradients there with torch.autograd.grad, which leaves .grad alone"
                )
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
        if self._writing:
            self._tree.write_early_sums()

    def after_backward(self) -> None:
        self._listens = False
        if self._writing:
            self._writing = False
            for place, pieces in enumerate(self._pieces):
                if not pieces:
                    self._tree.write_last(place, None)
        else:
            self._take_gradients()
        if self._comes_once is not False and any(self._pieces):
            self._comes_once = max(self._pieces) == 1
            if not self._overlap:  # from now on versions tell, which cost less
                self.close()
        self._measuring = False

    def _take_gradients(self) -> None:
        """All of the grain's, which are in `.grad`."""
        gradients = [parameter.grad for parameter in self._here]
        if self._merged and not self._overlap:
            # a piece is added to its pair in place, which counts a version
            self._pieces = [
                0 if gradient is None or before < 0 else gradient._version - before
                for gradient, before in zip(gradients, self._versions, strict=True)
            ]
        if self._merged:
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
        if self._overlap and self._tree.on_last_grain:
            self._tree.add(gradients)
            self._tree.write_added()
        else:
            self._tree.push(gradients, merged=self._merged)

    def launch_rest(self) -> None:
        self._tree.launch_rest()

    def squared_norms(self) -> list[float]:
        """Of this worker's measured grains, one after another. fsum rounds once: parameters have no
        order in it (and backward finds them in another than they are listed in)."""
        return [
            math.fsum(norm * norm for norm in torch.stack([n.float() for n in norms]).tolist())
            if norms
            else 0.0
            for norms in self._norms
        ]

    def finish(self) -> Sums:
        """The batch's gradient, in the order of the parameters: None for those that require none.
        What no grain used is in it too (see `used`), as nothing."""
        if self._totals is None:
            self._totals = [None] * len(self.parameters)
            for index, total in zip(self._trained, self._tree.finish(), strict=True):
                self._totals[index] = total
        return self._totals

    @property
    def used(self) -> list[bool]:
        """Which parameters this worker's grains used."""
        used = [False] * len(self.parameters)
        for index, use in zip(self._trained, self._tree.used, strict=True):
            used[index] = use
        return used
