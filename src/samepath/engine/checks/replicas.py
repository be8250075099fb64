"""Comparison of the workers' models, which must be the same and change only by updates.

In: a model, before and after a batch's grains. Out: nothing, or an error that names the tensor.
Guaranteed: workers whose weights or buffers part from the others' are found within `EVERY` steps,
and before anything is saved or the run ends. Weights that forward() or loss() change (a clamp, a
teacher that follows) change once a step, whatever the number of grains: every grain starts from the
same weights and must leave the same. Where grains leave different ones that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samepath.engine.comm.collective import Collective, Record
from samepath.engine.comm.tensors import Checksums, same_bits, tensor_sums
from samepath.errors import ReplicasDiffer, UserError
from samepath.keys import key

EVERY = 16
"""Steps between two comparisons."""
_LEARNS = 2


def is_due(step: int) -> bool:
    """Every so many steps, and as often at steps without a rhythm: what happens every tenth step,
    say, is met too."""
    return step % EVERY == 0 or key("compare", step) % EVERY == 0


class Replicas:
    """The model as this worker has it, beside the others'."""

    def __init__(self, collective: Collective, model: nn.Module) -> None:
        self._collective = collective
        self._model = model
        self._learns = _LEARNS
        """Steps left in which it is found out which weights a forward pass changes."""
        self._before: dict[str, Tensor] = {}
        """What those were before the batch."""

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._model.named_parameters())

    def _tensors(self) -> dict[str, Tensor]:
        return {**self._parameters(), **dict(self._model.named_buffers())}

    # ---- around the grains of a batch

    def begin(self, *, check: bool) -> None:
        """Get ready for a batch's grains. `check`, the same on every worker: compare with the
        others."""
        self._start = tensor_sums(list(self._tensors().values())) if check else None
        self._num_grains = 0
        self._known = set(self._before)
        changing = self._parameters() if self._learns else self._changing()
        self._before = {name: p.detach().clone() for name, p in changing.items()}
        self._all = list(self._model.parameters())

    def before_grain(self) -> None:
        if self._num_grains:
            self.put_back()
        self._marks = [(p._version, p.data_ptr()) for p in self._all]

    def put_back(self) -> None:
        """Give weights that forward passes have changed what they had before the batch."""
        with torch.no_grad():
            for name, parameter in self._changing().items():
                parameter.copy_(self._before[name])

    def after_grain(self) -> None:
        marks = [(p._version, p.data_ptr()) for p in self._all]
        if self._learns and not self._num_grains:
            # versions tell of changes that change nothing yet, bits of those through .data
            touched = {
                id(p) for p, a, b in zip(self._all, marks, self._marks, strict=True) if a != b
            }
            parameters = self._parameters()
            self._before = {
                name: before
                for name, before in self._before.items()
                if name in self._known
                or id(parameters[name]) in touched
                or not same_bits(parameters[name].detach(), before)
            }
            self._learns -= 1
        elif marks != self._marks:
            self._refuse_late(marks)
        changing = self._changing()
        if not self._num_grains:
            self._after = {name: p.detach().clone() for name, p in changing.items()}
            if self._start is not None:
                self._after_first = self._parameter_sums()
        else:
            for name, parameter in changing.items():
                if not same_bits(parameter.detach(), self._after[name]):
                    raise _changed_by_grains(name)
        self._num_grains += 1

    def _refuse_late(self, marks: list[tuple[int, int]]) -> None:
        """Raise for weights that are changed now and were not in the first steps: what they were
        before the grain is not known."""
        for (name, _), now, before in zip(
            self._parameters().items(), marks, self._marks, strict=True
        ):
            if now != before and name not in self._before:
                raise UserError(
                    f"{name!r} is changed by forward() or loss(), and was not in the first steps; "
                    "change it in every step, or in optimizer.register_step_post_hook"
                )

    def _changing(self) -> Mapping[str, nn.Parameter]:
        if not self._before:
            return {}
        parameters = self._parameters()
        return {name: parameters[name] for name in self._before}

    def _parameter_sums(self) -> Checksums:
        return tensor_sums(list(self._parameters().values()))

    def record(self) -> Record:
        """Pack what the other workers must know after the grains; nothing where nothing is
        checked."""
        if self._start is None:
            return np.zeros(0, np.uint8)
        after = self._parameter_sums()
        if self._num_grains > 1:
            for name, same in zip(self._parameters(), after == self._after_first, strict=True):
                if not same:
                    raise _changed_by_grains(name)
        had_grains = np.array([self._num_grains], np.int64)
        return np.concatenate([had_grains, self._start, after]).view(np.uint8)

    # ---- beside the others'

    def compare(self, step: int, records: Sequence[Record], *, refuses: bool) -> None:
        """Raise where workers' records differ, if it `refuses` that. A worker without a grain in
        this batch takes over what the others' forward passes have done to the weights (all workers
        together)."""
        if not any(map(len, records)):
            return
        numbers = np.stack([record.view(np.int64) for record in records])
        names, num_parameters = list(self._tensors()), len(self._parameters())
        started, ended = numbers[:, 1:-num_parameters], numbers[:, -num_parameters:]
        names += ["a buffer"] * (started.shape[1] - len(names))  # one that has been replaced since
        if refuses:
            refuse_drift(names, started, f"before step {step}")
        busy = np.flatnonzero(numbers[:, 0])
        source = int(busy[0])
        for place, (name, parameter) in enumerate(self._parameters().items()):
            after = ended[source, place]
            if refuses and (ended[busy, place] != after).any():
                raise _changed_by_grains(name)
            is_changed = after != started[source, place]  # which begins with the parameters too
            if is_changed and len(busy) < len(records):
                self._collective.broadcast(parameter.detach(), source)

    def compare_now(self, when: str) -> None:
        """Raise where workers differ (all workers together)."""
        if self._collective.num_workers > 1:
            tensors = self._tensors()
            sums = tensor_sums(list(tensors.values()))
            refuse_drift(list(tensors), self._collective.gather_rows(sums), when)


