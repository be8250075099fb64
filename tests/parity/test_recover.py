"""Workers on machines with memories of their own agree on the newest complete step; all get it."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import samepath
from samepath.engine.elastic import ring
from samepath.engine.elastic.recover import recover
from samepath.engine.elastic.step_memory import StepMemory, newest
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.checkpoint import list_checkpoints, save
from samepath.engine.state.state import state_of
from samepath.errors import CheckpointDamaged

RUN = "a" * 32
WORKERS = 3


def trainer(session: Session) -> Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return session.prepare(model, optimizer, loss, batch_size=6, grain_size=2, name="")


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(batch).square().mean()
    return found


def body(
    folder: str, in_memory: dict[int, list[int]], on_disk: list[int], damage: bool, logged: int
) -> None:
    """Train six steps; each worker's machine has kept some of them, the disk others."""
    worker = int(os.environ["RANK"])
    found: dict[str, list[object]] = {}
    for link in ("auto", "network"):
        ring.MEMORY = Path(folder) / f"memory-{worker}-{link}"
        ring.MEMORY.mkdir()
        with samepath.start(link=link) as session:
            first = trainer(session)
            keeper = StepMemory(RUN, Path(folder), pytest.fail)
            disk = Path(folder) / link
            digests = {0: first.digest()}
            for share in first.batches(torch.arange(144.0).view(36, 4) / 144, 0):
                first.step(share)
                step = first.step_number
                digests[step] = first.digest()
                if step in in_memory.get(worker, []):
                    keeper.write(step, state_of(first), {"lines": step})
                if step in on_disk and worker == 0:
                    save(disk, state_of(first), {"lines": step})
            if damage and worker == 0:
                (list_checkpoints(disk)[-1] / "state.safetensors").write_bytes(b"?")
            session.collective.agree(True)
            second = trainer(session)
            notes: list[str] = []
            try:
                recovered = recover(second, RUN, disk, notes.append, num_lines=lambda: logged)
            except CheckpointDamaged as error:
                found[link] = [str(error).replace(str(disk), "it")]
                continue
            same = second.digest() == digests[second.step_number]
            where = recovered and [
                recovered.step if recovered.from_disk else -1,
                recovered.progress,
            ]
            found[link] = [where, second.step_number, same, len(notes)]
    (Path(folder) / f"worker-{worker}.json").write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("in_memory", "on_disk", "damage", "logged", "expected"),
    [
        ({1: [3, 4], 2: [4, 5]}, [2], False, 6, [[-1, {"lines": 5}], 5, True]),
        # the machine of worker 0 died; another's workers were ahead of it
        ({1: [3, 4], 2: [4, 5]}, [2], False, 4, [[-1, {"lines": 4}], 4, True]),
        ({0: [1, 2], 2: [2, 3]}, [1, 4], False, 6, [[4, {"lines": 4}], 4, True]),
        ({2: [3]}, [2, 5], True, 6, [[-1, {"lines": 3}], 3, True]),
        ({}, [], False, 6, [None, 0, True]),
        ({}, [2], True, 6, None),
    ],
    ids=["newest of all memories", "not a step that worker 0 had not logged",
         "the disk where it is newer", "a damaged checkpoint is passed over", "nothing",
         "nothing but a damaged checkpoint"],
)  # fmt: skip
def test_the_newest_step_that_is_whole(
    in_memory: dict[int, list[int]],
    on_disk: list[int],
    damage: bool,
    logged: int,
    expected: list[object] | None,
    tmp_path: Path,
) -> None:
    launch(body, (str(tmp_path), in_memory, on_disk, damage, logged), WORKERS)
    for worker in range(WORKERS):
        both = json.loads((tmp_path / f"worker-{worker}.json").read_text())
        found = both["auto"]
        assert both["network"] == found
        if expected is None:
            assert len(found) == 1
            assert "can be read" in found[0]
        else:  # who reads the disk says that it is damaged
            assert found == [*expected, int(damage and worker == 0)]


def strided(session: Session) -> Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return session.prepare(model, optimizer, loss, batch_size=6, grain_size=2, name="")


def hand_out(folder: str, logged: int) -> None:
    """Steps 1 to 4 are kept on the machine of worker 1, the last three as gradients; of some, lines
    are on disk."""
    worker = int(os.environ["RANK"])
    ring.MEMORY = Path(folder) / f"memory-{worker}"
    ring.MEMORY.mkdir()
    with samepath.start() as session:
        first = strided(session)
        memory = StepMemory(RUN, Path(folder), pytest.fail)
        first.around_update = partial(memory.around_update, first)
        digests = {}
        for share in first.batches(torch.arange(24 * 48.0).view(24, 3, 4, 4) / 999, 0):
            first.step(share)
            memory.keep(first, {"lines": first.step_number}, is_one_update=True)
            digests[first.step_number] = first.digest()
        if worker != 1:
            memory.close()
        trail = newest(RUN)
        assert (trail is not None and len(trail.changes) == 3) == (worker == 1)
        session.collective.agree(True)
        second = strided(session)
        disk = Path(folder) / "none"
        found = recover(second, RUN, disk, pytest.fail, num_lines=lambda: logged)
        assert found is not None
        assert not found.from_disk
        assert found.progress == {"lines": logged}
        same = second.digest() == digests[logged] and second.step_number == logged
        (Path(folder) / f"worker-{worker}.json").write_text(json.dumps(same))


@pytest.mark.parametrize("logged", [4, 2])
def test_what_one_machine_has_for_all(logged: int, tmp_path: Path) -> None:
    """Also of weights that lie in another order, and where worker 0's machine took lines along."""
    launch(hand_out, (str(tmp_path), logged), WORKERS)
    found = [json.loads((tmp_path / f"worker-{w}.json").read_text()) for w in range(WORKERS)]
    assert found == [True] * WORKERS
