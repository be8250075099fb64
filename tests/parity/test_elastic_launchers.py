"""A range of workers under the launchers people have: a worker is killed, the digest is the same.

torchrun starts all its workers anew; mpirun and srun start one launcher of ours for each machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from braked_runs import Braked, Outcome, undisturbed
from elastic_runs import lines
from launches import slurm_answers

BIN = Path(sys.executable).parent
TORCHRUN = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "--no-python")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
SRUN = ("srun", "--overcommit", "-n", "2")
SRUN_APART = ("srun", "--overcommit", "-N", "2", "-n", "2")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return undisturbed(tmp_path_factory.mktemp("alone"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Braked]:
    braked = Braked(tmp_path)
    yield braked
    braked.end()


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "srun", "srun on two nodes"])
def test_a_worker_is_killed(run: Braked, expected: Outcome, launcher: str) -> None:
    if launcher.startswith("srun") and not slurm_answers():
        pytest.skip("there is no Slurm cluster here")
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    before = {
        "torchrun": (str(BIN / "torchrun"), *TORCHRUN),
        "mpirun": MPIRUN,
        "srun": SRUN,
        "srun on two nodes": SRUN_APART,
    }
    here = () if launcher == "torchrun" else ("--here", "1")
    started = run.train(
        "-n",
        "1:4",
        "--checkpoint-steps",
        "1000",
        *here,
        before=before[launcher],
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    run.await_(lambda: len(run.computing(2)) == 2)
    run.await_steps(5)
    step = lines(run.out)[-1]["step"]
    os.kill(killed := run.computing(2)[1], signal.SIGKILL)
    run.await_(lambda: len(run.computing(2)) == 2 and killed not in run.computing(2))
    assert not (run.out / "checkpoints").exists()
    assert lines(run.out)[-1]["step"] >= step - 1, "it goes on from memory"
    run.let_go()
    result = started.result()  # one object: only one of them prints
    assert (result["digest"], lines(run.out)) == expected
    assert result["num_workers"] == 2
