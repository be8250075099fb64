"""Ray as the engine of a study: a cluster that is running, or one of this machine.

In: a Destination. Out: a ClusterEngine whose members are Ray's nodes. A run's task is tied to one
node and asks Ray for its cores and memory; where it goes when that node is lost is for the study to
say.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from samepath.engine.run.request import available_workers
from samepath.errors import UserError
from samepath.files import brief
from samepath.study.places.cluster import ClusterEngine, Member
from samepath.study.places.destination import Destination
from samepath.study.places.task import Facts, Outcome, Ticket, examine, train_there

EXAMINE_SECONDS = 120
"""A node that is new starts a process first."""


def open_ray(destination: Destination, on: str) -> ClusterEngine:
    """Connect to a Ray cluster, or start one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if destination.address:
        how["address"] = destination.address
    else:
        how |= {"num_cpus": available_workers(), "include_dashboard": False}
        how["_node_ip_address"] = "127.0.0.1"
    try:
        ray.init(**how)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"--on {on}: Ray cannot be reached or started ({brief(error)})") from None
    return RayEngine(destination)


class RayEngine:
    """Nodes of one Ray cluster."""

    def __init__(self, destination: Destination) -> None:
        self._memory = destination.memory

    def members(self) -> dict[str, Member]:
        return {
            node["NodeID"]: Member(
                name=node["NodeManagerAddress"],
                cores=int(node["Resources"].get("CPU", 0)),
                memory=int(node["Resources"].get("memory", 0)),
            )
            for node in ray.nodes()
            if node["Alive"]
        }

    def expect(self, num_runs: int) -> None:
        """Nothing: nodes are there or not."""

    def examine(self, members: Sequence[str], check: Path, start: Path) -> dict[str, Facts | str]:
        asked = {
            member: _on(member, examine, num_cpus=0).remote(check, start) for member in members
        }
        found: dict[str, Facts | str] = {}
        for member, task in asked.items():
            try:
                found[member] = ray.get(task, timeout=EXAMINE_SECONDS)
            except (ray.exceptions.RayError, TimeoutError) as error:
                found[member] = brief(error)
        return found

    def start(self, ticket: Ticket, member: str) -> Any:
        resources = {"num_cpus": ticket.cores, "memory": self._memory or None}
        return _on(member, train_there, **resources).remote(ticket)

    def look(self, task: Any) -> Outcome | None:
        done, _ = ray.wait([task], timeout=0)
        if not done:
            return None
        try:
            found: Outcome = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            return Outcome("failed", brief(error.cause))
        except ray.exceptions.RayError:
            return Outcome("lost")
        return found

    def drop(self, task: Any) -> None:
        """Nothing: a task ends when its run is not wanted."""

    def close(self) -> None:
        ray.shutdown()


def _on(member: str, function: Any, **resources: Any) -> Any:
    """A function as a task of one node; where it fails, Ray does not try again."""
    node = NodeAffinitySchedulingStrategy(member, soft=False)
    return ray.remote(function).options(scheduling_strategy=node, max_retries=0, **resources)
