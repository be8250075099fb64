"""Buffers that a forward pass changes, such as batch norm's running statistics.

In: a model, and its buffers after each grain. Out: the buffers after the batch.
Guaranteed: every grain starts from the same values; float buffers become the mean of the grains'
results, weighted like the loss and added over the plan's tree; buffers no grain changed are left
alone to the bit; other buffers (counters) must come out the same in every grain that changes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from samepath.engine.collective import Collective, Record
from samepath.engine.gradients import TreeSum
from samepath.errors import UserError
from samepath.plan import Reduction


class BufferMerge:
    """The buffers of one model."""

    def __init__(self, collective: Collective, model: nn.Module, *, exact: bool) -> None:
        self._collective = collective
        self._exact = exact
        self._homes: list[tuple[nn.Module, str]] = []
        self._originals: list[Tensor] = []
        self.names: list[str] = []
        seen: set[int] = set()
        for prefix, module in model.named_modules():
            for name, tensor in module._buffers.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    self._homes.append((module, name))
                    self._originals.append(tensor)
                    self.names.append(f"{prefix}.{name}" if prefix else name)
        self._is_float = [t.is_floating_point() or t.is_complex() for t in self._originals]
        self._saved = [t.clone() for t in self._originals]
        # Buffers that have changed before, or surely will, are added grain by grain, like the
        # gradients; another that changes for the first time is added in a round of its own.
        self._known = [
            index
            for index, (module, _) in enumerate(self._homes)
            if self._is_float[index] and isinstance(module, _NormBase) and module.training
        ]
        self._known_sum: TreeSum | None = None

    def begin(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._late: list[dict[int, Tensor]] = []
        self._scales: list[float] = []
        self._counters: dict[int, Tensor] = {}
        self._changed = np.zeros(len(self._homes), np.uint8)
        if self._homes:
            torch._foreach_copy_(self._saved, self._originals)
        if self._known:
            if self._known_sum is None:
                self._known_sum = self._tree(self._known)
            self._known_sum.begin(reduction)

    def after_grain(self, scale: float) -> None:
        """Take down what this grain changed, and put the old values back for the next."""
        changes = self._changes()
        if self._known_sum is not None:
            values = [changes.get(index, self._saved[index]) for index in self._known]
            self._known_sum.add(list(torch._foreach_mul(values, scale)))
        known, late = set(self._known), dict[int, Tensor]()
        for index, now in changes.items():
            self._changed[index] = 1
            if self._is_float[index]:
                if index not in known:
                    late[index] = now.clone()
            elif index not in self._counters:
                self._counters[index] = now.clone()
            elif not torch.equal(self._counters[index], now):
                self._refuse(index)
        self._late.append(late)
        self._scales.append(scale)
        self._put_back(changes)

    def _changes(self) -> dict[int, Tensor]:
        """The buffers that differ from what they were before the grain, as they are."""
        changes: dict[int, Tensor] = {}
        for index, (module, name) in enumerate(self._homes):
            now, saved = module._buffers[name], self._saved[index]
            if now is None or now.shape != saved.shape or now.dtype != saved.dtype:
                raise UserError(
                    f"buffer {self.names[index]!r} changes its shape or type during training; "
                    "keep such state outside buffers"
                )
            if not torch.equal(now, saved):
                changes[index] = now.detach()
        return changes

    def _put_back(self, changes: Mapping[int, Tensor]) -> None:
        if changes:
            originals = [self._originals[index] for index in changes]
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

    def launch(self) -> None:
        """After the last grain: start adding the buffers that are known to change."""
        if self._known_sum is not None:
            self._known_sum.launch()

    def _tree(self, indices: Sequence[int]) -> TreeSum:
        return TreeSum(self._collective, [self._saved[i] for i in indices], exact=self._exact)

    def record(self) -> Record:
        """What the others must know: which buffers changed here, and what counters came to."""
        hashes = np.zeros((len(self._homes), 8), np.uint8)
        for index, tensor in self._counters.items():
            value = hashlib.blake2b(tensor.cpu().numpy().tobytes(), digest_size=8)
            hashes[index] = np.frombuffer(value.digest(), np.uint8)
        return np.concatenate([self._changed[:, None], hashes], axis=1).ravel()

    def finish(self, records: Sequence[Record], *, keep: bool = True) -> None:
        """Give the buffers their values after the batch; or only end the sums under way."""
        everybody = np.stack([record.reshape(-1, 9) for record in records])
        changed = [int(index) for index in np.flatnonzero(everybody[:, :, 0].any(axis=0))]
        totals = self._totals([index for index in changed if self._is_float[index]])
        for index in changed if keep else ():
            original = self._originals[index]
            if self._is_float[index]:
                original.copy_(totals[index])
            else:
                self._set_counter(index, original, everybody[:, index])

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
                tree.add([values.get(index, self._saved[index]) * scale for index in late])
            tree.launch()
            totals |= dict(zip(late, tree.finish(), strict=True))
            self._known, self._known_sum = sorted([*self._known, *late]), None
        return {index: total for index, total in totals.items() if total is not None}

    def _set_counter(self, index: int, original: Tensor, records: Record) -> None:
        have = [worker for worker, record in enumerate(records) if record[0]]
        if len({records[worker, 1:].tobytes() for worker in have}) > 1:
            self._refuse(index)
        if index in self._counters:
            original.copy_(self._counters[index])
        if len(have) < len(records):  # some worker's grains did not change it
            self._collective.broadcast(original, have[0])
