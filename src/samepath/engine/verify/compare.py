"""Finds where two runs part, and by how much.

In: traces, or two states of one tensor. Out: the first step and name that differ; the first event
of a grain that differs; how many values differ and how far apart they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath.engine.comm.tensors import bytes_of
from samepath.engine.verify.runs import Recorded
from samepath.engine.verify.trace import GrainEvent, Grains, WorkerTrace


class Parting(NamedTuple):
    """The first thing that differs between two traces."""

    step: int
    """Completed steps; 0 is before the first."""
    name: str
    """A tensor of the state, groups, schedule, loss, grain losses, a metric, status; or what only
    the run's end shows: a line of its log, its digest."""


_OF_STEPS = (
    *("loss", "metrics of the loss", "grain losses", "gradient norm", "learning rate"),
    *("noise scale", "epoch loss"),
)
"""What a step says of itself: a process that continues after it does not know."""


def first_parting(a: WorkerTrace, b: WorkerTrace, last_step: int | None = None) -> Parting | None:
    """Find where two traces part, up to a step that both should have come to (the longer's last
    when not given). They may begin at other steps: one of them continues a run."""
    end = max(a.last_step, b.last_step) if last_step is None else last_step
    first, last = max(a.first_step, b.first_step), min(a.last_step, b.last_step, end)
    for step in range(first, last + 1):
        facts, others = a.steps[step - a.first_step], b.steps[step - b.first_step]
        name = first_name(facts, others, _unknown(a, b, step))
        if name is not None:
            return Parting(step, name)
    if min(a.last_step, end) != min(b.last_step, end):  # one of them diverged, or met its target
        return Parting(last + 1, "status")
    if a.last_step == b.last_step == last:
        name = first_name(a.end, b.end)
        return None if name is None else Parting(last, name)
    return None


def first_name(
    facts: Mapping[str, Any], others: Mapping[str, Any], unknown: Collection[str] = ()
) -> str | None:
    """The first that differs, in the order in which differences are reported."""
    for name in (*facts, *(n for n in others if n not in facts)):
        if name not in unknown and facts.get(name) != others.get(name):
            return name
    return None


def _unknown(a: WorkerTrace, b: WorkerTrace, step: int) -> set[str]:
    """What one of two traces cannot know of a step."""
    facts, others = a.steps[step - a.first_step], b.steps[step - b.first_step]
    metrics = {name for name in (*facts, *others) if name.startswith("valid ")}
    if a.first_step != b.first_step and step in (a.first_step, b.first_step):
        return {*_OF_STEPS, *metrics}
    if a.last_step != b.last_step and step in (a.last_step, b.last_step):
        # a run that ends at a step evaluates there, a longer one may not
        return {name for name in metrics if name not in facts or name not in others}
    return set()


class RunParting(NamedTuple):
    """Where a run parts from another: in which leg, and on which of its workers."""

    leg: int
    worker: int
    parting: Parting


def first_difference(reference: Recorded, run: Recorded) -> RunParting | None:
    """Find where a run leaves another one. All workers of a run hold the whole state."""
    found = []
    for number, (leg, workers) in enumerate(zip(run.route, run.legs, strict=True)):
        stop = None if number == len(run.route) - 1 else leg.stop
        for worker, trace in enumerate(workers):
            parting = first_parting(reference.first, trace, stop)
            if parting is not None:
                found.append(RunParting(number, worker, parting))
    if found:
        return min(found, key=lambda f: (f.parting.step, f.leg, f.worker))
    at_end = _at_end(reference, run)
    return None if at_end is None else RunParting(len(run.legs) - 1, *at_end)


def _at_end(reference: Recorded, run: Recorded) -> tuple[int, Parting] | None:
    """What no step showed: how the run ended, its log, its digest."""
    result = reference.first.result
    for worker, trace in enumerate(run.last):
        for name in ("status", "message", "digest"):
            if trace.result[name] != result[name]:
                return worker, Parting(trace.last_step, name)
    for line, other in zip(reference.log, run.log, strict=False):
        if (logged := first_name(line, other)) is not None:
            return 0, Parting(line["step"], f"logged {logged}")
    if len(reference.log) != len(run.log):
        return 0, Parting(run.last[0].last_step, "logged lines")
    return None


