"""Who am I: the variables that launchers leave."""

from __future__ import annotations

import socket
import subprocess
from typing import Any

import pytest

from samepath.engine.comm.environment import LOOPBACK, Place, first_host, read_place
from samepath.errors import UserError

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7", "MASTER_PORT": "29501",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job-1",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "gpu[03-05]", "SLURM_NNODES": "4", "SLURM_NODELIST": "gpu[02-05]",
}  # fmt: skip


def test_alone() -> None:
    """Also in a batch script itself, which has SLURM_PROCID but is no step of srun's."""
    alone = Place(worker=0, num_workers=1, one_machine=True, here=0, num_here=1)
    batch = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}
    assert read_place({}) == read_place(batch) == alone


def test_torchrun() -> None:
    assert read_place(TORCHRUN) == Place(
        worker=3, num_workers=4, local_worker=1, address="node7", port=29501,
        launcher="torchrun", one_machine=False, here=1, num_here=2,
    )  # fmt: skip
    assert read_place(TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}).one_machine


def test_samepaths_own_launcher() -> None:
    """Its workers have torchrun's variables, and where to meet in its store."""
    ours = {"SAMEPATH_STORE": "0f/workers/2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    place = read_place(TORCHRUN | ours)
    assert (place.store_prefix, place.agent_has_store) == ("0f/workers/2", True)
    loopback = read_place(TORCHRUN | {"MASTER_ADDR": "127.0.0.1"})
    assert loopback.one_machine, "several launchers of one machine, which sees its loopback alone"
    # a launcher that goes on without its worker 0 leaves out that number, which is its GPU's
    left_out = read_place(TORCHRUN | {"LOCAL_RANK": "1", "SAMEPATH_HERE": "0"})
    assert (left_out.here, left_out.num_here, left_out.local_worker) == (0, 2, 1)


def test_half_of_torchruns_variables() -> None:
    with pytest.raises(UserError, match=r"MASTER_ADDR and MASTER_PORT is not.*unset RANK"):
        read_place({"RANK": "0", "WORLD_SIZE": "2"})
    assert read_place({"RANK": "0", "WORLD_SIZE": "1"}).num_workers == 1
    assert read_place({"RANK": "0"}) == Place()


def test_open_mpi() -> None:
    place = read_place(OPEN_MPI)
    assert (place.worker, place.num_workers, place.local_worker) == (1, 2, 1)
    assert (place.address, place.launcher, place.one_machine) == (LOOPBACK, "mpirun", True)
    assert 20000 <= place.port < 32000


def test_jobs_on_one_machine_get_ports_of_their_own() -> None:
    """All workers of a job agree, two jobs (almost always) differ."""
    assert read_place(OPEN_MPI).port == read_place(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"}).port
    ports = {read_place(OPEN_MPI | {"PMIX_NAMESPACE": f"job-{n}"}).port for n in range(20)}
    assert len(ports) >= 18
    assert read_place(OPEN_MPI | {"MASTER_PORT": "1234"}).port == 1234


def test_open_mpi_on_several_machines() -> None:
    several = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(UserError, match="-x MASTER_ADDR="):
        read_place(several)
    place = read_place(several | {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"})
    assert (place.address, place.port, place.one_machine) == ("node1", 29500, False)


ADDRESSES = {"gpu03": "10.0.0.3", "10.0.0.9": "10.0.0.9"}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that knows gpu03 and addresses, and a Slurm that knows where io1 is."""

    def resolve(name: str) -> str:
        if name not in ADDRESSES:
            raise OSError(name)
        return ADDRESSES[name]

    def scontrol(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == ["scontrol", "show", "node"]
        text = "NodeName=io1 Arch=x86_64\n   NodeAddr=10.0.0.9 NodeHostName=x" * (
            command[3] == "io1"
        )
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    monkeypatch.setattr(subprocess, "run", scontrol)


@pytest.mark.usefixtures("network")
def test_nodes_that_only_slurm_knows() -> None:
    assert read_place(SRUN | {"SLURM_STEP_NODELIST": "io1,io2"}).address == "10.0.0.9"
    unknown = SRUN | {"SLURM_STEP_NODELIST": "io2"}
    with pytest.raises(UserError, match=r"'io2' cannot be found; set MASTER_ADDR"):
        read_place(unknown)
    assert read_place(unknown | {"MASTER_ADDR": "io2.lan"}).address == "io2.lan"


@pytest.mark.usefixtures("network")
def test_srun() -> None:
    """The step's variables, not the job's: a step may use a part of the job."""
    place = read_place(SRUN)
    assert (place.worker, place.num_workers, place.local_worker) == (5, 6, 1)
    assert (place.address, place.launcher, place.one_machine) == ("10.0.0.3", "srun", False)
    assert place.port == read_place(SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).port
    assert place.port != read_place(SRUN | {"SLURM_STEP_ID": "1"}).port
    one = read_place(SRUN | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu03"})
    assert (one.address, one.one_machine) == (LOOPBACK, True)


def test_the_innermost_launcher_wins() -> None:
    """torchrun inside an srun step or under mpirun: torchrun's variables are the workers'."""
    assert read_place(SRUN | TORCHRUN).launcher == "torchrun"
    assert read_place(SRUN | OPEN_MPI).launcher == "mpirun"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[03-05,9],io1", "gpu03"),
        ("gpu[7,9]", "gpu7"),
        ("a-b[001-100]-ib,c", "a-b001-ib"),
        ("n.example.org", "n.example.org"),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
    with pytest.raises(UserError, match="names no host"):
        first_host("")
