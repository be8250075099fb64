"""Checkpoints: all or nothing, checked to the last byte, nothing unpickled."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import pickletools
import random
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open

from samepath.engine.state import checkpoint
from samepath.engine.state.checkpoint import list_checkpoints, load, load_newest, save
from samepath.engine.state.state import State, digest
from samepath.errors import CheckpointDamaged

PROGRESS = {"epoch_loss": 0.25, "metrics": {"loss": 1.5}}


def state_at(step: int) -> State:
    made = torch.Generator().manual_seed(step)
    weight = torch.randn(4, 5, generator=made)
    tensors = {
        "weight": weight,
        "tied": weight,
        "part": weight[1:3, ::2],
        "empty": torch.zeros(0, 2),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "half": torch.randn(3, generator=made).bfloat16(),
        "channels_last": torch.randn(2, 3, 2, 2, generator=made).to(
            memory_format=torch.channels_last
        ),
    }
    return State(tensors, {"step": step, "numbers": [0.1, step]})


def newest(folder: Path, *, set_aside: bool = False) -> tuple[int | None, list[str]]:
    """The step that would be loaded, and what is said about the others."""
    said: list[str] = []
    found = load_newest(folder, said.append, set_aside=set_aside)
    return (None if found is None else found.state.structure["step"]), said


def test_there_and_back(tmp_path: Path) -> None:
    state = state_at(17)
    fingerprint = save(tmp_path, state, PROGRESS)
    found = load(tmp_path / "step-00000017")
    assert found.digest == fingerprint == digest(state) == digest(found.state)
    modes = {file.stat().st_mode for file in found.path.iterdir()}
    assert len(modes) == 1, "whoever may read one file may read the other"
    assert found.progress == PROGRESS
    assert found.state.structure == state.structure
    assert found.state.tensors.keys() == state.tensors.keys()
    for name, tensor in state.tensors.items():
        assert torch.equal(found.state.tensors[name], tensor), name
        assert found.state.tensors[name].dtype == tensor.dtype
    with safe_open(found.path / "state.safetensors", "pt") as file:
        assert set(file.keys()) == state.tensors.keys() - {"tied"}, "tied ones are stored once"


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 11, 99_999_999, 100_000_000):
        save(tmp_path, state_at(step), {})
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-99999999", "step-100000000"]
    assert newest(tmp_path) == (100_000_000, [])


def test_no_checkpoint(tmp_path: Path) -> None:
    assert newest(tmp_path / "gone") == (None, [])
    assert newest(tmp_path) == (None, [])


def test_safetensors_and_json_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file written is a pickle, and reading does not unpickle."""
    save(tmp_path, state_at(3), PROGRESS)
    text, tensors = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert (text.name, tensors.name) == ("checkpoint.json", "state.safetensors")
    for file in (text, tensors):
        assert not zipfile.is_zipfile(file)
        with pytest.raises(ValueError, match=r"at position|exhausted"):
            list(pickletools.genops(file.read_bytes()))
    assert all(isinstance(json.loads(line), dict) for line in text.read_text().splitlines())
    size = int.from_bytes(tensors.read_bytes()[:8], "little")
    assert json.loads(tensors.read_bytes()[8 : 8 + size])["weight"]["dtype"] == "F32"

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    load(tmp_path / "step-00000003")


# ---- crashes, and disks that refuse


class Crash(Exception):
    """As if the power went out."""


@contextmanager
def failing(error: Exception, at: int, *, ever_after: bool) -> Iterator[list[int]]:
    """Of all that changes a disk, call number `at` fails, and (a dead process does nothing more)
    those after it. Gives how many there were."""
    calls = [0]

    def count(original: Any) -> Any:
        def maybe(*arguments: Any, **settings: Any) -> Any:
            calls[0] += 1
            if calls[0] == at + 1 or (ever_after and calls[0] > at):
                raise error
            return original(*arguments, **settings)

        return maybe

    with pytest.MonkeyPatch.context() as patched:
        for owner, name in (
            (os, "fsync"), (os, "mkdir"), (os, "rename"), (os, "replace"), (os, "unlink"),
            (shutil, "rmtree"), (checkpoint, "save_file"),
        ):  # fmt: skip
            patched.setattr(owner, name, count(getattr(owner, name)))
        yield calls


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def every_failure(folder: Path, state: State, error: Exception) -> Iterator[tuple[Path, bool]]:
    """Save step 4, step 5 and then a state, again and again: each time the next of all that changes
    a disk fails (a crash: and everything after it). The folder, and whether saving raised."""
    crashes = isinstance(error, Crash)
    for at in range(100):
        here, raised = folder / str(at), False
        save(here, state_at(4), {})
        save(here, state_at(5), {})
        try:
            with failing(error, at, ever_after=crashes) as calls:
                save(here, state, {})
        except type(error) as found:
            raised = found is error
        if calls[0] <= at:
            break
        yield here, raised
    assert calls[0] == at > 8


