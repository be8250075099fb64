"""Buffers that a forward pass changes, such as batch norm's running statistics.

In: a model, and its buffers after each grain. Out: the buffers after the batch.
Guaranteed: every grain starts from the same values; float buffers become the mean of the grains'
results, weighted like the loss and added over the plan's tree; buffers no grain changed are left
alone to the bit; other buffers (counters) must come out the same in every grain that changes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from samepath.engine.collective import Collective, Record
from samepath.engine.gradients import Sums, TreeSum
from samepath.errors import UserError
from samepath.plan import Reduction


class BufferMerge:
    """The buffers of one model."""

    def __init__(self, collective: Collective, model: nn.Module, *, exact: bool) -> None:
        self._collective = collective
        self._exact = exact
        self._homes: list[tuple[nn.Module, str]] = []
        self.names: list[str] = []
        seen: set[int] = set()
        for prefix, module in model.named_modules():
            for name, tensor in module._buffers.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    self._homes.append((module, name))
                    self.names.append(f"{prefix}.{name}" if prefix else name)
        self._originals = [module._buffers[name] for module, name in self._homes]
        self._is_float = [t.is_floating_point() or t.is_complex() for t in self._tensors]
        self._saved = [t.clone() for t in self._tensors]
        # Buffers that have changed before are added along with the gradients; one that changes for
        # the first time is added in a round of its own.
        self._known: list[int] = []
        self._known_sum: TreeSum | None = None

    @property
    def _tensors(self) -> list[Tensor]:
        return [tensor for tensor in self._originals if tensor is not None]

    def begin(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._changes: list[dict[int, Tensor]] = []
        self._scales: list[float] = []
        self._counters: dict[int, Tensor] = {}
        self._changed = np.zeros(len(self._homes), np.uint8)
        if self._homes:
            torch._foreach_copy_(self._saved, self._tensors)

    def after_grain(self, scale: float) -> None:
        """Take down what this grain changed, and put the old values back for the next."""
        changes: dict[int, Tensor] = {}
        for index, (module, name) in enumerate(self._homes):
            now, original, saved = module._buffers[name], self._originals[index], self._saved[index]
            assert original is not None
            if now is None or now.shape != saved.shape or now.dtype != saved.dtype:
                raise UserError(
                    f"buffer {self.names[index]!r} changes its shape or type during training; "
                    "keep such state outside buffers"
                )
            if torch.equal(now, saved):
                continue
            changes[index] = now.detach().clone()
            if now is original:
                original.copy_(saved)
            module._buffers[name] = original
        for index, tensor in changes.items():
            self._changed[index] = 1
            if self._is_float[index]:
                continue
            if not torch.equal(self._counters.setdefault(index, tensor), tensor):
                self._refuse(index)
        self._changes.append(changes)
        self._scales.append(scale)

    def _refuse(self, index: int) -> None:
        raise UserError(
            f"buffer {self.names[index]!r} ({self._saved[index].dtype}) comes out differently in "
            "different grains, and there is no rule to merge it; make it a float buffer, which is "
            "averaged, or keep it outside buffers"
        )

    def launch(self) -> None:
        """After the last grain: start adding the buffers that are known to change."""
        if self._known:
            if self._known_sum is None:
                self._known_sum = self._tree(self._known)
            self._add(self._known_sum, self._known)

    def _tree(self, indices: Sequence[int]) -> TreeSum:
        return TreeSum(self._collective, [self._saved[i] for i in indices], exact=self._exact)

    def _add(self, tree: TreeSum, indices: Sequence[int]) -> None:
        grains: list[Sums] = [
            [changes.get(index, self._saved[index]) * scale for index in indices]
            for changes, scale in zip(self._changes, self._scales, strict=True)
        ]
        tree.add_begin(self._reduction, grains)

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
            assert original is not None
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
            self._add(tree, late)
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
