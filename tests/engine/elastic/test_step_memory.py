"""The last completed step in memory: two copies in turn, checked, gone when the run is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from samepath.engine.elastic import ring
from samepath.engine.elastic.step_memory import StepMemory, forget, newest
from samepath.engine.state.state import State

RUN = "0" * 31 + "1"
pytestmark = pytest.mark.usefixtures("memory")


def state(step: int, size: int = 3000) -> State:
    made = torch.Generator().manual_seed(step)
    tensors = {
        "weight": torch.randn(size, generator=made),
        "half": torch.randn(7, 3, generator=made).bfloat16(),
        "channels_last": torch.randn(2, 3, 4, 4, generator=made).contiguous(
            memory_format=torch.channels_last
        ),
        "count": torch.tensor(step),
        "nothing": torch.empty(0, 5),
    }
    return State(tensors, {"step": step, "schedule": {"$list": [0.1] * step}})


def keeper(tmp_path: Path) -> StepMemory:
    return StepMemory(RUN, tmp_path / "run", pytest.fail)


def check(step: int, size: int = 3000) -> None:
    trail, expected = newest(RUN), state(step, size)
    assert trail is not None
    assert trail.changes == []
    kept = trail.start
    assert trail.progress == kept.progress
    assert kept.step == step
    assert kept.progress == {"epoch": step // 10}
    assert kept.state.structure == expected.structure
    assert list(kept.state.tensors) == list(expected.tensors)
    for name, tensor in expected.tensors.items():
        found = kept.state.tensors[name]
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def whole(memory: Path) -> Path:
    """Of a worker's two files the one that has no notes."""
    (file,) = memory.glob("*.2")
    return file


def kill(memory: Path) -> list[Path]:
    """Have the files be those of processes that are dead: numbers are never so large."""
    return [
        file.rename(memory / ".".join([RUN, str(2**22 + 1), *file.name.split(".")[2:]]))
        for file in sorted(memory.iterdir())
    ]


def keep(into: StepMemory, step: int, size: int = 3000) -> None:
    into.write(step, state(step, size), {"epoch": step // 10})


def test_what_is_kept_comes_back(tmp_path: Path, memory: Path) -> None:
    kept = keeper(tmp_path)
    assert newest(RUN) is None
    for step in (1, 2, 3, 40):  # the last one's text is longer
        keep(kept, step)
        check(step)
    for file in memory.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(memory.stat().st_mode) == 0o700


def test_another_layout_takes_another_file(tmp_path: Path, memory: Path) -> None:
    kept = keeper(tmp_path)
    keep(kept, 1)
    keep(kept, 2, size=9000)
    check(2, size=9000)
    assert len(list(memory.iterdir())) == 3  # the other workers need not be so far
    keep(kept, 3, size=9000)
    check(3, size=9000)
    assert len(list(memory.iterdir())) == 2


def test_layouts_that_change_with_every_step(tmp_path: Path, memory: Path) -> None:
    kept = keeper(tmp_path)
    for step in range(1, 12):
        keep(kept, step, size=3000 * (1 + step % 2))
        check(step, size=3000 * (1 + step % 2))
        assert len(list(memory.iterdir())) <= 4


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_the_workers_of_a_machine_share_it(parts: int, tmp_path: Path, memory: Path) -> None:
    workers = [
        StepMemory(RUN, tmp_path / "run", pytest.fail, part=part, parts=parts)
        for part in range(parts)
    ]
    for step in (1, 2, 3):
        for worker in workers[:-1]:
            keep(worker, step)
            if step > 1:
                check(step - 1)  # as long as one has not kept it, it is not complete
            else:
                assert newest(RUN) is None
        keep(workers[-1], step)
        check(step)
    sizes = [file.stat().st_size for file in memory.glob("*.2")]
    assert len(sizes) == parts
    assert len(list(memory.iterdir())) == 2 * parts  # and the notes
    assert max(sizes) < 2 * (12000 / parts + 3 * 4096 + 4096)


@pytest.mark.parametrize("place", ["header", "text", "data"])
def test_a_damaged_copy_is_not_used(place: str, tmp_path: Path, memory: Path) -> None:
    kept = keeper(tmp_path)
    keep(kept, 1)
    keep(kept, 2)
    file = whole(memory)
    content = bytearray(file.read_bytes())
    half = len(content) // 2  # step 2 is in the second
    content[half + {"header": 9, "text": 80, "data": half - 9000}[place]] ^= 1
    file.write_bytes(bytes(content))
    check(1)


def test_a_copy_that_is_being_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keeper(tmp_path)
    keep(kept, 1)
    keep(kept, 2)

    def killed(views: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        views[0].copy_(tensors[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_copy_", killed)
    with pytest.raises(KeyboardInterrupt):
        keep(kept, 3)
    check(2)


def test_of_several_files_the_newest_counts_and_the_dead_ones_go(
    tmp_path: Path, memory: Path
) -> None:
    keep(keeper(tmp_path), 1)
    dead = kill(memory)
    after = keeper(tmp_path)
    keep(after, 2)
    check(2)
    assert all(file.exists() for file in dead)
    keep(after, 3)
    assert not any(file.exists() for file in dead)
    check(3)
    forget(RUN)
    check(3)  # what writes it is alive
    kill(memory)
    forget(RUN)
    assert newest(RUN) is None


def test_no_room_is_said_once_and_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    told: list[str] = []
    kept = StepMemory(RUN, tmp_path, told.append)
    keep(kept, 1)
    keep(kept, 2)
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert newest(RUN) is None
    assert list(memory.iterdir()) == []


def test_a_folder_of_somebody_else_is_not_used(memory: Path, tmp_path: Path) -> None:
    memory.mkdir(mode=0o777)
    memory.chmod(0o777)
    told: list[str] = []
    StepMemory(RUN, tmp_path, told.append).write(1, state(1), {})
    assert len(told) == 1
    assert "not this user's alone" in told[0]
    assert newest(RUN) is None


def test_without_room_beside_what_the_dead_left_the_newest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    keep(keeper(tmp_path), 1)
    kill(memory)
    room = os.posix_fallocate

    def small(descriptor: int, begin: int, length: int) -> None:
        if any(not ring.writer_lives(file) for file in memory.iterdir()):
            raise OSError(28, "No space left on device")
        room(descriptor, begin, length)

    monkeypatch.setattr(os, "posix_fallocate", small)
    after = keeper(tmp_path)
    keep(after, 2)
    check(2)
    keep(after, 3)
    check(3)
    assert all(ring.writer_lives(file) for file in memory.iterdir())
