"""Comparison of the workers: the same model, the same arithmetic, and changes only by updates.

In: a model, an optimizer, settings, the first grain; the model before and after a batch's grains.
Out: nothing, or an error that names the tensor and the worker.

Before the first step: a model that was made without the seed, settings that read the worker's
number, data that are drawn anew in every process, a processor with other kernels would each make
the path depend on which worker computes what, so each is refused. Later: workers whose weights or
buffers part from the others' are found within `EVERY` steps, and before anything is saved or the
run ends. Weights that forward() or loss() change (a clamp, a teacher that follows) change once a
step, whatever the number of grains: every grain starts from the same weights and must leave the
same, or is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from samepath.engine.checks.fingerprints import describe_cpu
from samepath.engine.comm.collective import Collective, Record
from samepath.engine.comm.tensors import Checksums, fingerprint, same_bits, tensor_sums
from samepath.errors import ReplicasDiffer, UserError
from samepath.keys import key

MayDiffer: TypeAlias = Callable[[str], None]
"""Told how a worker's processor differs; raises unless that is allowed."""
EVERY = 16
"""Steps between two comparisons."""
_LEARNS = 2


# ---- before the first step


def refuse_other_start(
    collective: Collective,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
    may_differ: MayDiffer,
) -> None:
    """Raise unless every worker begins with the same weights, buffers and settings."""
    if collective.num_workers == 1:
        return
    tensors = _tensors_of(model)
    form = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    other = _first_other(collective, repr(form))
    if other is not None:
        raise UserError(
            f"worker {other} has a model of other parameters or buffers than worker 0; make the "
            "same model on every worker, whatever its number"
        )
    drift = _first_drift(list(tensors), collective.gather_rows(tensor_sums([*tensors.values()])))
    if drift is not None:
        what, worker = drift
        if not _is_other_hardware(collective, worker, f"{what} before the first step", may_differ):
            raise UserError(
                f"{what} before the first step; make the model after samepath.start(), which sets "
                "the generators from the seed (torch.rand and the like), or load its weights from "
                "a file"
            )
        for tensor in tensors.values():  # one model, as one kind of machine makes it
            collective.broadcast(tensor.detach())
    plain = (bool, int, float, str, tuple, type(None))
    groups = [
        sorted((name, value) for name, value in group.items() if isinstance(value, plain))
        for group in optimizer.param_groups
    ]
    shaping = [groups, sorted(settings.items()), torch.get_num_threads()]
    other = _first_other(collective, repr(shaping))
    if other is not None:
        raise UserError(
            f"worker {other} has other settings than worker 0 (learning rate, batch size, seed, "
            "...); give every worker the same: samepath keeps the batch, so they need not change "
            "with workers"
        )


def compare_first_grain(
    collective: Collective,
    model: nn.Module,
    compute: Callable[[nn.Module | None], list[Any]],
    may_differ: MayDiffer,
) -> None:
    """Have every worker compute the first grain of a batch, on a copy of the model (None where it
    cannot be copied), and raise where results differ. A KeyError on all workers is left to the
    step: a loss that looks parameters up in a dictionary of its own does not find the copy's."""
    if collective.num_workers == 1:
        return
    as_it_is = LeftAlone(model)  # a loss may use another way to it than its argument
    failure: KeyError | None = None
    found: list[Any] = []
    try:
        found = compute(_copy(model))
    except KeyError as error:
        failure = error
    finally:
        as_it_is.put_back()
    failures = collective.gather_rows(np.array([failure is not None], np.int64))
    if failures.all():
        found = compute(None)
    elif failure is not None:
        raise failure
    other = _first_other(collective, found)
    if other is None:
        return
    what = f"worker {other} computes the first grain differently from worker 0"
    if not _is_other_hardware(collective, other, what, may_differ):
        raise UserError(
            f"{what}, on the same kind of processor: its data or its model are not the same, or "
            "draw from a generator that the seed does not set; run `samepath verify` to see where"
        )


