"""A simulation from start to end: a measured step, machines, policies; curves and a verdict.

In: a SimulationRequest: a recipe (which is then measured) or a folder with a measured step. Out: a
Simulation. Guaranteed: bad input raises before anything is measured; nothing is written; every
point says that it is modelled, and what was measured stands beside, apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from samepath.engine.run.options import Asked, Options, resolve
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.study.results import NetworkFacts
from samepath.timing.links import HERE
from samepath.timing.machines import Machine, find_machine
from samepath.timing.measured import MeasuredStep, read_measured
from samepath.timing.model import TRIALS, Policy, Simulated, simulate
from samepath.timing.policies import DDP, Queue, Static
from samepath.timing.stopwatch import measure_step, workload_from
from samepath.timing.workload import Scaling, Workload, share_out

POLICIES: dict[str, Policy] = {"static": Static(), "queue": Queue(), "ddp": DDP}
ALGORITHMS = ("samepath", "ring", "tree")
MOST_WORKERS = 1536
"""Those of Gahlot et al. 2020, figure 8."""
MOST_CURVES = 8
"""A figure holds no more."""
FLOOR = 0.5
"""Efficiency that is worth a word."""
_ANY_LINK = NetworkFacts(name=HERE, how="measured", bytes_per_second=1.0, latency_seconds=1.0)


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """What a person asked for."""

    source: str
    """A recipe to measure, or the folder of a profile, an advice or a simulation."""
    profile: Path | None = None
    """Such a folder, for a recipe that need not be measured again."""
    data: str | None = None
    keep: str | None = None
    asked: Asked = field(default_factory=Asked)
    """What the recipe is measured with."""
    seconds: float = 30.0
    """For measuring."""
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
class Curve:
    """One policy on one machine."""

    policy: str
    network: str
    points: tuple[Simulated, ...]

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.network}"

    def largest_above(self, floor: float) -> int | None:
        """Of the simulated numbers of workers, the last before efficiency falls below this."""
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
    curves: tuple[Curve, ...]

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
        find_machine(text, here=_ANY_LINK)
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
    workload = workload_from(
        measured, batch_size=request.asked.batch_size, grain_size=request.asked.grain_size
    )
    workload = replace(workload, spread=replace(workload.spread, worker=request.stragglers))
    workers = sorted(set(request.workers)) or default_workers(workload, request.scaling)
    return Simulation(
        measured=measured,
        workload=workload,
        scaling=request.scaling,
        stragglers=request.stragglers,
        seed=request.seed,
        trials=request.trials,
        curves=tuple(
            Curve(
                policy=name,
                network=network,
                points=simulate(
                    workload,
                    _machine(network, policy, measured),
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


def _machine(network: str, policy: Policy, measured: MeasuredStep) -> Machine:
    """Only our own buckets travel through shared memory."""
    ours = isinstance(policy, Static) and policy.algorithm == "samepath"
    return find_machine(network, here=measured.local if ours else measured.network)


def parse_policy(text: str) -> Policy:
    """static, queue or ddp, with another way to reduce if wanted: static:tree."""
    name, colon, algorithm = text.partition(":")
    if name not in POLICIES or (colon and algorithm not in ALGORITHMS):
        raise UserError(
            f"--policy {text}: use {', '.join(POLICIES)}, each with :{', :'.join(ALGORITHMS)} for "
            "another way to reduce (static:tree)"
        )
    policy = POLICIES[name]
    if algorithm == "tree" and isinstance(policy, Queue):
        return replace(policy, algorithm="tree", waits=False)  # NCCL's: the queue only starts it
    return replace(policy, algorithm=algorithm or policy.algorithm)  # type: ignore[arg-type]


def find_measured(request: SimulationRequest, tell: Callable[[str], None]) -> MeasuredStep:
    """From a folder, or measured now."""
    if Path(request.source).is_dir():
        return read_measured(Path(request.source))
    found = find_recipe(
        request.source, request.data, request.keep, threads=request.asked.threads or 1
    )
    if request.profile is None:
        options: Options = resolve(found, request.asked)
        return measure_step(options, seconds=request.seconds, tell=tell)
    measured = read_measured(request.profile)
    if measured.identity != found.identity:
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
            f"is at least {FLOOR:.0%} efficient up to {far} {'worker' if far == 1 else 'workers'}"
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
            f"A batch of {simulation.workload.batch_size} has only {busy} grains to share, so more "
            f"than {busy} workers are idle; a larger batch (--batch-size) or --scaling weak has "
            "more to do."
        )
    return " ".join(words)
