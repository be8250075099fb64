"""What belongs to nobody alive goes; everything else stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from samepath import owners
from samepath.cli import main
from samepath.engine.elastic import ring
from samepath.engine.elastic.step_memory import StepMemory, newest
from samepath.engine.launch import leftovers
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.state.state import State
from samepath.files import take_lock

RUN = "a" * 32


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Memory and temporary folder of a test's own."""
    for name in ("memory", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(ring, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    glob = Path.glob

    def not_the_machines(self: Path, pattern: str) -> Any:
        return iter(()) if self == Path("/tmp") else glob(self, pattern)

    monkeypatch.setattr(Path, "glob", not_the_machines)
    return tmp_path


def dead() -> str:
    """The mark of a process that is not."""
    _, born, world = owners.mark().split("-")
    return f"{2**22 + 1}-{born}-{world}"


def found() -> set[str]:
    return {each.path.name for each in leftovers.find()}


def clear(run_id: str | None = None) -> int:
    """Remove what can go; how many files of the run are left."""
    leftovers.remove(leftovers.find(run_id))
    return len(ring.files(RUN))


# ---- semaphores and folders


def test_semaphores_of_the_dead_go(places: Path) -> None:
    memory = places / "memory"
    for name in (
        f"sem.samepath-{dead()}-abc",
        f"sem.samepath-{owners.mark()}-abc",
        f"sem.samepath-{dead()}",
        "sem.mp-abcdefgh",
        "sem.samepath-x",
    ):
        (memory / name).write_bytes(bytes(32))
    (memory / f"sem.samepath-{dead()}-link").symlink_to(memory / "sem.mp-abcdefgh")
    assert found() == {f"sem.samepath-{dead()}-abc"}
    assert leftovers.remove(leftovers.find()) == []
    assert len(list(memory.glob("sem.*"))) == 5


def test_folders_of_the_dead_go(places: Path) -> None:
    temporary = places / "temporary"
    for name in (
        f"samepath-{dead()}-abc",
        f"samepath-{owners.mark()}-abc",
        "samepath-abcdefgh",
        "pymp-dead",
        "pymp-alive",
        "pymp-unknown",
    ):
        (temporary / name).mkdir()
        (temporary / name / "file").write_text("text")
    (temporary / "pymp-dead" / leftovers.OWNER).write_text(dead())
    (temporary / "pymp-alive" / leftovers.OWNER).write_text(owners.mark())
    (temporary / f"samepath-{dead()}-link").symlink_to(temporary / "samepath-abcdefgh")
    (temporary / f"samepath-{dead()}-file").write_text("text")
    assert found() == {f"samepath-{dead()}-abc", "pymp-dead"}
    clear()
    assert found() == set()
    assert (temporary / "samepath-abcdefgh" / "file").exists()
    assert len(list(temporary.iterdir())) == 6


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_what_another_user_has_made_stays(places: Path) -> None:
    folder = places / "temporary" / f"samepath-{dead()}-abc"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    assert found() == set()


def test_what_cannot_be_removed_is_said(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = places / "memory" / f"sem.samepath-{dead()}-abc"
    file.write_bytes(bytes(32))

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(SystemExit) as ended:
        main(["clean"])
    assert ended.value.code == 0
    assert "semaphore, 4 KiB; it cannot be removed\n0 removed" in capsys.readouterr().out


def test_semaphores_show_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("forkserver")

    def name() -> str:
        return str(context.Lock()._semlock.name)  # type: ignore[attr-defined]

    with leftovers.marked_semaphores():
        assert name().startswith(f"/samepath-{owners.mark()}-")
    assert not name().startswith("/samepath-")
    import joblib  # type: ignore[import-untyped]  # noqa: F401 - which names them too, wherever scikit-learn is

    with leftovers.marked_semaphores():
        assert name().startswith(f"/samepath-{owners.mark()}-")
    assert name().startswith("/loky-"), "as joblib left it"


# ---- the last step of a run


def killed_run(folder: Path, status: str = "running") -> Path:
    """A run that was killed after seven steps, and what it left in memory; the folder."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    record = {"id": RUN, "status": status, "config": {"recipe": "x"}, "starts": []}
    (run / "run.json").write_text(json.dumps(record))
    kept = StepMemory(RUN, run, pytest.fail)
    for number in range(1, 8):
        kept.write(number, State({"w": torch.zeros(4)}, {"step": number}), {})
    for file in ring.files(RUN):
        token, places = file.name.split(".")[2:]
        file.rename(file.with_name(f"{RUN}.{2**22 + 1}.{token}.{places}"))
    assert len(ring.files(RUN)) == 2
    return run


@pytest.mark.parametrize(
    ("status", "saved", "kept"),
    [
        ("running", None, 2),
        ("interrupted", None, 2),
        ("finished", None, 0),
        ("running", 6, 2),
        ("running", 7, 0),
        ("running", 8, 0),
    ],
)
def test_a_run_that_can_go_on_from_memory_keeps_it(
    status: str, saved: int | None, kept: int, places: Path
) -> None:
    """Unless a checkpoint is as new."""
    run = killed_run(places, status)
    if saved is not None:
        (run / "checkpoints" / f"step-{saved:08d}").mkdir(parents=True)
    assert len(found()) == 2 - kept
    assert clear() == kept
    trail = newest(RUN)
    assert (trail and trail.start.step) == (7 if kept else None)


def test_a_run_whose_folder_is_gone(places: Path) -> None:
    run = killed_run(places)
    run.rename(run.with_name("moved"))
    assert len(found()) == 2
    assert clear(RUN) == 2, "it was moved, and goes on"
    assert clear() == 0


def test_a_run_that_somebody_trains_now(places: Path) -> None:
    """Its workers are just being started anew."""
    run = killed_run(places)
    (run / "checkpoints" / "step-00000008").mkdir(parents=True)
    lock = take_lock(run)
    assert lock is not None
    assert clear() == 2
    os.close(lock)
    assert clear() == 0


@pytest.mark.parametrize("read", [(RunFolder, "read"), (Path, "is_file")])
def test_a_folder_that_cannot_be_read_now(
    read: tuple[type, str], places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_run(places)

    def stale(self: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(*read, stale)
    assert clear() == 2, "who knows"


def test_a_large_file_of_a_known_run_is_not_read(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_run(places)
    read: list[Path] = []
    run_of = ring.run_of

    def watched(file: Path) -> tuple[str, Path] | None:
        read.append(file)
        return run_of(file)

    monkeypatch.setattr(ring, "run_of", watched)
    assert found() == set()
    sizes = [file.stat().st_size for file in ring.files(RUN)]
    assert [file.stat().st_size for file in read] == [min(sizes)]
    assert {ring.newest_step(file) for file in ring.files(RUN)} == {7}


# ---- the command


def test_the_command(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = killed_run(places)
    run.rename(run.with_name("moved"))
    folder = places / "temporary" / f"samepath-{dead()}-abc"
    folder.mkdir()

    def say(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["clean", *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert f"{folder}  temporary folder" in say("--dry-run")
    assert "3 would go" in say("--dry-run")
    assert folder.is_dir()
    listed = json.loads(say("--json"))
    assert listed["dry_run"] is False
    assert listed["failed"] == []
    assert sorted(each["what"] for each in listed["found"]) == [
        "last step of a run",
        "last step of a run",
        "temporary folder",
    ]
    assert not folder.exists()
    assert say() == "0 removed, 0 KiB\n"
