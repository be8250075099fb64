"""A simulation from start to end: a measured step, machines, policies; curves and a verdict.

In: a SimulationRequest: a recipe (which is then measured) or a folder with a measured step. Out: a
Simulation. Guaranteed: bad input raises before anything is measured; nothing is written; every
point says that it is modelled, and what was measured stands beside, apart; torch and the engine are
loaded only to measure a recipe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from samepath.console import count
from samepath.errors import UserError
from samepath.plan import grain_size_asked
from samepath.timing.links import Cluster, check_cluster, find_cluster
from samepath.timing.measured import MeasuredStep, read_measured
from samepath.timing.model import (
    DDP,
    TRIALS,
    Buckets,
    Policy,
    Queue,
    Scaling,
    Simulated,
    Workload,
    share_out,
    simulate,
    workload_from,
)

POLICIES: dict[str, Policy] = {"samepath": Buckets(), "queue": Queue(), "ddp": DDP}
ALGORITHMS = ("samepath", "ring", "tree")
MOST_WORKERS = 1536
"""The workers of Gahlot et al. 2020, figure 8."""
MOST_CURVES = 8
"""A figure holds no more."""
FLOOR = 0.5
"""Efficiency that is worth a word."""


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """What a person asked for."""

    source: str
    """A recipe to measure, or the folder of a profile, an advice or a simulation."""
    profile: Path | None = None
    """Such a folder, for a recipe that need not be measured again."""
    data: str | None = None
    keep: str | None = None
    batch_size: int | None = None
    grain_size: int | None = None
    max_workers: int | None = None
    threads: int | None = None
    """Threads of each worker, when a recipe is measured."""
    seconds: float = 30.0
    """Seconds for measuring."""
    workers: tuple[int, ...] = ()
    """Doubled to MOST_WORKERS where none are given, or until all grains have one."""
    networks: tuple[str, ...]
    policies: tuple[str, ...]
    scaling: Scaling = "strong"
    stragglers: float = 0.0
    """Standard deviation of the logarithm of a worker's slowness, in a step."""
    seed: int = 0
    trials: int = TRIALS


