"""The same script under every launcher people have, with one digest."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launches import slurm_answers

from samepath.engine.launch.launch import launch
from samepath.engine.train import Request, train

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "examples" / "own_loop.py")
BIN = Path(sys.executable).parent
LIMIT_SECONDS = 240.0
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]

needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")


needs_srun = pytest.mark.skipif(not slurm_answers(), reason="there is no Slurm cluster here")


def run(folder: Path, *command: str | Path) -> str:
    """What a command writes to standard output."""
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script prints by itself."""
    text = run(tmp_path_factory.mktemp("alone"), sys.executable, SCRIPT)
    epochs, (word, digest) = text.splitlines()[:-1], text.splitlines()[-1].split()
    assert len(epochs) == 3
    assert word == "digest"
    assert len(digest) == 64
    return text


def test_samepath_run(alone: str, tmp_path: Path) -> None:
    assert run(tmp_path, BIN / "samepath", "run", "-n", "2", SCRIPT) == alone


def test_torchrun(alone: str, tmp_path: Path) -> None:
    assert run(tmp_path, BIN / "torchrun", "--nproc-per-node", "3", SCRIPT) == alone


@needs_mpirun
def test_mpirun(alone: str, tmp_path: Path) -> None:
    assert run(tmp_path, *MPIRUN, sys.executable, SCRIPT) == alone


@needs_srun
def test_srun(alone: str, tmp_path: Path) -> None:
    assert run(tmp_path, "srun", "-n", "2", sys.executable, SCRIPT) == alone


@needs_mpirun
def test_train_under_mpirun(tmp_path: Path) -> None:
    """One run folder, one JSON object, and the result of one worker."""
    command = [str(BIN / "samepath"), "train", "digits", "--steps", "3", "--json"]
    many = json.loads(run(tmp_path, *MPIRUN, *command))
    alone, _ = train(Request(recipe="digits", num_workers=1, steps=3, out=tmp_path / "alone"))
    assert many["num_workers"] == 2
    assert many["digest"] == alone.digest
    assert many["metrics"] == alone.metrics
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-1"]
    content = json.loads((tmp_path / "runs" / "digits-1" / "run.json").read_text())
    assert content["status"] == "finished"


def test_signals_are_given_back() -> None:
    """torch's agent installs handlers of its own; what comes after the workers is not theirs."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    launch(int, (), 2)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_long_tmpdir_has_room_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server's socket would not fit in there."""
    place = tmp_path / ("scratch-of-a-cluster" * 5)
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    command = [str(BIN / "samepath"), "train", "digits", "--steps", "1", "-n", "2", "--json"]
    assert json.loads(run(tmp_path, *command))["num_workers"] == 2
    left = [path.name for path in place.iterdir()]
    assert not [name for name in left if not name.startswith("torchinductor")]  # torch's own