def test_a_crash_while_saving(tmp_path: Path) -> None:
    """Whatever it comes at, a checkpoint is whole, and the next start removes what is not."""
    for folder, raised in every_failure(tmp_path, state_at(6), Crash()):
        assert raised
        assert newest(folder) in [(5, []), (6, [])]
        assert newest(folder, set_aside=True) in [(5, []), (6, [])]
        assert all(re.fullmatch(r"step-0000000\d", name) for name in names(folder))
        save(folder, state_at(7), {})
        assert newest(folder) == (7, [])
        assert len(names(folder)) == 2


def test_a_crash_while_one_is_replaced(tmp_path: Path) -> None:
    """The same step anew, with other content: one of both is there, at any moment."""
    other = State(state_at(6).tensors, state_at(5).structure)
    for folder, raised in every_failure(tmp_path, other, Crash()):
        assert raised
        found = load_newest(folder, pytest.fail, set_aside=True)
        assert found is not None
        assert found.digest in (digest(state_at(5)), digest(other))
        assert names(folder) == ["step-00000004", "step-00000005"]


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    """Whatever it refuses, nothing half-written stays, and the older ones stay as they are."""
    over_quota = OSError(errno.EDQUOT, "over quota")
    for folder, refused in every_failure(tmp_path, state_at(6), over_quota):
        assert newest(folder) in ([(5, []), (6, [])] if refused else [(6, [])])
        assert all(re.fullmatch(r"step-0000000\d(\.part)?", name) for name in names(folder))
        save(folder, state_at(7), {})
        assert names(folder)[-1] == "step-00000007"
        assert len(names(folder)) == 2


def test_a_full_disk_is_an_error_with_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors' own has none."""

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left on device") as refused:
        save(tmp_path, state_at(5), {})
    assert refused.value.errno == errno.ENOSPC
    assert names(tmp_path) == []


def test_the_same_step_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good checkpoint is left as it is; a damaged or other one is replaced."""
    fingerprint = save(tmp_path, state_at(5), PROGRESS)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", None)  # nothing may be written
        assert save(tmp_path, state_at(5), PROGRESS) == fingerprint
    file = tmp_path / "step-00000005" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    save(tmp_path, state_at(5), PROGRESS)
    assert load(tmp_path / "step-00000005").digest == fingerprint
    save(tmp_path, State(state_at(6).tensors, state_at(5).structure), {})
    assert load(tmp_path / "step-00000005").digest != fingerprint


# ---- damage


def damaged(folder: Path) -> None:
    """Step 6 is damaged: it is named, and step 5 is used."""
    with pytest.raises(CheckpointDamaged, match="step-00000006") as damage:
        load(folder / "step-00000006")
    assert "\n" not in str(damage.value)
    step, said = newest(folder)
    assert step == 5
    assert said == [f"{damage.value}; step-00000005 is used"]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    save(tmp_path, state_at(5), PROGRESS)
    save(tmp_path, state_at(6), PROGRESS)
    return tmp_path


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "checkpoint.json").unlink(),
        lambda folder: (folder / "state.safetensors").unlink(),
        lambda folder: (folder / "checkpoint.json").write_text("[]\n[]\n"),
        lambda folder: (folder / "checkpoint.json").write_bytes(b"\xff\xfe\n\xff"),
        lambda folder: shutil.copy(folder.with_name("step-00000005") / "state.safetensors", folder),
    ],
    ids=["no JSON", "no tensors", "other JSON", "no text", "tensors of another step"],
)
def test_files_that_are_gone_or_others(damage: Callable[[Path], Any], two: Path) -> None:
    damage(two / "step-00000006")
    damaged(two)


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short(name: str, keep: float, two: Path) -> None:
    file = two / "step-00000006" / name
    content = file.read_bytes()
    file.write_bytes(content[: min(int(keep * len(content)), len(content) - 2)])
    damaged(two)


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors"])
def test_a_flipped_bit(name: str, two: Path) -> None:
    """Anywhere: each must be seen, or change nothing (padding)."""
    file = two / "step-00000006" / name
    good = file.read_bytes()
    whole = load(two / "step-00000006")
    places = random.Random(1).sample(range(len(good)), min(len(good), 400))
    seen = 0
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << (place % 8)
        file.write_bytes(bytes(bad))
        try:
            found = load(two / "step-00000006")
        except CheckpointDamaged:
            seen += 1
            continue
        assert found.digest == whole.digest == digest(found.state)
        assert found.progress == whole.progress
        assert found.state.structure == whole.state.structure
    assert seen > 0.9 * len(places)
    file.write_bytes(bytes([*good[:-3], good[-3] ^ 4, *good[-2:]]))
    damaged(two)


def written(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the content of step 6, and make its checksum right again."""
    file = folder / "step-00000006" / "checkpoint.json"
    content = json.loads(file.read_text().split("\n", 1)[1])
    text = change(content) or json.dumps(content)
    checksum = json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest()})
    file.write_text(f"{checksum}\n{text}\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda content: "[]",
        lambda content: "7",
        lambda content: "[" * 100_000,
        lambda content: '{"structure": ' + '{"$list": [' * 5000 + "]}" * 5000 + "}",
        lambda content: content.pop("structure") and None,
        lambda content: content.pop("digest") and None,
        lambda content: content.pop("progress") and None,
        lambda content: content.update(progress=[1]),
        lambda content: content.update(same_as=["weight"]),
        lambda content: content.update(same_as={"tied": "nobody"}),
        lambda content: content.update(same_as={"tied": []}),
        lambda content: content.update(structure=[]),
        lambda content: content.update(structure="step"),
        lambda content: content["structure"].update(step="6"),
        lambda content: content["structure"].update(step=-1),
        lambda content: content["structure"].pop("step") and None,
        lambda content: content["structure"].update(model={"$tensor": "nobody"}),
        lambda content: content["structure"].update(model={"$map": [[[], 1]]}),
        lambda content: content["structure"].update(model={"$map": [[1, 2, 3]]}),
        lambda content: content["structure"].update(model={"$list": 3}),
        lambda content: content["structure"].update(model={}),
    ],
)
def test_a_json_that_is_right_and_not_ours(change: Any, two: Path) -> None:
    written(two, change)
    damaged(two)


