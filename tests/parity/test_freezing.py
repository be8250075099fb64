"""Freezing freezes: at every worker count, with every lag, and in a run that is resumed.

A frozen parameter does not move, whatever momentum or weight decay it has, whatever gradient still
waits for its turn; a thawed one goes on from there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Session, start
from samepath.engine.run.trainer import Trainer
from samepath.strategies.choice import Choice, Synchronisation

LAGS = (0, 1, 3)
STEPS, FROZEN = 14, range(4, 9)
MADE = torch.Generator().manual_seed(3)
DATA = torch.randn(44, 8, generator=MADE), torch.randint(0, 4, (44,), generator=MADE)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make(session: Session) -> Trainer:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    return session.prepare(
        model, optimizer, loss, batch_size=14, grain_size=2, clip_norm=0.5, name=""
    )


def train(trainer: Trainer, lag: int, stop: int = STEPS, folder: Path | None = None) -> list[Any]:
    """Up to a step, freezing on the way; the frozen layer after every step."""
    source = trainer.source(DATA)
    assert isinstance(trainer.model, nn.Sequential)
    frozen: list[Any] = []
    for share in trainer.stream(source, trainer.step_number, stop):
        step = trainer.step_number
        if step == FROZEN.start:
            trainer.model[0].requires_grad_(False)
        if step == FROZEN.stop:
            trainer.model[0].requires_grad_(True)
        trainer.advance(share, Choice(synchronisation=Synchronisation(kind="stale", lag=lag)))
        frozen.append([p.detach().flatten().tolist() for p in trainer.model[0].parameters()])
    if folder is not None:
        trainer.save(folder)
    return frozen


def train_all(session: Session) -> dict[int, dict[str, Any]]:
    found = {}
    for lag in LAGS:
        trainer = make(session)
        found[lag] = {"frozen": train(trainer, lag), "digest": trainer.digest()}
    return found


def run_all(folder: str) -> None:
    """The body of every worker."""
    with start(seed=7) as session:
        found = json.dumps(train_all(session))
        Path(folder, f"worker-{session.worker}.json").write_text(found)


@pytest.fixture(scope="module")
def alone() -> dict[int, dict[str, Any]]:
    with start(seed=7) as session:
        return train_all(session)


@pytest.mark.parametrize("lag", LAGS)
def test_what_is_frozen_stays(lag: int, alone: dict[int, dict[str, Any]]) -> None:
    """Until it is thawed, and the first gradient computed since has waited for its turn."""
    layers = alone[lag]["frozen"]
    still = [*range(lag), *range(FROZEN.start, FROZEN.stop + lag)]
    for step in range(1, STEPS):
        assert (layers[step] == layers[step - 1]) == (step in still), step


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_at_every_worker_count(
    num_workers: int, alone: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    launch(run_all, (str(tmp_path),), num_workers)
    for worker in range(num_workers):
        found = json.loads((tmp_path / f"worker-{worker}.json").read_text())
        for lag in LAGS:
            assert found[str(lag)] == alone[lag], (worker, lag)


@pytest.mark.parametrize("stop", [3, 5, 7, 8, 9, 10])
@pytest.mark.parametrize("lag", LAGS)
def test_resumed_where_something_is_frozen(
    lag: int, stop: int, alone: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    with start(seed=7) as session:
        train(make(session), lag, stop, tmp_path)
        again = make(session)
        assert again.resume(tmp_path)
        assert again.step_number == stop
        train(again, lag)
        assert again.digest() == alone[lag]["digest"]


def test_frozen_parameters_have_no_gradient_to_be_clipped_with() -> None:
    """The norm is that of what is trained."""
    with start(seed=7) as session:
        trainer = make(session)
        train(trainer, 0, FROZEN.start + 1)
        assert isinstance(trainer.model, nn.Sequential)
        assert all(p.grad is None for p in trainer.model[0].parameters())
        assert all(p.grad is not None for p in trainer.model[2].parameters())
