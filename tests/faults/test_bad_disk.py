"""A disk that is full, or read-only, costs a note and no result: what it does not take waits.

A run on a real file system of a few hundred kB, which is filled, freed, made read-only and writable
again while the run is under way; and the parts that wait, one by one, under a limit on file sizes,
which the kernel enforces as it does a full disk: a short write, then an error.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_runs import RECIPE as TINY
from elastic_runs import SAMEPATH, lines
from safetensors import SafetensorError
from torch import nn

import samepath
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.run.tensorboard import EventWriter
from samepath.engine.state import checkpoint
from samepath.engine.state.checkpoint import kept_weights
from samepath.engine.state.run_folder import RunFolder, claim_next
from samepath.engine.state.state import State
from samepath.engine.train import Request, train
from samepath.errors import NotSaved, UserError
from samepath.files import LOCK

LIMIT_SECONDS = 300
PATIENCE_SECONDS = 240.0
EPOCHS = 9
STEPS = 5 * EPOCHS
CALLS = 22  # of the loss in an epoch: four batches of five grains and one of two
RECIPE = """
import os, sys, time
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, {PARITY!r})
import tiny_recipe

GATE = os.environ.get("GATE")
calls = 0

def loss(model, batch):
    global calls
    if GATE is not None:  # go as far as one is told, and say when one is there
        while calls >= int(Path(GATE).read_text()):
            Path(GATE + ".reached").write_text(str(calls))
            time.sleep(0.005)
    calls += 1
    return tiny_recipe.loss(model, batch)

def recipe():
    return replace(tiny_recipe.recipe(), loss=loss, epochs={EPOCHS}, keep_weights=(1, 4, 9),
        i_know=True)  # no further calls of the loss, which are counted
"""


# ---- a small disk of our own


class SmallDisk:
    """A tmpfs in a mount namespace of its own: nobody else sees it, and it goes with its holder."""

    def __init__(self, place: Path, size: str) -> None:
        script = 'mount -t tmpfs -o size="$1" none "$2" && echo ready && exec cat'
        try:
            self._holder = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script, "sh", size, str(place)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            pytest.skip(f"needs unshare ({error.strerror})")
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline().decode().strip()
        if said != "ready":
            self.close()
            pytest.skip(f"needs the right to mount ({said})")
        self.place = place
        self.seen = Path(f"/proc/{self._holder.pid}/root{place}")
        """The same from outside."""

    def close(self) -> None:
        with self._holder:
            pass  # its input ends, and so does it

    def command(self, *words: str | Path) -> list[str | Path]:
        return ["nsenter", "-t", str(self._holder.pid), "-m", *words]

    def fill(self) -> None:
        with (self.seen / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.seen / "filler").unlink()

    def make_read_only(self) -> None:
        """As seen by everybody who opens something from now on."""
        script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
        subprocess.run(self.command("sh", "-c", script, "sh", self.place), check=True)

    def make_writable(self) -> None:
        subprocess.run(self.command("umount", self.place), check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    place = tmp_path / "disk"
    place.mkdir()
    made = SmallDisk(place, "300k")
    yield made
    made.close()


class GatedRun:
    """`samepath train` on a small disk, going as far as it is told."""

    def __init__(self, disk: SmallDisk, recipe: Path, *words: str) -> None:
        self._gate = recipe.with_suffix(".gate")
        self._said = recipe.with_suffix(".said").open("w+")
        self._reached = Path(f"{self._gate}.reached")
        self._reached.unlink(missing_ok=True)
        self.open(0)
        out = ["-n", "1", "--checkpoint-steps", "1", "--out", str(disk.place / "run"), *words]
        self.process = subprocess.Popen(
            disk.command(SAMEPATH, "train", recipe, *out),
            env={**os.environ, "GATE": str(self._gate)},
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )

    def open(self, calls: int) -> None:
        aside = self._gate.with_suffix(".aside")
        aside.write_text(str(calls))
        aside.replace(self._gate)

    def go(self, calls: int) -> None:
        """Until the loss has been asked for so often, and is asked for once more."""
        self.open(calls)
        limit = time.monotonic() + PATIENCE_SECONDS
        while not (self._reached.exists() and self._reached.read_text() == str(calls)):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < limit, "it did not get there"
            time.sleep(0.01)

    def end(self) -> int:
        self.open(10**9)
        code = self.process.wait(PATIENCE_SECONDS)
        self.text = self.said()
        self._said.close()
        return code

    def said(self) -> str:
        self._said.seek(0)
        return self._said.read()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The digest, and the folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    request = Request(recipe=str(write_recipe(folder)), num_workers=1, out=folder / "run")
    return train(request)[0].digest, folder / "run"


def write_recipe(folder: Path) -> Path:
    file = folder / "mine.py"
    parity = repr(str(TINY.parent))
    file.write_text(RECIPE.replace("{PARITY!r}", parity).replace("{EPOCHS}", str(EPOCHS)))
    return file


def checkpoints(run: Path) -> list[int]:
    """The steps of everything in the folder, complete or not."""
    return [
        int(path.name.removeprefix("step-")) for path in sorted((run / "checkpoints").iterdir())
    ]


def assert_same(run: Path, undisturbed: tuple[str, Path]) -> None:
    digest, other = undisturbed
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["result"]["digest"] == digest
    assert lines(run) == lines(other)
    assert len(lines(run)) == STEPS + EPOCHS
    assert kept_weights(run / "weights").keys() == kept_weights(other / "weights").keys()
    for epoch, path in kept_weights(run / "weights").items():
        assert path.read_bytes() == kept_weights(other / "weights")[epoch].read_bytes()
    assert sorted(p.suffix for p in (run / "weights").iterdir()) == [".safetensors"] * 4
    assert checkpoints(run) == [STEPS - 1, STEPS]


def test_full_and_read_only_under_way(
    disk: SmallDisk, undisturbed: tuple[str, Path], tmp_path: Path
) -> None:
    run = disk.seen / "run"
    going = GatedRun(disk, write_recipe(tmp_path))
    going.go(2 * CALLS)
    disk.fill()
    going.go(7 * CALLS)
    assert checkpoints(run) == [9, 10], "nothing half-written"
    written = lines(run)
    assert 12 <= len(written) < 7 * 6
    assert written == lines(undisturbed[1])[: len(written)]
    disk.free()
    going.go(8 * CALLS)
    assert checkpoints(run) == [39, 40]
    assert lines(run) == lines(undisturbed[1])[: 8 * 6]
    disk.make_read_only()
    going.go(8 * CALLS + 10)
    assert checkpoints(run) == [39, 40]
    disk.make_writable()
    assert going.end() == 0, going.text
    assert_same(run, undisturbed)
    place = re.escape(str(disk.place / "run"))
    pattern = rf"""samepath: training .+ on 1 worker, into {place}
