"""What --on takes, and what a study refuses of a cluster before anything is written."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import error_line, samepath

from samepath.console import Watcher
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError, WorkerFailed
from samepath.files import is_locked, lock_folder
from samepath.study.opening import Opened, StudyRequest, entered, look_into
from samepath.study.places import cluster
from samepath.study.places.cluster import ClusterEngine, Member, connected
from samepath.study.places.destination import Destination, parse_destination
from samepath.study.places.task import Facts, Outcome, Ticket, examine, train_there
from samepath.study.runner import PlannedRun, request_for, status_of, train_runs

RECIPE = Path(__file__).parents[1] / "parity" / "tiny_recipe.py"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("local", Destination(engine="local")),
        (
            "dask:tcp://10.0.0.1:8786,cores=4,memory=1.5GiB",
            Destination(engine="dask", address="tcp://10.0.0.1:8786", cores=4, memory=3 * 2**29),
        ),
        ("dask:slurm,jobs=3", Destination(engine="dask", address="slurm", jobs=3)),
        ("ray", Destination(engine="ray")),
        ("ray:ray://[::1]:10001", Destination(engine="ray", address="ray://[::1]:10001")),
    ],
)
def test_destinations(text: str, found: Destination) -> None:
    assert parse_destination(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mars", "give local, dask:"),
        ("local:2", "give local, dask:"),
        ("local,cores=2", "cores=2 is for a cluster"),
        ("dask", "give the scheduler's address"),
        ("dask:10.0.0.1:8786", "give the scheduler's address"),
        ("dask:tcp://10.0.0.1", "give the scheduler's address"),
        ("ray:10.0.0.1", "give the address of a Ray cluster"),
        ("ray,jobs=2", "there is no setting 'jobs'"),
        ("dask:slurm,cores=0", "cores must be a whole number of at least 1"),
        ("dask:slurm,memory=much", "memory 'much' is no size"),
    ],
)
def test_destinations_that_are_none(text: str, why: str, tmp_path: Path) -> None:
    said = samepath("study", RECIPE, "--out", tmp_path / "study", "--on", text, code=2)
    assert said.startswith(f"samepath: error: --on {text}: ") or f"--on {text}: " in said
    assert why in said
    assert not (tmp_path / "study").exists()


# ---- an address


@pytest.mark.parametrize("engine", ["dask:tcp://", "ray:"])
def test_nothing_answers(engine: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    began = time.monotonic()
    command = ("study", RECIPE, "--batch-sizes", "10", "--out", tmp_path / "study")
    said = samepath(*command, "--on", engine + address, code=2)
    assert f"nothing answers at {address} (Connection refused)" in error_line(said)
    assert time.monotonic() - began < 20
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.2"])
def test_something_else_answers(
    greeting: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dask = pytest.importorskip("samepath.study.places.dask", reason="no extra dask")
    monkeypatch.setattr(dask, "CONNECT_SECONDS", 1)

    def greet() -> None:
        for _ in range(2):  # whether anything answers, and what
            with server.accept()[0] as line, suppress(OSError):
                line.sendall(greeting)
                line.recv(1)  # until it is closed

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        on = f"dask:tcp://127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(UserError, match="what answers there is no Dask scheduler"),
            connected(StudyRequest(recipe=str(RECIPE), out=tmp_path / "study", on=on)),
        ):
            pass
        thread.join()
    assert not any(tmp_path.iterdir())


def test_an_extra_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "samepath.study.places.dask", raising=False)
    monkeypatch.setitem(sys.modules, "dask", None)
    on = "dask:slurm,memory=1GB"
    said = samepath("study", RECIPE, "--out", tmp_path / "study", "--on", on, code=2)
    assert "pip install 'samepath[dask]'" in said
    assert not any(tmp_path.iterdir())


def test_jobs_without_a_memory_are_refused_and_a_ctrl_c_stays_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dask = pytest.importorskip("samepath.study.places.dask", reason="no extra dask")
    if find_spec("dask_jobqueue") is None:
        pytest.skip("the extra dask is not installed")
    for name in [name for name in sys.modules if name.startswith("dask_jobqueue")]:
        monkeypatch.delitem(sys.modules, name)  # imported anew, it sets a handler of its own
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(UserError, match="slurm must know a job's memory"):
        dask._jobs(parse_destination("dask:slurm"), "dask:slurm")
    assert signal.getsignal(signal.SIGINT) is before


# ---- members


class InThreads(ClusterEngine):
    """An engine whose members are threads of this process; `changed` is what they say otherwise."""

    def __init__(self, *members: str, cores: int = 1, **changed: Any) -> None:
        self.there = {name: Member(name=name, cores=cores, memory=10**9) for name in members}
        self.changed = changed
        self.begun: list[tuple[str, str]] = []
        self.closed = False

    def members(self) -> dict[str, Member]:
        return dict(self.there)

    def expect(self, num_runs: int) -> None:
        pass

    def examine(self, members: Sequence[str], check: Path, start: Path) -> dict[str, Facts | str]:
        found: dict[str, Facts | str] = {name: examine(check, start) for name in members}
        for name in members:
            change = self.changed.get(name)
            facts = found[name]
            assert isinstance(facts, Facts)
            if isinstance(change, dict):
                found[name] = facts._replace(versions=facts.versions | change)
            elif callable(change):
                found[name] = change(facts)
        return found

    def start(self, ticket: Ticket, member: str) -> list[Outcome]:
        self.begun.append((ticket.run.label, member))
        self.last = ticket
        outcome: list[Outcome] = []
        threading.Thread(target=lambda: outcome.append(train_there(ticket))).start()
        return outcome

    def look(self, task: list[Outcome]) -> Outcome | None:
        return task[0] if task else None

    def drop(self, task: list[Outcome]) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def refused(
    tmp_path: Path, engine: InThreads, monkeypatch: pytest.MonkeyPatch, on: str = "ray", **more: Any
) -> str:
    """Why the members of an engine are refused; empty: they are not."""
    monkeypatch.setattr(cluster, "_open", lambda destination, on: engine)
    monkeypatch.chdir(tmp_path)
    request = StudyRequest(recipe=str(RECIPE), out=Path("deep/study"), on=on, **more)
    why = ""
    try:
        with connected(request):
            pass
    except UserError as error:
        why = str(error)
    assert engine.closed
    assert not any(tmp_path.iterdir()), "something is left"
    return why


def elsewhere(facts: Facts) -> Facts:
    return facts._replace(word=None, mark=None)


def unseen(facts: Facts) -> Facts:
    return facts._replace(mark="member-of-another-disk")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"torch": "1.0"}, "has torch 1.0 and this machine 2."),
        ({"samepath": "9.9"}, "has samepath 9.9 and this machine"),
        ({"source": "other"}, "with other files than this machine: the bits would differ"),
        ({"kernels": "MKL_CBWR=AVX2"}, "chooses its kernels by MKL_CBWR=AVX2"),
        ({"cpu_model": "a Z80"}, "is a Z80"),
        (elsewhere, "does not share"),
        (unseen, "does not share"),
        (lambda facts: "No module named 'samepath'", "samepath must be installed there too"),
    ],
)
def test_a_member_that_does_not_fit(
    change: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.2)
    said = refused(tmp_path, InThreads("good", "bad", bad=change), monkeypatch)
    assert why in said
    assert "(bad)" in said or said.startswith("--on ray: worker bad ")
    assert "good" not in said


def test_what_may_be_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other: dict[str, Any] = {"bad": {"cpu_model": "a Z80"}}
    engine = InThreads("good", "bad", **other)
    assert not refused(tmp_path, engine, monkeypatch, other_hardware=True)
    all_others = InThreads("bad", **other)  # all alike, and not like this machine
    assert not refused(tmp_path, all_others, monkeypatch)
    assert "the cluster's workers are a Z80" in capsys.readouterr().err
    no_locks = InThreads("bad", bad=lambda facts: facts._replace(has_locks=False))
    assert not refused(tmp_path, no_locks, monkeypatch)
    assert "shows no locks of other machines" in capsys.readouterr().err


def test_a_member_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for asks in ("cores=2", "memory=2GB"):
        said = refused(tmp_path, InThreads("bad"), monkeypatch, on=f"ray,{asks}")
        assert "has 1 cores and 1 GB, and a run asks for" in said


def test_no_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MEMBER_SECONDS", 0.1)
    assert "the cluster has no workers; start some" in refused(tmp_path, InThreads(), monkeypatch)


# ---- runs


class Notes(Watcher):
    """Remembers what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    def end(self, what: str, said: str | None = None) -> None:
        self.said.append(said or "")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Opened, StudyRequest]]:
    """A study that has been entered, whose runs are one step long."""
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.05)
    request = StudyRequest(recipe=str(RECIPE), out=tmp_path / "study", max_epochs=1, on="ray")
    opened = look_into(request)
    with entered(opened, request, "grid"):
        yield opened, request