def test_all_damaged(two: Path) -> None:
    """Nothing is renamed either: a second attempt must not find an empty folder and start anew."""
    for folder in list_checkpoints(two):
        (folder / "state.safetensors").write_bytes(b"")
    for set_aside in (False, True, True):
        step, said = newest(two, set_aside=set_aside)
        assert step is None
        assert len(said) == 2
    assert names(two) == ["step-00000005", "step-00000006"]


# ---- set aside


def test_damaged_ones_are_set_aside(two: Path) -> None:
    """Renamed, never deleted, never counted, never read."""
    for aside in ("step-00000006.damaged", "step-00000006.damaged-2"):
        state = two / "step-00000006" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-1])
        step, said = newest(two, set_aside=True)
        assert step == 5
        assert len(said) == 1
        assert "step-00000006: cannot be read" in said[0]
        assert said[0].endswith(f"; it is set aside as {aside}, and step-00000005 is used")
        assert newest(two, set_aside=True) == (5, [])
        assert (two / aside / "state.safetensors").is_file()
        save(two, state_at(6), PROGRESS)
    for number in (7, 8):
        save(two, state_at(number), PROGRESS)
    assert [path.name for path in list_checkpoints(two)] == ["step-00000007", "step-00000008"]
    assert names(two)[:2] == ["step-00000006.damaged", "step-00000006.damaged-2"]


def test_older_damage_stays(two: Path) -> None:
    """It is not looked at while a newer one is good."""
    (two / "step-00000005" / "state.safetensors").unlink()
    assert newest(two, set_aside=True) == (6, [])
    assert names(two) == ["step-00000005", "step-00000006"]


def test_setting_aside_where_nothing_can_be_renamed(two: Path) -> None:
    (two / "step-00000006" / "checkpoint.json").unlink()
    (two / "step-00000007.part").mkdir()
    with failing(OSError(errno.EROFS, "Read-only file system"), 0, ever_after=True):
        step, said = newest(two, set_aside=True)
    assert step == 5
    assert said[0].endswith(
        "; it cannot be set aside (Read-only file system), and step-00000005 is used"
    )
    assert "step-00000006" in names(two)


def test_half_written_folders_are_not_checkpoints_and_go(two: Path) -> None:
    shutil.copytree(two / "step-00000006", two / "step-00000007.part")
    (two / "step-00000008").write_text("a file")
    assert newest(two) == (6, [])
    assert "step-00000007.part" in names(two), "a process may be writing it"
    assert newest(two, set_aside=True) == (6, [])
    assert names(two) == ["step-00000005", "step-00000006", "step-00000008"]
