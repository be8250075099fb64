"""A study on a cluster whose workers, or whose driver, are killed finds what an unhurt one finds on
this machine; a worker that would compute other bits is refused."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from elastic_runs import RECIPE, children, command_of, num_lines, until

from samepath.console import SilentWatcher
from samepath.files import is_locked
from samepath.study.batches import batch_study
from samepath.study.opening import StudyRequest

pytest.importorskip("distributed", reason="the extra dask is not installed")
from dask_cluster import DaskProcesses, StudyProcess, dask_processes

SIZES = (10, 20)
EPOCHS = 3
HELD_AFTER = 2
"""Steps that a process takes."""
BRAKED = f"""
import runpy, signal, time
from dataclasses import replace
from pathlib import Path
TINY = runpy.run_path({str(RECIPE)!r})
steps, asked = [], []
def hear(*given, before):
    asked.append(1)
    before(*given)
def loss(model, batch):
    if len(steps) == {HELD_AFTER} and Path("brake").exists():
        before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *given: hear(*given, before=before))
        while Path("brake").exists() and not asked:
            time.sleep(0.02)
    return TINY["loss"](model, batch)
def recipe():
    tiny = TINY["recipe"]()
    def optimizer(parameters):
        made = tiny.optimizer(parameters)
        made.register_step_post_hook(lambda *given: steps.append(1))
        return made
    return replace(tiny, loss=loss, optimizer=optimizer)
"""
"""The tiny recipe. Where there is a file `brake` where the study was started, each process stops
after a few steps until it is asked to end, or the file is gone: however slow this machine is, the
run is under way then."""


def start(out: Path, on: str, sizes: tuple[int, ...] = SIZES, **variables: str) -> StudyProcess:
    """A study as a person starts it, beside its folder: relative paths are meant from there."""
    (out.parent / "mine.py").write_text(BRAKED)
    runs = ("--batch-sizes", ",".join(map(str, sizes)), "--max-epochs", str(EPOCHS))
    given = ("mine.py", "--json", "--out", out.name, "--on", on, *runs)
    return StudyProcess(out.parent, *given, **variables)


def ended(study: StudyProcess) -> str:
    """What a study that went well said."""
    _, said = study.communicate()
    assert study.poll() == 0, said
    return said


def digests(out: Path) -> dict[str, str]:
    found = {file.parent.name: json.loads(file.read_text()) for file in out.glob("runs/*/run.json")}
    return {name: content["result"]["digest"] for name, content in found.items()}


def progress(out: Path) -> dict[str, int]:
    """Lines that runs have logged."""
    return {run.name: num_lines(run) for run in out.glob("runs/*")}


def until_under_way(number: int, out: Path, study: StudyProcess) -> None:
    """Wait until so many runs have made a step since."""
    before = progress(out)

    def gained() -> int:
        return sum(lines > before.get(name, 0) for name, lines in progress(out).items())

    until(lambda: gained() == number, study)


def num_locked(out: Path) -> int:
    return sum(is_locked(run) for run in out.glob("runs/*"))


def states(out: Path) -> list[str]:
    return [json.loads(file.read_text())["status"] for file in out.glob("runs/*/run.json")]


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of the study on this machine."""
    out = tmp_path_factory.mktemp("unhurt") / "study"
    request = StudyRequest(recipe=str(RECIPE), out=out, max_epochs=EPOCHS, on="local")
    batch_study(request, SIZES, [], SilentWatcher())
    assert len(digests(out)) == len(SIZES)
    return digests(out)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path / "dask") as processes:
        yield processes


def test_dask_and_everything_is_killed(
    tmp_path: Path, cluster: DaskProcesses, unhurt: dict[str, str]
) -> None:
    out, on = tmp_path / "study", f"dask:{cluster.address}"
    brake = tmp_path / "brake"
    brake.touch()
    first = cluster.worker("first")
    cluster.worker("second")

    killed = start(out, on, SIZES[:1])
    until_under_way(1, out, killed)
    killed.process.kill()
    until(lambda: states(out) == ["interrupted"])  # the run has saved

    stopped = start(out, on, SIZES[:1])
    until_under_way(1, out, stopped)
    os.kill(stopped.process.pid or 0, signal.SIGINT)
    _, said = stopped.communicate()
    assert stopped.poll() == 130
    assert "the same command goes on from here" in said
    assert states(out) == ["interrupted"]
    assert num_locked(out) == 0

    hurt = start(out, on)
    until_under_way(2, out, hurt)
    first.kill()
    until(lambda: num_locked(out) == 1, hurt)  # its run has ended with it
    brake.unlink()
    said = ended(hurt)
    assert re.search(r"\(first\) is lost; the run goes on elsewhere from its checkpoint", said)
    assert len(re.findall(r"came to the epoch limit .*, on \S+ \(second\)", said)) == len(SIZES)
    assert digests(out) == unhurt
    assert not list(out.glob(".cluster-*"))