samepath: step 11 could not be saved in {place} \(No space left on device\); the newest checkpoint is of step 10; it is tried again when the next one is due
(samepath: metrics.jsonl cannot be written \(No space left on device\); its lines wait in memory
samepath: the weights of .+ cannot be written \(No space left on device\); they wait in memory
|samepath: the weights of .+ cannot be written \(No space left on device\); they wait in memory
samepath: metrics.jsonl cannot be written \(No space left on device\); its lines wait in memory
)(samepath: the weights of .+ cannot be written \(No space left on device\); they wait in memory
)*samepath: step 36 is saved, and all that waited before it
samepath: step 41 could not be saved in {place} \(Read-only file system\); the newest checkpoint is of step 40; it is tried again when the next one is due
samepath: step 43 is saved, and all that waited before it
"""  # noqa: E501
    assert re.fullmatch(pattern, going.text), going.text


def test_full_when_it_is_stopped_and_when_it_ends(
    disk: SmallDisk, undisturbed: tuple[str, Path], tmp_path: Path
) -> None:
    """One clear line and exit code 1; run.json claims nothing; with room it goes on."""
    run, recipe = disk.seen / "run", write_recipe(tmp_path)
    stopped = GatedRun(disk, recipe)
    stopped.go(2 * CALLS)
    disk.fill()
    stopped.process.send_signal(signal.SIGTERM)
    assert_not_saved(stopped, run, step=12, newest=10)  # it is asked for between two steps
    disk.free()

    full = GatedRun(disk, recipe, "--resume")
    full.go((EPOCHS - 3) * CALLS)
    disk.fill()
    assert_not_saved(full, run, step=STEPS, newest=STEPS - 5)
    with pytest.raises(UserError, match=r"cannot be written to \(No space left on device\)"):
        train(Request(recipe=str(recipe), num_workers=1, out=run, resume=True))
    disk.free()
    train(Request(recipe=str(recipe), num_workers=1, out=run, resume=True, checkpoint_steps=1))
    assert_same(run, undisturbed)


def assert_not_saved(going: GatedRun, run: Path, *, step: int, newest: int) -> None:
    assert going.end() == 1, going.text
    assert "Traceback" not in going.text
    last = going.text.splitlines()[-1]
    assert f"step {step} could not be saved" in last
    assert f"(No space left on device); the newest checkpoint is of step {newest}; free " in last
    assert last.endswith("--resume")
    record = json.loads((run / "run.json").read_text())
    assert record["status"] in ("running", "failed")
    assert record["result"] is None
    assert sorted(path.name for path in run.iterdir()) == [
        LOCK, "checkpoints", "config.toml", "metrics.jsonl", "run.json", "weights"
    ]  # fmt: skip
    assert checkpoints(run) == [newest - 1, newest]


# ---- what waits, part by part


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel writes up to there, and then refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def logged(path: Path) -> list[int]:
    text = (path / "metrics.jsonl").read_text()
    assert text.endswith("\n") or not text
    return [json.loads(line)["step"] for line in text.splitlines()]


def test_lines_wait_in_order_and_are_never_half_written(tmp_path: Path) -> None:
    """Those that do not wait have reached the kernel: a kill may come at any moment."""
    folder = RunFolder(tmp_path)
    assert folder.open_metrics(0) == 0
    told: list[str] = []
    with no_file_larger_than(1000):
        for step in range(1, 41):
            folder.log(told.append, step=step, words="x" * 64)
            assert logged(tmp_path) == list(range(1, min(step, 11) + 1))
        folder.close_metrics()
    assert told == ["metrics.jsonl cannot be written (File too large); its lines wait in memory"]
    folder.close_metrics()
    assert logged(tmp_path) == list(range(1, 41))


def test_what_lies_beyond_the_checkpoint_goes_without_new_space(tmp_path: Path) -> None:
    """It is cut off in place. Lines that cannot be read cost no others."""
    text = "".join(f'{{"step": {step}}}\n' for step in range(1, 10))
    text = text.replace('{"step": 4}', '{"st\x00p": 4}').replace('{"step": 5}', "[5]")
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 10, "ha')
    folder = RunFolder(tmp_path)
    with no_file_larger_than(0):
        assert folder.open_metrics(7) == 7
    assert [line["step"] for line in folder.read_metrics() if "step" in line] == [1, 2, 3, 6, 7]
    folder.log(step=8)
    folder.close_metrics()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.count("\n") == 8
    assert text.endswith('{"step": 7}\n{"step": 8}\n')


def test_lines_that_the_kernel_took_and_the_disk_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems find out later, and only say so when asked to sync."""
    folder, file = begun(tmp_path), tmp_path / "metrics.jsonl"
    folder.open_metrics(0)
    folder.log(step=1)
    folder.save(state_at(1), {})
    folder.log(step=2)

    def lost(_: int) -> None:
        file.write_bytes(file.read_bytes()[:14] + b"\0\0")
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lost)
        with pytest.raises(NotSaved, match=r"\(Input/output error\); .* is of step 1"):
            folder.save(state_at(2), {})
        folder.close_metrics()
    folder.log(step=3)
    folder.save(state_at(3), {})
    folder.close_metrics()
    assert logged(tmp_path) == [1, 2, 3]


