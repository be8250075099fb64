"""This worker's place in the run, from the variables that torchrun, mpirun and srun set; alone when
there are none.

In: environment variables. Out: a Place. (Slurm is asked for the address of a node whose name the
network does not know.)
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from samepath.errors import UserError
from samepath.keys import key
from samepath.owners import boot_id

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Place:
    """One worker's place among the workers of a run."""

    worker: int = 0
    num_workers: int = 1
    local_worker: int = 0
    """Number among the workers of this machine (which GPU to take)."""
    address: str = LOOPBACK
    """Where worker 0 can be reached."""
    port: int = 0
    launcher: str = "alone"
    one_machine: bool = True
    """All workers are known to be on this machine."""
    here: int = 0
    """Number among this launcher's workers on this machine,"""
    num_here: int = 1
    """which are so many."""
    store_prefix: str = ""
    """What this round's names begin with in the store of samepath's own launcher."""
    agent_has_store: bool = False
    """torchrun's launcher has a store that workers use."""


def read_place(variables: Mapping[str, str]) -> Place:
    """The place of this process, from the first launcher that left its variables."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return _torchrun(variables)
    if "OMPI_COMM_WORLD_RANK" in variables:
        return _open_mpi(variables)
    if "SLURM_STEP_ID" in variables and "SLURM_PROCID" in variables:  # set by srun, not by sbatch
        return _slurm(variables)
    return Place()


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out the variables by which `read_place` knows a launcher: for a run that is started by
    one of a launcher's processes and is no part of what was launched."""
    known = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID")
    return {name: value for name, value in variables.items() if name not in known}


def _torchrun(variables: Mapping[str, str]) -> Place:
    num_workers = int(variables["WORLD_SIZE"])
    missing = [v for v in ("MASTER_ADDR", "MASTER_PORT") if v not in variables]
    if missing and num_workers > 1:
        raise UserError(
            f"RANK and WORLD_SIZE are set but {' and '.join(missing)} is not; "
            "start the script with torchrun, or unset RANK and WORLD_SIZE to run alone"
        )
    return Place(
        worker=int(variables["RANK"]),
        num_workers=num_workers,
        local_worker=int(variables.get("LOCAL_RANK", "0")),
        address=variables.get("MASTER_ADDR", LOOPBACK),
        port=int(variables.get("MASTER_PORT", "0")),
        launcher="torchrun",
        one_machine=variables.get("LOCAL_WORLD_SIZE") == str(num_workers)
        or variables.get("MASTER_ADDR", LOOPBACK).startswith("127."),
        here=int(variables.get("SAMEPATH_HERE") or variables.get("LOCAL_RANK", "0")),
        num_here=int(variables.get("LOCAL_WORLD_SIZE", "1")),
        store_prefix=variables.get("SAMEPATH_STORE", ""),
        agent_has_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _open_mpi(variables: Mapping[str, str]) -> Place:
    num_workers = int(variables["OMPI_COMM_WORLD_SIZE"])
    one_machine = variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(num_workers)
    if not one_machine and "MASTER_ADDR" not in variables:
        raise UserError(
            "mpirun started workers on several machines and MASTER_ADDR is not set; "
            "add: mpirun -x MASTER_ADDR=<host of worker 0> -x MASTER_PORT=29500 ..."
        )
    job = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid", "")
    return Place(
        worker=int(variables["OMPI_COMM_WORLD_RANK"]),
        num_workers=num_workers,
        local_worker=int(variables["OMPI_COMM_WORLD_LOCAL_RANK"]),
        address=variables.get("MASTER_ADDR", LOOPBACK),
        port=_port(variables, "mpirun", job),
        launcher="mpirun",
        one_machine=one_machine,
    )


def _slurm(variables: Mapping[str, str]) -> Place:
    num_workers = int(variables.get("SLURM_STEP_NUM_TASKS") or variables["SLURM_NTASKS"])
    one_machine = variables.get("SLURM_STEP_NUM_NODES", variables.get("SLURM_NNODES")) == "1"
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_NODELIST", "")
    address = variables.get("MASTER_ADDR")
    if address is None:
        address = LOOPBACK if one_machine else _node_address(first_host(nodes))
    return Place(
        worker=int(variables["SLURM_PROCID"]),
        num_workers=num_workers,
        local_worker=int(variables.get("SLURM_LOCALID", "0")),
        address=address,
        port=_port(variables, "srun", variables["SLURM_JOB_ID"], variables["SLURM_STEP_ID"]),
        launcher="srun",
        one_machine=one_machine,
    )


def _node_address(node: str) -> str:
    """Find where a Slurm node can be reached: by its name, or at the address Slurm has for it."""
    with suppress(OSError):
        return socket.gethostbyname(node)
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["scontrol", "show", "node", node]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30)
        match = re.search(r"\bNodeAddr=(\S+)", asked.stdout)
        if match is not None:
            return socket.gethostbyname(match[1])
    raise UserError(
        f"the address of worker 0's node {node!r} cannot be found; set MASTER_ADDR to it"
    )


def _port(variables: Mapping[str, str], *job: str) -> int:
    """MASTER_PORT, or one derived from the job so that two jobs on a machine do not meet."""
    return int(variables.get("MASTER_PORT") or 20000 + key("port", *job) % 12000)


def machine_name() -> str:
    """Name the host and its boot."""
    return socket.gethostname() + boot_id()


def first_host(node_list: str) -> str:
    """The first host of Slurm's compressed list: 'gpu[03-05,9],io1' gives 'gpu03'."""
    match = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?([^,]*)", node_list)
    if match is None:
        raise UserError(
            f"SLURM_STEP_NODELIST is {node_list!r}, which names no host; set MASTER_ADDR"
        )
    return "".join(part or "" for part in match.groups())
