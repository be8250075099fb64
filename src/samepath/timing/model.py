"""A step on 1 to thousands of workers, modelled event by event.

In: a workload as measured with one worker, a machine, a policy. Out: for each number of workers the
step's mean and spread, speed-up, efficiency, what is hidden and what is waited for.
Guaranteed: the same seed gives the same numbers; nothing here is a measurement, and every result
says so.

A step: every worker computes its grains one after another, with times drawn from the measured
spread; gradients appear during its last grain; the policy reduces what all workers have, over the
machine's links; then everybody updates. The next step begins when the last worker has done that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from samepath.errors import UserError
from samepath.keys import key, keys_for
from samepath.timing.machines import Machine, reduction_cost, tree_seconds
from samepath.timing.policies import Exchange, Queue, Static, run_queue, run_static
from samepath.timing.workload import (
    Drawn,
    Floats,
    Scaling,
    Shares,
    Workload,
    draw,
    share_out,
    uniform,
)

Policy: TypeAlias = Static | Queue
TRIALS = 200
MOST_AT_ONCE = 1 << 21
"""Grain times drawn in one go, to bound the memory."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One number of workers, modelled."""

    workers: int
    busy_workers: int
    """With fewer grains than workers the others are idle."""
    step_seconds: float
    """Mean over the trials."""
    median_seconds: float
    low_seconds: float
    """One step in twenty is shorter."""
    high_seconds: float
    """One step in twenty is longer."""
    examples_per_second: float
    speedup: float
    """Examples per second, in those of one worker in the same model."""
    efficiency: float
    """speedup / workers."""
    reduction_seconds: float
    """The link is busy for so long in a step."""
    hidden: float | None
    """Of that, the share behind somebody's computing; None without a reduction."""
    waiting: float
    """The share of the step for which a busy worker, on average, waits for the slowest."""
    how: Literal["modelled"] = "modelled"


def simulate(
    workload: Workload,
    machine: Machine,
    workers: Sequence[int],
    *,
    policy: Policy,
    scaling: Scaling = "strong",
    seed: int = 0,
    trials: int = TRIALS,
) -> tuple[Simulated, ...]:
    """A step at each number of workers."""
    if not workers or min(workers) < 1:
        raise UserError(f"workers {list(workers)}: give numbers from 1 on, such as 1,2,4,8")
    if trials < 1:
        raise UserError(f"{trials} trials: at least one is needed")

    def run(num: int) -> tuple[Shares, _Steps]:
        shares = share_out(workload, num, scaling)
        return shares, _steps(workload, machine, shares, policy, seed, trials)

    shares, alone = run(1)
    pace = shares.num_examples / float(alone.seconds.mean())
    return tuple(_summary(num, *run(num), pace) for num in workers)


class _Steps(NamedTuple):
    """One value per trial, in seconds."""

    seconds: Floats
    """Of the step."""
    waiting: Floats
    """For the slowest, on average over the busy workers."""
    reducing: Floats
    hidden: Floats
    """Of that, behind somebody's computing."""


def _summary(workers: int, shares: Shares, steps: _Steps, pace: float) -> Simulated:
    mean = float(steps.seconds.mean())
    low, median, high = np.quantile(steps.seconds, [0.05, 0.5, 0.95])
    reducing = float(steps.reducing.mean())
    speedup = shares.num_examples / mean / pace
    return Simulated(
        workers=workers,
        busy_workers=len(shares.starts),
        step_seconds=mean,
        median_seconds=float(median),
        low_seconds=float(low),
        high_seconds=float(high),
        examples_per_second=shares.num_examples / mean,
        speedup=speedup,
        efficiency=speedup / workers,
        reduction_seconds=reducing,
        hidden=float(steps.hidden.mean()) / reducing if reducing > 0.0 else None,
        waiting=float(steps.waiting.mean()) / mean,
    )


def _steps(
    workload: Workload, machine: Machine, shares: Shares, policy: Policy, seed: int, trials: int
) -> _Steps:
    """All trials, some at a time."""
    at_once = max(MOST_AT_ONCE // len(shares.seconds), 1)
    parts = [
        _some_steps(
            workload, machine, shares, policy, seed, range(first, min(first + at_once, trials))
        )
        for first in range(0, trials, at_once)
    ]
    return _Steps(*map(np.concatenate, zip(*parts, strict=True)))


def _some_steps(
    workload: Workload, machine: Machine, shares: Shares, policy: Policy, seed: int, trials: range
) -> _Steps:
    side_by_side = machine.side_by_side(len(shares.starts))
    drawn = draw(workload, shares, seed=seed, trials=trials, side_by_side=side_by_side)
    computed = drawn.done.max(axis=1)
    if len(shares.starts) > 1:
        exchange = _exchange(workload, machine, shares, policy, seed, trials, drawn)
    else:
        exchange = Exchange(computed, np.zeros_like(computed), np.zeros_like(computed))
    # What seems hidden takes cores from computing, where the link is measured to need some.
    taken = machine.cores_taken * exchange.hidden
    return _Steps(
        exchange.finished + taken + workload.serial_seconds * workload.crowded(side_by_side),
        (computed[:, None] - drawn.done).mean(axis=1),
        exchange.busy,
        exchange.hidden - taken,
    )


def _exchange(
    workload: Workload,
    machine: Machine,
    shares: Shares,
    policy: Policy,
    seed: int,
    trials: range,
    drawn: Drawn,
) -> Exchange:
    """Bring the gradients of several workers together."""
    workers = len(shares.starts)
    ready = np.stack(
        [(drawn.before + part * drawn.last).max(axis=1) for part in workload.tensor_ready], axis=1
    )
    computed = drawn.done.max(axis=1)
    cost = reduction_cost(machine, workers, policy.algorithm, num_grains=len(shares.seconds))
    if isinstance(policy, Static):
        sizes, buffers = workload.tensor_bytes, workload.buffer_bytes
        return run_static(ready, computed, sizes, cost, policy, buffer_bytes=buffers)
    phases = keys_for(key(seed, "simulate", "phase"), np.array(trials, np.int64))
    return run_queue(
        ready,
        computed,
        workload.tensor_bytes,
        cost,
        policy,
        workers=workers,
        agree_seconds=tree_seconds(machine, workers),
        phase=uniform(phases),
    )