def begun(path: Path, status: str = "running") -> RunFolder:
    record = {"config": {"recipe": "mine"}, "status": status}
    (path / "run.json").write_text(json.dumps(record))
    return RunFolder(path)


def state_at(step: int) -> State:
    return State({"weight": torch.full((3,), float(step))}, {"step": step})


def full_disk(*_: Any, **__: Any) -> None:
    raise SafetensorError("I/O error: No space left on device (os error 28)")


def test_weights_wait_and_a_checkpoint_comes_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint says that all before it is on disk: a resumed run would not write it again."""
    folder, model, told = begun(tmp_path), nn.Linear(2, 1), list[str]()
    folder.open_metrics(0)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", full_disk)
        for epoch in (1, 2):
            folder.keep_weights(epoch, model, told.append)
            nn.init.ones_(model.weight)
        assert told == [
            f"the weights of {which} cannot be written (No space left on device); they wait in "
            "memory"
            for which in ("epoch 1", "epoch 1, epoch 2")
        ]
        assert folder.save(state_at(3), {}, told.append) is None
        assert "no checkpoint is there" in told.pop()
        with pytest.raises(NotSaved, match="step 4 could not be saved"):
            folder.save(state_at(4), {})
    assert list(kept_weights(folder.weights)) == []
    assert list(folder.weights.iterdir()) == []
    assert folder.save(state_at(5), {}, told.append) is not None
    assert told[2:] == ["step 5 is saved, and all that waited before it"]
    first, second = (path.read_bytes() for path in kept_weights(folder.weights).values())
    assert first != second, "each as it was then"
    folder.close_metrics()


def test_a_note_is_not_repeated_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = begun(tmp_path), list[str]()
    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    for step in range(1, 9):
        assert folder.save(state_at(step), {}, told.append) is None
    assert len(told) == 1


def test_a_folder_that_somebody_removed(tmp_path: Path) -> None:
    """It is not made anew without what it held."""
    folder = begun(tmp_path)
    folder.save(state_at(1), {})
    (tmp_path / "run.json").unlink()
    with pytest.raises(NotSaved, match=r"\(run\.json is gone\)"):
        folder.save(state_at(2), {})
    folder.write_status("failed")
    assert not folder.holds_run


@pytest.mark.parametrize(("before", "after"), [("running", "failed"), ("finished", "finished")])
def test_a_run_that_has_ended_has_not_failed(tmp_path: Path, before: str, after: str) -> None:
    """Whatever happens to its processes on their way out."""
    folder = begun(tmp_path, before)
    folder.write_status("failed")
    assert folder.read()["status"] == after


def test_two_who_begin_at_once(tmp_path: Path, options: Options) -> None:
    """Both have seen an empty folder; the first has ended when the second gets the lock."""
    first, second = (RunFolder(tmp_path / "run") for _ in range(2))
    first.write(asdict(options), ["first"], None)
    begun = first.read()
    first.open_metrics(0)
    first.log(step=1, epoch=0, train_loss=1.0, seconds=0.1)
    first.close_metrics()
    first.unlock()
    with pytest.raises(UserError, match="holds another run"):
        second.write(asdict(options), ["second"], None)
    assert second.read() == begun
    assert not second.holds_lock


def test_a_run_without_a_step_where_there_are_no_locks(
    tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another process's, which has just begun: only one that has ended is replaced."""
    first, second = (RunFolder(tmp_path / "run") for _ in range(2))
    first.write(asdict(options), ["first"], None)
    first.unlock()

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(UserError, match="no locks to tell"):
            second.write(asdict(options), ["second"], None)
        first.write_status("failed")
        second.write(asdict(options), ["second"], None)
    assert second.read()["starts"][0]["command"] == ["second"]
    second.unlock()


