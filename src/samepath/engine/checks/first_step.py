"""Checks before the first step: do the workers have the same model, and compute the same?

In: a model, an optimizer, settings; the first grain. Out: nothing, or an error that says which
worker differs. A model that was made without the seed, settings that read the worker's number, data
that are drawn anew in every process, a processor with other kernels: each would make the path
depend on which worker computes what, so each is refused here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from samepath.engine.checks.hardware import describe_cpu
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.tensors import fingerprint, tensor_sums
from samepath.errors import UserError

MayDiffer: TypeAlias = Callable[[str], None]
"""Told how a worker's processor differs; raises unless that is allowed."""


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
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    form = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    other = _first_other(collective, repr(form))
    if other is not None:
        raise UserError(
            f"worker {other} has a model of other parameters or buffers than worker 0; make the "
            "same model on every worker, whatever its number"
        )
    sums = tensor_sums(list(tensors.values()))
    rows = collective.gather_rows(sums)
    differs = rows != rows[0]
    if differs.any():
        place = int(np.flatnonzero(differs.any(axis=0))[0])
        worker = int(np.flatnonzero(differs[:, place])[0])
        what = f"{list(tensors)[place]!r} of worker {worker} is not that of worker 0"
        if not _is_other_hardware(collective, worker, f"{what} before the first step", may_differ):
            raise UserError(
                f"{what} before the first step; make the model after samepath.start(), which sets "
                "the generators from the seed (torch.rand and the like), or load its weights from "
                "a file"
            )
        for tensor in tensors.values():  # one model, as one kind of machine makes it
            collective.broadcast(tensor.detach())
    groups = [
        sorted((name, value) for name, value in group.items() if _is_plain(value))
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


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, tuple))


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


def _first_other(collective: Collective, value: Any) -> int | None:
    """The first worker whose value is not worker 0's."""
    found = collective.gather_bytes(fingerprint(value).encode())
    return next((worker for worker, value in enumerate(found) if value != found[0]), None)