def test_the_scheduler_is_lost(tmp_path: Path, cluster: DaskProcesses) -> None:
    out = tmp_path / "study"
    (tmp_path / "brake").touch()
    cluster.worker("only")
    study = start(out, f"dask:{cluster.address}", SIZES[:1], CONNECT_SECONDS="2")
    until(lambda: any(progress(out).values()), study)
    cluster.processes[0].kill()
    _, said = study.communicate()
    assert study.poll() == 1, said
    line = said.splitlines()[-1]
    assert "the scheduler is gone" in line, said
    assert "the same command goes on from here" in line
    assert "is lost" not in said, "its worker is there"
    assert "Traceback" not in said
    assert "distributed." not in said, "Dask's own words"
    until(lambda: states(out) == ["interrupted"])  # the run has saved
    until(lambda: num_locked(out) == 0)


def test_a_worker_with_another_samepath(tmp_path: Path, cluster: DaskProcesses) -> None:
    cluster.worker("other", version="9.9")
    study = start(tmp_path / "study", f"dask:{cluster.address}")
    _, said = study.communicate()
    assert study.poll() == 2
    assert re.search(r"worker \S+ \(other\) has samepath 9.9 and this machine", said)
    assert "the bits would differ; install the same there" in said
    assert not (tmp_path / "study").exists()
    assert not list(tmp_path.glob(".cluster-*"))


def test_jobs_of_a_batch_system(tmp_path: Path, unhurt: dict[str, str]) -> None:
    """dask-jobqueue's own job scripts, run by a stand-in for Slurm: sbatch starts one as a process,
    scancel ends it."""
    if find_spec("dask_jobqueue") is None:  # importing it changes what a Ctrl-C does
        pytest.skip("the extra dask is not installed")
    tools = tmp_path / "bin"
    tools.mkdir()
    job, log = tmp_path / "job.sh", tmp_path / "jobs.log"  # the script is removed at once
    sbatch = f'cp "$1" {job}.$$; cp "$1" {job}; setsid bash {job}.$$ >>{log} 2>&1 & echo $!'
    scancel = 'kill -- "-$1"'
    for name, text in {"sbatch": sbatch, "scancel": scancel}.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tools / name).chmod(0o755)
    settings = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "DASK_JOBQUEUE__SLURM__SCHEDULER_OPTIONS__HOST": "127.0.0.1",
        "DASK_JOBQUEUE__SLURM__WORKER_EXTRA_ARGS": "['--host', '127.0.0.1']",
    }
    ended(start(tmp_path / "study", "dask:slurm,cores=1,memory=1GB,jobs=1", SIZES[:1], **settings))
    (found,) = digests(tmp_path / "study").items()
    assert found in unhurt.items()
    assert "#SBATCH --cpus-per-task=1\n#SBATCH --mem=954M\n" in job.read_text()


def trained_by(process: int) -> int | None:
    """The process among those below one that trains a run."""
    for child in children(process):
        if b"samepath.study.places.task" in command_of(child):
            return child
        if found := trained_by(child):
            return found
    return None


def test_ray_and_a_process_is_killed(tmp_path: Path, unhurt: dict[str, str]) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    out = tmp_path / "study"
    brake = tmp_path / "brake"
    brake.touch()
    study = start(out, "ray", SIZES[:1])
    until(lambda: any(progress(out).values()), study)
    victim = trained_by(study.process.pid or 0)
    assert victim is not None
    parent = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)  # Ray's worker, and the run's process with it
    until(lambda: command_of(victim) == b"", study)
    brake.unlink()
    said = ended(study)
    assert "is lost; the run goes on elsewhere from its checkpoint" in said
    assert list(digests(out).values()) == [unhurt[f"batch{SIZES[0]}-rate0.01-seed0"]]