_RANKS = {"loaded": 0, "weight": 1}
"""A grain's weight is a share of the batch's, so data that differ in one grain change the weight of
all: data of any grain come first, then weights, then the rest."""


class GrainParting(NamedTuple):
    """The first event of a grain that differs."""

    grain: int
    validation: bool
    event: GrainEvent
    agreed: Sequence[GrainEvent]
    """What happened to the grain before that, the same in both."""


def first_event(a: Grains, b: Grains, *, validation: bool) -> GrainParting | None:
    """The first event that differs, over the grains both have."""
    phase = "valid" if validation else "train"
    found = []
    for grain in sorted(int(g.split()[1]) for g in a.keys() & b.keys() if g.startswith(phase)):
        events = a[f"{phase} {grain}"]
        for place, (event, other) in enumerate(zip_longest(events, b[f"{phase} {grain}"])):
            if event == other:
                continue
            if event is None or other is None or event[:2] != other[:2]:
                # not the same modules were called
                is_ours = other is None or (event is not None and event.point == "input")
                event = (event if is_ours else other)._replace(point="call")
            found.append(GrainParting(grain, validation, event, events[:place]))
            break
    return min(found, key=lambda f: _RANKS.get(f.event.point, 2), default=None)


@dataclass(frozen=True, kw_only=True)
class Values:
    """How two tensors differ."""

    num_values: int
    num_different: int
    """Values whose bits differ."""
    max_ulps: int | None
    """The largest distance, in units in the last place (for whole numbers: plain units); None when
    one of every pair is not a number."""
    first_index: tuple[int, ...]
    first_pair: tuple[float, float]


def compare_tensors(a: Tensor, b: Tensor) -> Values | None:
    """How two tensors differ; None when they are equal or not of one type and shape."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return None
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    different = np.flatnonzero(_bits(a) != _bits(b))
    if not len(different):
        return None
    distances = ulps(a, b)[different]
    place = int(different[0])
    index = np.unravel_index(place, tuple(a.shape)) if a.dim() else ()
    pair = a.reshape(-1)[place].item(), b.reshape(-1)[place].item()
    return Values(
        num_values=a.numel(),
        num_different=len(different),
        max_ulps=None if distances.mask.all() else int(distances.max()),
        first_index=tuple(int(i) for i in index),
        first_pair=(pair[0], pair[1]),
    )


def ulps(a: Tensor, b: Tensor) -> np.ma.MaskedArray[Any, np.dtype[np.uint64]]:
    """How many representable values lie between each pair, plus one; 0 for 0.0 and -0.0.

    Pairs with a NaN that do not have the same bits are masked: there is no distance to it.
    """
    ours, theirs = _places(a), _places(b)
    distance = np.maximum(ours, theirs) - np.minimum(ours, theirs)
    nan = (a.double().isnan() | b.double().isnan()).cpu().numpy().reshape(-1)
    return np.ma.MaskedArray(distance, mask=nan & (_bits(a) != _bits(b)))


def _bits(tensor: Tensor) -> NDArray[Any]:
    """Each value's bits as an unsigned whole number."""
    return np.frombuffer(bytes_of(tensor), np.dtype(f"u{tensor.element_size()}"))


def _places(tensor: Tensor) -> NDArray[np.uint64]:
    """Each value's place in the order of all values of its type. Floats of every width are stored
    as sign and magnitude, and magnitudes are in order when read as whole numbers."""
    bits = _bits(tensor)
    sign = np.uint64(1 << (8 * bits.itemsize - 1))
    wide = bits.astype(np.uint64)
    if tensor.is_floating_point():
        magnitude = wide & (sign - np.uint64(1))
        return np.where(wide & sign, sign - magnitude, sign + magnitude)
    return wide ^ sign if tensor.dtype.is_signed else wide