def test_two_who_begin_at_once_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found the same number free."""
    free = iter([tmp_path / "mine-1", tmp_path / "mine-1", tmp_path / "mine-2"])
    monkeypatch.setattr("samepath.engine.state.run_folder.next_free", lambda recipe: next(free))
    assert claim_next("mine") == tmp_path / "mine-1"
    assert claim_next("mine") == tmp_path / "mine-2"


def test_a_new_run_where_nothing_can_be_written(tmp_path: Path, options: Options) -> None:
    folder = RunFolder(tmp_path / "run")
    with no_file_larger_than(10), pytest.raises(UserError) as refused:
        folder.write(asdict(options), [], None)
    assert re.fullmatch(
        r"--out \S+ cannot be written to \(File too large\); free space or make it writable, or "
        "give another folder",
        str(refused.value),
    )
    assert list(folder.path.iterdir()) == []
    folder.write(asdict(options), [], None)  # it is not locked either
    folder.unlock()


@pytest.fixture
def options(undisturbed: tuple[str, Path]) -> Options:
    return Options(**json.loads((undisturbed[1] / "run.json").read_text())["config"])


def test_event_files_end_and_the_run_does_not(
    undisturbed: tuple[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run, into, told = undisturbed[1], tmp_path / "events", list[str]()
    writer = EventWriter(run, into, warn=told.append)
    with no_file_larger_than(2**16):
        for step in range(5000):
            writer.write({"step": step, "train_loss": 0.5})
        writer.close()
    assert len(told) == 1
    assert told[0].startswith("TensorBoard's event files cannot be written (File too large)")
    assert told[0].endswith(f"samepath tensorboard {run}")
    with no_file_larger_than(100):
        EventWriter(run, into, warn=told.append).close()
        assert len(told) == 2
        with pytest.raises(OSError, match="File too large"):  # nobody to tell
            EventWriter(run, into)
    assert len(list(into.iterdir())) == 1, "no half of one that was never begun"


def test_a_step_in_memory_counts_if_all_that_goes_with_it_is_on_disk(
    undisturbed: tuple[str, Path], options: Options, tmp_path: Path
) -> None:
    out = shutil.copytree(undisturbed[1], tmp_path / "run")
    folder = RunFolder(out)
    newest_saved = checkpoint.load_newest(folder.checkpoints, pytest.fail)
    assert newest_saved is not None
    progress = newest_saved.progress
    with samepath.start() as session:
        run = Run(recipe_of(options), options, session, folder)
        assert run._is_on_disk(progress)
        metrics = out / "metrics.jsonl"
        whole = metrics.read_bytes()
        without_epoch = whole[: whole[:-1].rindex(b"\n") + 1]
        assert b"epoch_train_loss" in whole[len(without_epoch) :]
        metrics.write_bytes(without_epoch)
        assert not run._is_on_disk(progress), "an epoch's line waited"
        metrics.write_bytes(whole)
        best = out / "weights" / "best.safetensors"
        newest = best.read_bytes()
        best.write_bytes((out / "weights" / "epoch-00001.safetensors").read_bytes())
        assert not run._is_on_disk(progress), "better weights waited"
        assert run._is_on_disk(progress | {"best_epochs": 1}), "newer ones are written again"
        best.write_bytes(newest)
        assert run._is_on_disk(progress)
