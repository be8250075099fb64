"""Adds partial sums over the plan's tree, across workers.

In: for each of this worker's grains a list of tensors. Out: their total over the whole batch.
Guaranteed: every element is added over the plan's tree, so the bits do not depend on which worker
computed which grain. A tensor that no grain had is None; one that only some grains had counts as
-0.0 in the others (x + -0.0 is x for every x), as if those additions had not been made.

A worker keeps finished subtrees on a stack, as in pairwise summation. Where sums must travel,
tensors lie side by side in buckets. A sum that no later grain of the worker changes leaves when the
grain that completes it is done; the last sum of a bucket leaves as soon as the last grain's
backward pass has filled it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from samepath.engine.comm.collective import Bucket, Collective, Travelling
from samepath.engine.comm.tensors import dense_strides
from samepath.plan import Reduction, bucket_bytes, settled

Sums: TypeAlias = list[Tensor | None]
"""One partial sum: a tensor per parameter, None where no grain used it."""

ALIGNMENT_BYTES = 64
_OWN_REFERENCES = 4
"""References to a view that no one else holds: among views, in a copy of them, by its name, and as
an argument."""


def add(left: Sums, right: Sums) -> Sums:
    """left + right, in left's memory."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]


class Slot(NamedTuple):
    """The place of a value: its bucket, and where in it."""

    bucket: int
    offset: int


def lay_out(tensors: Sequence[Tensor], most_bytes: int) -> tuple[list[Slot], list[int]]:
    """A slot for each tensor and the length of each bucket: filled from the last tensor to the
    first (the order in which backward finds gradients), one dtype per bucket."""
    slots: list[Slot] = [Slot(0, 0)] * len(tensors)
    lengths: list[int] = []
    dtype: torch.dtype | None = None
    for index in reversed(range(len(tensors))):
        tensor = tensors[index]
        alignment = ALIGNMENT_BYTES // tensor.dtype.itemsize
        size = -(-tensor.numel() // alignment) * alignment
        full = lengths and (lengths[-1] + size) * tensor.dtype.itemsize > most_bytes
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
        what: Travelling = "gradients",
    ) -> None:
        self._tensors = list(tensors)
        # a plain all-reduce adds in an order that depends on where in a bucket a value is
        speed = collective.speed if exact else None
        total = sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)
        most = bucket_bytes(collective.num_workers, total, speed)
        self._slots, lengths = lay_out(self._tensors, most)
        self._layouts = [(tensor.shape, dense_strides(tensor)) for tensor in tensors]
        self._views: dict[tuple[int, int], Tensor] = {}
        self._memory: list[int] = []
        dtypes = {slot.bucket: t.dtype for slot, t in zip(self._slots, tensors, strict=True)}
        self._worker = collective.worker
        self.buckets: list[Bucket] = [
            collective.bucket(length, dtypes[number], exact=exact, what=what)
            for number, length in enumerate(lengths if collective.num_workers > 1 else ())
        ]
        in_bucket = Counter(slot.bucket for slot in self._slots)
        self._in_bucket = [in_bucket[number] for number in range(len(lengths))]

    def begin(self, reduction: Reduction) -> None:
        """Get ready for a new batch."""
        self._merges = reduction.merges[self._worker]
        self._num_sums = reduction.num_sums[self._worker]
        self._settled = settled(self._merges)
        self._most_sums = max(reduction.num_sums)
        self._left_early = 0
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
        self._launch_settled()

    def _give_away(self) -> None:
        """Give a total that the user's code has kept (`previous = p.grad`) memory of its own: the
        bucket's is used again."""
        for where, view in list(self._views.items()):
            if sys.getrefcount(view) > _OWN_REFERENCES:
                own = view.clone()
                with torch.no_grad():
                    view.set_(own.untyped_storage(), 0, own.shape, own.stride())
                del self._views[where]

    @property
    def used(self) -> list[bool]:
        """Which tensors this worker's grains had a value for (known after the last grain)."""
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
        """Take a grain's values, which are complete; `merged` of its merges are already in them."""
        for _ in range(self._merges[self._grain] - merged):
            sums = add(self._stack.pop(), sums)
        self._stack.append(sums)
        self._grain += 1
        self._launch_settled()

    def _launch_settled(self) -> None:
        """Write the sums that no later grain changes, and send them. After the last of them, take
        part in those of workers that have more."""
        if not self.buckets:
            return
        mine, upto = max(self._num_sums - 1, 0), self._settled[self._grain]
        for row in range(self._left_early, self._most_sums - 1 if upto >= mine else upto):
            if row < mine:
                for index, tensor in enumerate(self._stack[row]):
                    self._write(row, index, [] if tensor is None else [tensor])
                self._stack[row] = []  # it is in its bucket; the memory can go
            for bucket in self.buckets:
                bucket.launch_early(row)
            self._left_early = row + 1

    def write_last(self, index: int, tensor: Tensor | None) -> None:
        """Fold in a value of the last grain, and start its bucket if that is full."""
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
        """Launch the buckets that are left (call it after the last grain: a worker without a
        grain in this batch has launched none yet)."""
        while self._launched < len(self.buckets):
            self._launch_next()

    def _launch_next(self) -> None:
        self.buckets[self._launched].launch()
        self._launched += 1
        for bucket in self.buckets[: self._launched]:
            bucket.progress()

    def _write(self, row: int, index: int, terms: list[Tensor]) -> None:
        """Write a value, the sum of two, or nothing to its place in a bucket's row."""
        place = self._view(self.buckets[self._slots[index].bucket].rows[row], index)
        self._used[index] |= bool(terms)
        if not terms:
            place.fill_(-0.0)
        elif len(terms) == 1:
            place.copy_(terms[0])
        else:
            torch.add(terms[1], terms[0], out=place)

    def finish(self) -> Sums:
        """Wait for the totals. Values that no worker had are not told apart here (see `used`)."""
        if not self.buckets:
            (total,) = self._stack
            return total
        for bucket in self.buckets:
            bucket.add_chunk()
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
        """Take a grain's values all at once; those of the last grain wait for `launch`."""
        if self.buckets and self.on_last_grain:
            self._last = sums
        else:
            self.push(sums)

    def write_added(self) -> None:
        """Write everything to its rows (call it after `add` of the last grain)."""
        if self._last is not None:
            for index, tensor in enumerate(self._last):
                self.write_last(index, tensor)

    def launch(self) -> None:
        """Start adding (call it after `add` of every grain); `finish` ends it."""
        self.write_added()
        self.launch_rest()
