"""Checkpoints: all or nothing, checked to the last byte, nothing unpickled."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from samepath.engine import checkpoint
from samepath.engine.checkpoint import list_checkpoints, load, load_newest, save
from samepath.engine.state import State, digest
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


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """The step that would be loaded, and what is said about the others."""
    said: list[str] = []
    found = load_newest(folder, said.append)
    return (None if found is None else found.state.structure["step"]), said


def test_there_and_back(tmp_path: Path) -> None:
    state = state_at(17)
    fingerprint = save(tmp_path, state, PROGRESS)
    found = load(tmp_path / "step-00000017")
    assert found.digest == fingerprint == digest(state) == digest(found.state)
    assert found.progress == PROGRESS
    assert found.state.structure == state.structure
    assert found.state.tensors.keys() == state.tensors.keys()
    for name, tensor in state.tensors.items():
        assert torch.equal(found.state.tensors[name], tensor), name
        assert found.state.tensors[name].dtype == tensor.dtype


def test_tied_tensors_are_stored_once(tmp_path: Path) -> None:
    save(tmp_path, state_at(1), {})
    with safe_open(tmp_path / "step-00000001" / "state.safetensors", "pt") as file:
        assert set(file.keys()) == state_at(1).tensors.keys() - {"tied"}


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 11, 100):
        save(tmp_path, state_at(step), {})
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000011", "step-00000100"]
    assert newest(tmp_path) == (100, [])


def test_no_checkpoint(tmp_path: Path) -> None:
    assert newest(tmp_path / "gone") == (None, [])
    assert newest(tmp_path) == (None, [])


def test_safetensors_and_json_only(tmp_path: Path) -> None:
    """No file written is a pickle, and reading does not unpickle."""
    save(tmp_path, state_at(3), PROGRESS)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert [file.name for file in files] == ["checkpoint.json", "state.safetensors"]
    for file in files:
        content = file.read_bytes()
        assert not zipfile.is_zipfile(file)
        with pytest.raises(ValueError, match=r"at position|exhausted"):
            list(pickletools.genops(content))
    for line in files[0].read_text().splitlines():
        assert isinstance(json.loads(line), dict)
    size = int.from_bytes(files[1].read_bytes()[:8], "little")
    header = json.loads(files[1].read_bytes()[8 : 8 + size])
    assert header["weight"]["dtype"] == "F32"


def test_reading_never_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, state_at(3), PROGRESS)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    load(tmp_path / "step-00000003")


# ---- crashes


class Crash(Exception):
    """As if the power went out."""


@pytest.mark.parametrize("at", range(5))
def test_a_crash_while_saving(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever sync or rename it comes at, the old checkpoint is whole and the next save works."""
    save(tmp_path, state_at(4), {})
    save(tmp_path, state_at(5), {})
    calls = 0

    def count(original: Any) -> Any:
        def crash(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > at:
                raise Crash
            return original(*arguments)

        return crash

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", count(os.fsync))
        patched.setattr(Path, "rename", count(Path.rename))
        patched.setattr(checkpoint, "save_file", count(save_file))
        with pytest.raises(Crash):
            save(tmp_path, state_at(6), {})
    assert calls == at + 1
    assert newest(tmp_path) == (5, [])
    save(tmp_path, state_at(6), {})
    save(tmp_path, state_at(7), {})
    assert newest(tmp_path) == (7, [])
    assert len(list(tmp_path.iterdir())) == 2, "nothing half-written is left"


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


def test_half_written_folders_are_not_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, state_at(5), {})
    shutil.copytree(tmp_path / "step-00000005", tmp_path / "step-00000006.part")
    (tmp_path / "step-00000007").write_text("a file")
    assert newest(tmp_path) == (5, [])


# ---- damage


def damaged(folder: Path) -> None:
    """Step 6 is damaged: it is named, and step 5 is used."""
    with pytest.raises(CheckpointDamaged, match="step-00000006"):
        load(folder / "step-00000006")
    step, said = newest(folder)
    assert step == 5
    assert len(said) == 1
    assert "step-00000006" in said[0]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    save(tmp_path, state_at(5), PROGRESS)
    save(tmp_path, state_at(6), PROGRESS)
    return tmp_path


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors"])
def test_a_file_that_is_gone(name: str, two: Path) -> None:
    (two / "step-00000006" / name).unlink()
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
    places = (
        list(range(len(good)))
        if len(good) < 400
        else random.Random(1).sample(range(len(good)), 400)
    )
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


def test_a_json_of_another_kind(two: Path) -> None:
    (two / "step-00000006" / "checkpoint.json").write_text("[]\n[]\n")
    damaged(two)


def test_bytes_that_are_no_text(two: Path) -> None:
    (two / "step-00000006" / "checkpoint.json").write_bytes(b"\xff\xfe\n\xff")
    damaged(two)


def test_the_files_of_another_step(two: Path) -> None:
    shutil.copy(two / "step-00000005" / "state.safetensors", two / "step-00000006")
    damaged(two)


def test_all_damaged(two: Path) -> None:
    for folder in list_checkpoints(two):
        (folder / "state.safetensors").write_bytes(b"")
    step, said = newest(two)
    assert step is None
    assert len(said) == 2
