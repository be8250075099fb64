"""Buffers that a forward pass changes, such as batch norm's running statistics.

In: a model, and its buffers after each grain. Out: the buffers after the batch.
Guaranteed: every grain starts from the same values. A float buffer that comes out the same in every
grain (a counter, a teacher's weights) is just that; otherwise it becomes the mean of the grains'
results, weighted like the loss and added over the plan's tree. Buffers no grain changed are left
alone to the bit; other types (counters) must come out the same in every grain that changes them.
What has no mean (a queue, of which each grain writes a part) is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from samepath.engine.comm.collective import Collective, Record
from samepath.engine.comm.tensors import bits_of
from samepath.engine.comm.tree_sum import TreeSum
from samepath.errors import UserError
from samepath.plan import Reduction

_NO_GRAIN, _UNCHANGED, _ALIKE, _MIXED = range(4)
"""What a worker says of a buffer: it had no grain that counts; no grain changed it; all that did
(for floats: all grains) left it alike; or they left it differently."""


class BufferMerge:
    """The buffers of one model."""

    def __init__(self, collective: Collective, model: nn.Module, *, exact: bool) -> None:
        self._collective = collective
        self._model = model
        self._exact = exact
        self._scan()

    def _scan(self) -> None:
        """Take in the buffers that are there."""
        self._homes: list[tuple[nn.Module, str]] = []
        self._originals: list[Tensor] = []
        self.names: list[str] = []
        self._modules = dict(self._model.named_modules())
        self._shared: list[tuple[nn.Module, str, int]] = []
        """Other places of buffers that are in several modules."""
        seen: dict[int, int] = {}
        for prefix, module in self._modules.items():
            for name, tensor in module._buffers.items():
                if tensor is not None and id(tensor) in seen:
                    self._shared.append((module, name, seen[id(tensor)]))
                elif tensor is not None:
                    seen[id(tensor)] = len(self._homes)
                    self._homes.append((module, name))
                    self._originals.append(tensor)
                    self.names.append(f"{prefix}.{name}" if prefix else name)
        self._there = self._non_empty()
        self._structure = self._places()
        self._is_float = [t.is_floating_point() or t.is_complex() for t in self._originals]
        is_norm = [isinstance(module, _NormBase) for module, _ in self._homes]
        self._statistics = [i for i, norm in enumerate(is_norm) if norm and self._is_float[i]]
        self._others = [i for i in range(len(self._homes)) if i not in self._statistics]
        self._saved = [t.clone() for t in self._originals]
        self._bits = [bits_of(t.detach()) for t in self._originals]
        self._saved_bits = [bits_of(t) for t in self._saved]
        self._places_in_memory = [bits.data_ptr() for bits in self._bits]
        # Buffers that have been averaged before, or surely will be, are added grain by grain, like
        # the gradients; another that needs it for the first time is added in a round of its own.
        self._known = [index for index in self._statistics if self._homes[index][0].training]
        self._known_sum: TreeSum | None = None

    def _places(self) -> list[tuple[int, str, int]]:
        """List which tensor is where. (What it is compared with is alive, so that ids are not used
        again.)"""
        return [
            (id(module), name, id(tensor))
            for module in self._model.modules()
            for name, tensor in module._buffers.items()
        ]

    def _non_empty(self) -> list[list[str]]:
        """Names of the buffers that are there, by module."""
        return [
            [name for name, tensor in module._buffers.items() if tensor is not None]
            for module in self._modules.values()
        ]

    def _refuse_new(self) -> None:
        """Raise for a buffer that was not there, or None, before the first grain."""
        for prefix, before, now in zip(self._modules, self._there, self._non_empty(), strict=True):
            for name in set(now) - set(before):
                raise UserError(
                    f"buffer {f'{prefix}.{name}' if prefix else name!r} is made during training; "
                    "give it its shape in __init__ (register_buffer with a tensor, not None), so "
                    "that it is merged over grains and saved"
                )

    def begin(self, reduction: Reduction) -> None:
        if self._places() != self._structure:  # between steps: a new mask, a layer more
            self._scan()
        self._reduction = reduction
        self._one_grain = sum(map(len, reduction.runs)) == 1
        self._late: list[dict[int, Tensor]] = []
        self._scales: list[float] = []
        self._alike: dict[int, Tensor] = {}
        """What the first grain that changed a buffer left."""
        self._alike_bits: dict[int, Tensor] = {}
        self._written: dict[int, Tensor] = {}
        """Which values of a line of them the grains so far have written."""
        self._parts: set[int] = set()
        """Buffers that a grain has written in part."""
        self._codes = [_NO_GRAIN] * len(self._homes)
        if self._homes:
            torch._foreach_copy_(self._saved, self._originals)
        if self._known:
            if self._known_sum is None:
                self._known_sum = self._tree(self._known)
            self._known_sum.begin(reduction)

    def after_grain(self, scale: float) -> None:
        """Take down what this grain changed, and put the old values back for the next. A grain that
        counts for nothing has no say."""
        if not self._scales:  # the first
            self._refuse_new()
        changes = self._changes()
        counted = changes if scale else {}
        if self._known_sum is not None:
            values = [counted.get(index, self._saved[index]) for index in self._known]
            self._known_sum.add(
                [*torch._foreach_mul(values, scale)] if scale else [None] * len(values)
            )
        if scale:
            self._compare(changes)
        known = set(self._known)
        self._late.append(
            {
                index: now.clone()
                for index, now in counted.items()
                if self._is_float[index] and index not in known
            }
        )
        self._scales.append(scale)
        self._put_back(changes)

    def _compare(self, changes: Mapping[int, Tensor]) -> None:
        """Note whether this grain left what earlier grains of the batch left."""
        for index in self._statistics:
            if index in changes:
                self._codes[index] = _MIXED  # of the grain's own examples
        for index in self._others:
            now, code, is_float = changes.get(index), self._codes[index], self._is_float[index]
            if now is None:
                # a counter need not change in every grain (one that takes another branch)
                mixed = is_float and code == _ALIKE
                self._codes[index] = _MIXED if mixed else max(code, _UNCHANGED)
                continue
            if is_float and not self._one_grain:
                self._look_for_queue(index, now, changes)
            if index not in self._alike:
                self._alike[index] = kept = now.clone()
                self._alike_bits[index] = bits_of(kept)
                self._codes[index] = _MIXED if is_float and code == _UNCHANGED else _ALIKE
            elif not torch.equal(self._alike_bits[index], bits_of(now)):
                if not is_float:
                    self._refuse(index)
                self._codes[index] = _MIXED

    def _changes(self) -> dict[int, Tensor]:
        """The buffers that differ from what they were before the grain, as they are."""
        changes: dict[int, Tensor] = {}
        for index, (module, name) in enumerate(self._homes):
            now = module._buffers[name]
            bits = self._bits[index]
            # replaced, or given other memory (buffer.data = ...)
            if now is not self._originals[index] or now.data_ptr() != self._places_in_memory[index]:
                saved = self._saved[index]
                if now is None or now.shape != saved.shape or now.dtype != saved.dtype:
                    raise UserError(
                        f"buffer {self.names[index]!r} changes its shape or type during training; "
                        "keep such state outside buffers"
                    )
                bits = bits_of(now.detach())
            if not torch.equal(bits, self._saved_bits[index]):
                changes[index] = now.detach() if now.requires_grad else now
            elif now is not self._originals[index]:  # replaced by its like
                module._buffers[name] = self._originals[index]
        return changes

    def put_back(self) -> None:
        """Undo what a grain that is computed a second time has changed."""
        self._put_back(self._changes())

    def _put_back(self, changes: Mapping[int, Tensor]) -> None:
        for module, name, index in self._shared:
            if module._buffers[name] is not self._originals[index]:
                raise UserError(
                    f"buffer {self.names[index]!r} is in several modules, and replaced in one of "
                    "them; change it in place (copy_)"
                )
        if changes:
            # batch norm's graph holds its statistics, but its backward pass in training does not
            # use them: they may change before it (`.data` leaves their version as it is)
            originals = [
                self._originals[index].data if index in self._statistics else self._originals[index]
                for index in changes
            ]
            torch._foreach_copy_(originals, [self._saved[index] for index in changes])
        for index in changes:
            module, name = self._homes[index]
            module._buffers[name] = self._originals[index]

    def _refuse(self, index: int) -> None:
        raise UserError(
            f"buffer {self.names[index]!r} ({self._saved[index].dtype}) comes out differently in "
            "different grains, and there is no rule to merge it; make it a float buffer, which is "
            "averaged, or keep it outside buffers"
        )

    def _look_for_queue(self, index: int, now: Tensor, changes: Mapping[int, Tensor]) -> None:
        """Note a buffer of which a grain has written some rows and left others."""
        saved, home = self._saved[index], self._homes[index][0]
        pointers = [
            (int(self._saved[other]), int(value))
            for other, value in changes.items()
            if self._homes[other][0] is home and not self._is_float[other] and value.numel() == 1
        ]
        if written_in_part(saved, now, pointers):
            self._parts.add(index)
        changed = saved != now
        if saved.dim() == 1 and not bool(changed.all()):
            before = self._written.get(index)
            if before is not None and not bool((before & changed).any()):
                self._parts.add(index)  # each grain its own: values by example
            self._written[index] = changed if before is None else before | changed

    def _refuse_queues(self, averaged: list[int]) -> None:
        for index in averaged:
            if index in self._parts:
                raise UserError(
                    f"buffer {self.names[index]!r} is written in part by each grain, as a queue or "
                    "a memory bank is: they would overwrite each other's part, and there is no "
                    "mean of them; keep it outside the model and fill it between steps, in a loop "
                    "of your own"
                )

    def launch(self) -> None:
        """Start adding the buffers that are known to change (call it after the last grain)."""
        if self._known_sum is not None:
            self._known_sum.launch()

    def _tree(self, indices: Sequence[int]) -> TreeSum:
        for index in indices:
            if self._saved[index].dtype.itemsize < 2:
                raise UserError(
                    f"buffer {self.names[index]!r} ({self._saved[index].dtype}) comes out "
                    "differently in different grains and is too coarse to be averaged; make it a "
                    "float32 buffer"
                )
        tensors = [self._saved[index] for index in indices]
        return TreeSum(self._collective, tensors, exact=self._exact, what="buffers")

    def record(self) -> Record:
        """Pack what the other workers must know: which buffers changed here, and what they came
        to."""
        hashes = np.zeros((len(self._homes), 8), np.uint8)
        for index, tensor in self._alike.items():
            if self._codes[index] == _ALIKE:
                value = hashlib.blake2b(
                    bits_of(tensor).cpu().contiguous().numpy().tobytes(), digest_size=8
                )
                hashes[index] = np.frombuffer(value.digest(), np.uint8)
        codes = np.array(self._codes, np.uint8)
        return np.concatenate([codes[:, None], hashes], axis=1).ravel()

    def finish(self, records: Sequence[Record], *, keep: bool = True) -> None:
        """Give the buffers their values after the batch; or only end the sums under way."""
        of_workers = np.stack([record.reshape(-1, 9) for record in records])
        changed = np.flatnonzero((of_workers[:, :, 0] >= _ALIKE).any(axis=0)).tolist()
        alike = [index for index in changed if self._is_alike(index, of_workers[:, index])]
        averaged = [index for index in changed if index not in alike]
        self._refuse_queues(averaged)
        totals = self._totals(averaged)
        for index in changed if keep else ():
            original = self._originals[index]
            if index in totals and index not in alike:
                original.copy_(totals[index])
            else:
                self._set_alike(index, original, of_workers[:, index])

    def _is_alike(self, index: int, records: Record) -> bool:
        """Every grain that has a say left the same."""
        codes = records[:, 0]
        values = {record[1:].tobytes() for record in records[codes == _ALIKE]}
        if self._is_float[index]:
            return len(values) == 1 and set(codes.tolist()) <= {_NO_GRAIN, _ALIKE}
        if len(values) > 1:
            self._refuse(index)
        return True

    def _totals(self, floats: list[int]) -> dict[int, Tensor]:
        """The merged float buffers."""
        totals: dict[int, Tensor | None] = {}
        if self._known_sum is not None:
            totals = dict(zip(self._known, self._known_sum.finish(), strict=True))
        late = [index for index in floats if index not in totals]
        if late:
            tree = self._tree(late)
            tree.begin(self._reduction)
            for values, scale in zip(self._late, self._scales, strict=True):
                tree.add(
                    [values.get(index, self._saved[index]) * scale for index in late]
                    if scale
                    else [None] * len(late)
                )
            tree.launch()
            totals |= dict(zip(late, tree.finish(), strict=True))
            self._known, self._known_sum = sorted([*self._known, *late]), None
        return {index: total for index, total in totals.items() if total is not None}

    def _set_alike(self, index: int, original: Tensor, records: Record) -> None:
        have = [worker for worker, record in enumerate(records) if record[0] == _ALIKE]
        if index in self._alike:
            original.copy_(self._alike[index])
        if len(have) < len(records):  # some worker's grains did not change it
            self._collective.broadcast(original, have[0])


def written_in_part(before: Tensor, now: Tensor, pointers: Sequence[tuple[int, int]]) -> bool:
    """Say whether some slices along a dimension are written anew and others, which hold
    something, are left as they were (an average that has come to rest leaves single values); or
    just those between a pointer's values before and after."""
    changed = before != now
    for dim, size in enumerate(before.shape):
        others = [d for d in range(before.dim()) if d != dim]
        slices = changed.amax(others) if others else changed
        number = int(slices.sum())
        if not 0 < number < size:
            continue
        share_written = int(changed.sum()) * size / (number * changed.numel())
        if others and share_written >= 0.5 and bool((before.ne(0).amax(others) & ~slices).any()):
            return True
        places = set(slices.nonzero().flatten().tolist())
        for was, is_ in pointers:
            if places == {(was + step) % size for step in range((is_ - was) % size)}:
                return True
    return False