def _is_other_hardware(
    collective: Collective, worker: int, what: str, may_differ: MayDiffer
) -> bool:
    """Whether a difference is explained by another kind of processor, which `may_differ` is told
    (all workers together)."""
    machines = [text.decode() for text in collective.gather_bytes(describe_cpu().encode())]
    if machines[worker] == machines[0]:
        return False
    may_differ(
        f"{what}: its processor is {machines[worker]}, worker 0's is {machines[0]}, and their "
        "kernels differ"
    )
    return True


def _copy(model: nn.Module) -> nn.Module | None:
    """A model that may be changed; None where it cannot be copied (it holds tensors that are
    results, say)."""
    plain = getattr(model, "_orig_mod", model)  # of a compiled one: its copy would be compiled too
    try:
        return copy.deepcopy(plain)
    except Exception:  # whatever it holds
        return None


def refuse_other_values(collective: Collective, values: Mapping[str, Any], when: str) -> None:
    """Raise for the first value, by its name, that is not the same on every worker (all workers
    together)."""
    for name, value in values.items():
        other = _first_other(collective, value)
        if other is not None:
            raise ReplicasDiffer(
                f"{name} of worker {other} differs from worker 0's {when}; change it on every "
                "worker alike, not only where run.is_first"
            )


def _first_other(collective: Collective, value: Any) -> int | None:
    """The first worker whose value is not worker 0's."""
    found = collective.gather_bytes(fingerprint(value).encode())
    return next((worker for worker, value in enumerate(found) if value != found[0]), None)


# ---- around the grains of a batch, and between workers


def is_due(step: int) -> bool:
    """Whether workers are compared: every so many steps, and as often without a rhythm, so that
    what happens every tenth step, say, is met too."""
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

    def begin(self, *, check: bool) -> None:
        """Get ready for a batch's grains. `check`, the same on every worker: compare with the
        others."""
        self._start = tensor_sums(list(_tensors_of(self._model).values())) if check else None
        self._num_grains = 0
        self._known = set(self._before)
        changing = self._parameters() if self._learns else self._changing()
        self._before = {name: p.detach().clone() for name, p in changing.items()}
        self._all = list(self._model.parameters())

    def before_grain(self) -> None:
        if self._num_grains and not self._before:
            return  # the marks after the last grain are those before this one
        if self._num_grains:
            self.put_back()
        self._marks = [(p._version, p.data_ptr()) for p in self._all]

    def put_back(self) -> None:
        """Give weights that forward passes have changed what they had before the batch."""
        if not self._before:
            return
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
        self._marks = marks
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

    def compare(self, step: int, records: Sequence[Record], *, refuses: bool) -> None:
        """Raise where workers' records differ, if it `refuses` that. A worker without a grain in
        this batch takes over what the others' forward passes have done to the weights (all workers
        together)."""
        if not any(map(len, records)):
            return
        numbers = np.stack([record.view(np.int64) for record in records])
        names, num_parameters = list(_tensors_of(self._model)), len(self._parameters())
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
            tensors = _tensors_of(self._model)
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
    drift = _first_drift(names, rows)
    if drift is not None:
        raise ReplicasDiffer(
            f"{drift[0]} {when}: something changes the model on some workers only, or a worker's "
            "memory is failing; the run ends here, and `samepath verify` shows where it begins"
        )


def _first_drift(names: Sequence[str], rows: Checksums) -> tuple[str, int] | None:
    """The first tensor whose sums (a row for each worker) are not all the same, in words, and the
    first worker that has another."""
    differs = rows != rows[0]
    for place in np.flatnonzero(differs.any(axis=0)).tolist():
        worker = int(np.flatnonzero(differs[:, place])[0])
        return f"{names[place]!r} of worker {worker} differs from worker 0's", worker
    return None


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _changed_by_grains(name: str) -> UserError:
    return UserError(
        f"{name!r} is changed by forward() or loss(), and comes out differently in different "
        "grains; change it once a step, in optimizer.register_step_post_hook, or make it a buffer"
    )