@dataclass(frozen=True, kw_only=True)
class SimulatedCurve:
    """One policy on one cluster."""

    policy: str
    network: str
    points: tuple[Simulated, ...]

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.network}"

    def largest_above(self, floor: float) -> int | None:
        """Find, of the simulated numbers of workers, the last before efficiency falls below
        this."""
        good = list(itertools.takewhile(lambda p: p.efficiency >= floor, self.points))
        return good[-1].workers if good else None


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Everything that was modelled, and what it rests on."""

    measured: MeasuredStep
    workload: Workload
    scaling: Scaling
    stragglers: float
    seed: int
    trials: int
    curves: tuple[SimulatedCurve, ...]

    @property
    def measured_steps(self) -> dict[int, float]:
        """Seconds of steps that were really run, as far as they are the simulated ones."""
        as_measured = (self.measured.batch_size, self.measured.grain_size)
        if (self.workload.batch_size, self.workload.grain_size) != as_measured:
            return {}
        steps = {int(workers): step for workers, step in self.measured.step_seconds.items()}
        return steps if self.scaling == "strong" else {n: s for n, s in steps.items() if n == 1}


def run_simulation(request: SimulationRequest, tell: Callable[[str], None]) -> Simulation:
    """Measure or read a step, and simulate it everywhere."""
    policies = {text: parse_policy(text) for text in request.policies}
    for text in request.networks:
        check_cluster(text)
    if len(policies) * len(request.networks) > MOST_CURVES:
        raise UserError(
            f"{len(policies)} policies on {len(request.networks)} networks are more than "
            f"{MOST_CURVES} curves; ask for fewer"
        )
    if not 0.0 <= request.stragglers < 10.0:
        raise UserError(
            f"--stragglers {request.stragglers:g}: give a number from 0 on, such as 0.1"
        )
    measured = find_measured(request, tell)
    size = request.batch_size or measured.batch_size
    grain = grain_size_asked(size, request.grain_size, request.max_workers)
    workload = replace(
        workload_from(measured, batch_size=request.batch_size, grain_size=grain),
        stragglers=request.stragglers,
    )
    workers = sorted(set(request.workers)) or default_workers(workload, request.scaling)
    return Simulation(
        measured=measured,
        workload=workload,
        scaling=request.scaling,
        stragglers=request.stragglers,
        seed=request.seed,
        trials=request.trials,
        curves=tuple(
            SimulatedCurve(
                policy=name,
                network=network,
                points=simulate(
                    workload,
                    _cluster(network, policy, measured),
                    workers,
                    policy=policy,
                    scaling=request.scaling,
                    seed=request.seed,
                    trials=request.trials,
                ),
            )
            for network in request.networks
            for name, policy in policies.items()
        ),
    )


def default_workers(workload: Workload, scaling: Scaling) -> list[int]:
    """1, 2, 4, ... to MOST_WORKERS, or until every grain of the batch has a worker."""
    most = MOST_WORKERS
    if scaling == "strong":
        most = min(most, len(share_out(workload, most, scaling).seconds))
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _cluster(network: str, policy: Policy, measured: MeasuredStep) -> Cluster:
    """The cluster of this name; "here" only our own buckets travel through shared memory."""
    ours = isinstance(policy, Buckets) and policy.algorithm == "samepath"
    return find_cluster(network, here=measured.local if ours else measured.network)


def parse_policy(text: str) -> Policy:
    """samepath, queue or ddp, with another way to reduce if wanted: samepath:tree."""
    name, colon, algorithm = text.partition(":")
    if name not in POLICIES or (colon and algorithm not in ALGORITHMS):
        raise UserError(
            f"--policy {text}: use {', '.join(POLICIES)}, each with :{', :'.join(ALGORITHMS)} for "
            "another way to reduce (samepath:tree)"
        )
    policy = POLICIES[name]
    if algorithm == "tree" and isinstance(policy, Queue):
        return replace(policy, algorithm="tree", waits=False)  # NCCL's: the queue only starts it
    return replace(policy, algorithm=algorithm or policy.algorithm)  # type: ignore[arg-type]


def find_measured(request: SimulationRequest, tell: Callable[[str], None]) -> MeasuredStep:
    """The measured step of a folder, or one that is measured now."""
    if Path(request.source).is_dir():
        return read_measured(Path(request.source))
    from samepath.engine.run.options import Overrides, resolve
    from samepath.recipe import find_recipe
    from samepath.timing.stopwatch import measure_step

    found = find_recipe(request.source, request.data, request.keep, threads=request.threads or 1)
    if request.profile is None:
        asked = Overrides(
            batch_size=request.batch_size,
            grain_size=request.grain_size,
            max_workers=request.max_workers,
            threads=request.threads,
        )
        return measure_step(resolve(found, asked), seconds=request.seconds, tell=tell)
    measured = read_measured(request.profile)
    if measured.identity != found.origin.identity:
        raise UserError(
            f"--profile {request.profile} is of another recipe ({measured.recipe}) or of another "
            f"version of {request.source}; leave --profile out to measure it again"
        )
    return measured


def verdict(simulation: Simulation) -> str:
    """What to remember of it."""
    words = []
    most = max(point.workers for point in simulation.curves[0].points)
    for curve in simulation.curves:
        far = curve.largest_above(FLOOR)
        last = curve.points[-1]
        reach = (
            f"is at least {FLOOR:.0%} efficient up to {count(far, 'worker')}"
            if far is not None
            else f"is never {FLOOR:.0%} efficient"
        )
        words.append(
            f"{curve.name}: {reach}; {last.efficiency:.1%} at {most} "
            f"({1e3 * last.step_seconds:.3g} ms a step, modelled)."
        )
    busy = simulation.curves[0].points[-1].busy_workers
    if busy < most:
        words.append(
            f"A batch of {simulation.workload.batch_size} has only {busy} grains to share, so "
            f"workers beyond the {ordinal(busy)} are idle; a larger batch (--batch-size) or "
            "--scaling weak has more to do."
        )
    return " ".join(words)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 22nd."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
