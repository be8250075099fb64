"""Workers on machines with memories of their own agree on the newest complete step; all get it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import samepath
from samepath.engine import last_step
from samepath.engine.checkpoint import list_checkpoints, save
from samepath.engine.last_step import LastStep
from samepath.engine.launch import launch
from samepath.engine.recover import recover
from samepath.engine.session import Session
from samepath.engine.state import state_of
from samepath.engine.trainer import Trainer
from samepath.errors import CheckpointDamaged

RUN = "a" * 32
WORKERS = 3


def trainer(session: Session) -> Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return session.prepare(model, optimizer, loss, batch_size=6, grain_size=2)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(batch).square().mean()
    return found


def body(folder: str, in_memory: dict[int, list[int]], on_disk: list[int], damage: bool) -> None:
    """Train six steps; each worker's machine has kept some of them, the disk others."""
    worker = int(os.environ["RANK"])
    found: dict[str, list[object]] = {}
    for link in ("auto", "network"):
        last_step.MEMORY = Path(folder) / f"memory-{worker}-{link}"
        last_step.MEMORY.mkdir()
        with samepath.start(link=link) as session:
            first = trainer(session)
            keeper = LastStep(RUN, Path(folder), pytest.fail)
            disk = Path(folder) / link
            digests = {0: first.digest()}
            for share in first.batches(torch.arange(144.0).view(36, 4) / 144, 0):
                first.step(share)
                step = first.step_number
                digests[step] = first.digest()
                if step in in_memory.get(worker, []):
                    keeper.keep(state_of(first), {"step": step})
                if step in on_disk and worker == 0:
                    save(disk, state_of(first), {"step": step})
            if damage and worker == 0:
                (list_checkpoints(disk)[-1] / "state.safetensors").write_bytes(b"?")
            session.collective.agree(True)
            second = trainer(session)
            notes: list[str] = []
            try:
                recovered = recover(second, RUN, disk, notes.append)
            except CheckpointDamaged as error:
                found[link] = [str(error).replace(str(disk), "it")]
                continue
            same = second.digest() == digests[second.step_number]
            found[link] = [recovered, second.step_number, same, len(notes)]
    (Path(folder) / f"worker-{worker}.json").write_text(json.dumps(found))


def found_by_all(
    folder: Path, in_memory: dict[int, list[int]], on_disk: list[int], *, damage: bool = False
) -> list[list[object]]:
    launch(body, (str(folder), in_memory, on_disk, damage), WORKERS)
    found = [json.loads((folder / f"worker-{w}.json").read_text()) for w in range(WORKERS)]
    for worker in found:
        assert worker["auto"] == worker["network"]
    return [worker["auto"] for worker in found]


def test_the_newest_of_all_memories(tmp_path: Path) -> None:
    found = found_by_all(tmp_path, {1: [3, 4], 2: [4, 5]}, [2])
    assert found == [[[-1, {"step": 5}], 5, True, 0]] * WORKERS


def test_the_disk_where_it_is_newer(tmp_path: Path) -> None:
    found = found_by_all(tmp_path, {0: [1, 2], 2: [2, 3]}, [1, 4])
    assert found == [[[4, {"step": 4}], 4, True, 0]] * WORKERS


def test_a_damaged_checkpoint_is_passed_over_for_memory(tmp_path: Path) -> None:
    found = found_by_all(tmp_path, {2: [3]}, [2, 5], damage=True)
    assert [f[:3] for f in found] == [[[-1, {"step": 3}], 3, True]] * WORKERS
    assert [f[3] for f in found] == [1, 0, 0]  # who reads the disk says so


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert found_by_all(tmp_path, {}, []) == [[None, 0, True, 0]] * WORKERS


def test_nothing_but_a_damaged_checkpoint(tmp_path: Path) -> None:
    found = found_by_all(tmp_path, {}, [2], damage=True)
    assert all(len(f) == 1 and "can be read" in str(f[0]) for f in found)