class LeftAlone:
    """A model's weights and buffers as they are now, to be put back."""

    def __init__(self, model: nn.Module) -> None:
        self._homes: list[tuple[dict[str, Any], str, str, Tensor | None, Tensor | None]] = [
            (place, name, f"{prefix}.{name}" if prefix else name, tensor,
             None if tensor is None else tensor.detach().clone())
            for prefix, module in model.named_modules()
            for place in (module._parameters, module._buffers)
            for name, tensor in place.items()
        ]  # fmt: skip
        self.changed: set[str] = set()
        """What had to be put back."""

    def put_back(self, *, all_of_it: bool = True) -> None:
        """Undo changes; not `all_of_it`: only of buffers, and of weights that have been changed
        before (looking at all weights takes time)."""
        for place, name, full_name, tensor, before in self._homes:
            if not (all_of_it or full_name in self.changed or not isinstance(tensor, nn.Parameter)):
                continue
            moved = place.get(name) is not tensor
            if moved:
                place[name] = tensor
            if tensor is not None and before is not None:
                moved |= not same_bits(tensor.detach(), before)
                if moved:
                    with torch.no_grad():
                        tensor.copy_(before)
            if moved:
                self.changed.add(full_name)


def refuse_drift(names: Sequence[str], rows: Checksums, when: str) -> None:
    """Raise where workers' sums (a row each) are not the same."""
    differs = rows != rows[0]
    if differs.any():
        place = int(np.flatnonzero(differs.any(axis=0))[0])
        worker = int(np.flatnonzero(differs[:, place])[0])
        raise ReplicasDiffer(
            f"{names[place]!r} of worker {worker} is not that of worker 0 {when}: something "
            "changes the model on some workers only, or a worker's memory is failing; the run "
            "ends here, and `samepath verify` shows where it begins"
        )


def _changed_by_grains(name: str) -> UserError:
    return UserError(
        f"{name!r} is changed by forward() or loss(), and comes out differently in different "
        "grains; change it once a step, in optimizer.register_step_post_hook, or make it a buffer"
    )