def planned(opened: Opened, number: int, **changes: Any) -> PlannedRun:
    options = replace(opened.options, seed=number, **changes)
    return PlannedRun(folder=f"runs/{number}", label=f"run {number}", options=options)


def test_members_that_come_and_do_not_fit_are_given_no_runs(
    study: tuple[Opened, StudyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, request = study
    engine, notes = InThreads("good", late={"torch": "1.0"}), Notes()
    monkeypatch.setattr(cluster, "_open", lambda destination, on: engine)
    runs = [planned(opened, 0), planned(opened, 1)]
    with connected(request):
        engine.there["late"] = replace(engine.there["good"], name="late")
        train_runs(runs, opened, request, notes)
    assert engine.begun == [("run 0", "good"), ("run 1", "good")]
    assert [status_of(opened.folder, run) for run in runs] == ["finished", "finished"]
    assert "(late) has torch 1.0" in notes.said[0]
    assert notes.said[0].endswith("; it is given no runs")
    assert "(good) (1 of 2" in notes.said[1].replace(", on ", " ")


def test_a_run_that_members_are_lost_with(
    study: tuple[Opened, StudyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, request = study
    engine = InThreads("a", "b")
    engine.start = lambda ticket, member: [Outcome("lost")]  # type: ignore[method-assign]
    monkeypatch.setattr(cluster, "_open", lambda destination, on: engine)
    with pytest.raises(WorkerFailed, match="4 workers were lost while they trained it"):
        train_runs([planned(opened, 0)], opened, request, Notes())


def test_a_run_that_ended_as_its_member_was_lost(
    study: tuple[Opened, StudyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, request = study
    engine, notes, run = InThreads("a", "b"), Notes(), planned(opened, 0)
    monkeypatch.setattr(cluster, "_open", lambda destination, on: engine)
    monkeypatch.setattr(engine, "look", lambda task: Outcome("lost") if task else None)
    train_runs([run], opened, request, notes)
    assert len(engine.begun) == 1
    assert "came to the epoch limit" in notes.said[0]
    assert train_there(replace(engine.last, wanted=opened.folder)) == Outcome("ended")
    assert len(RunFolder(opened.folder / run.folder).read()["starts"]) == 1


def test_all_members_are_lost(
    study: tuple[Opened, StudyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, request = study
    engine = InThreads("a")
    engine.start = lambda ticket, member: engine.there.clear()  # type: ignore[assignment,return-value,method-assign]
    engine.look = lambda task: None  # type: ignore[method-assign]
    monkeypatch.setattr(cluster, "_open", lambda destination, on: engine)
    monkeypatch.setattr(cluster, "MEMBER_SECONDS", 0.2)
    with pytest.raises(WorkerFailed, match="all workers are lost, and none came"):
        train_runs([planned(opened, 0)], opened, request, Notes())


def test_more_threads_than_cores(
    study: tuple[Opened, StudyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, request = study
    monkeypatch.setattr(cluster, "_open", lambda destination, on: InThreads("a"))
    with pytest.raises(UserError, match="it has 2 threads, and no worker of ray more than 1 cores"):
        train_runs([planned(opened, 0, threads=2)], opened, request, Notes())


def test_an_error_names_run_and_member(
    study: tuple[Opened, StudyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, request = study
    monkeypatch.setattr(cluster, "_open", lambda destination, on: InThreads("a"))
    with pytest.raises(UserError, match=r"run 0, on \S+ \(a\): .*missing.csv"):
        train_runs([planned(opened, 0, keep="missing.csv")], opened, request, Notes())


def test_a_run_that_is_trained_elsewhere_is_waited_for(
    study: tuple[Opened, StudyRequest], tmp_path: Path
) -> None:
    opened, request = study
    run = planned(opened, 0)
    folder, wanted = opened.folder / run.folder, tmp_path / "wanted"
    for each in (folder, wanted):
        each.mkdir(parents=True)
    ticket = Ticket(
        run=run,
        request=request_for(run, opened, request, 1),
        cores=1,
        study=opened.folder,
        start=tmp_path,
        wanted=wanted,
        has_locks=True,
    )
    study_lock, other = lock_folder(wanted, ""), lock_folder(folder, "")
    outcome: list[Outcome] = []
    task = threading.Thread(target=lambda: outcome.append(train_there(ticket)))
    task.start()
    task.join(1.5)
    assert task.is_alive()
    assert not (folder / "run.json").exists()
    os.close(study_lock)  # the study is stopped
    task.join(10)
    assert outcome == [Outcome("stopped")]
    os.close(other)
    assert not is_locked(folder)
