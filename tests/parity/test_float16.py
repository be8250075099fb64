"""float16 autocast with a scaled loss: at one grain a batch a plain loop with
`torch.amp.GradScaler`, to the bit; the same at every worker count, also where updates are left out;
resumed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath import start
from samepath.data import seed_everything
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.errors import Diverged, UserError
from samepath.keys import key
from samepath.plan import epoch_order
from samepath.strategies.choice import Choice, Synchronisation

SEED, BATCH, EPOCHS = 7, 14, 5
MADE = torch.Generator().manual_seed(3)
DATA = torch.randn(44, 8, generator=MADE), torch.randint(0, 4, (44,), generator=MADE)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1]) * 20.0  # enough to overflow at first


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
    return model, optimizer, schedule


def make(session: Session, grain_size: int, **settings: Any) -> Trainer:
    model, optimizer, schedule = parts()
    made = session.prepare(
        model, optimizer, loss, batch_size=BATCH, grain_size=grain_size, clip_norm=3.0,
        schedule=schedule, schedule_every="step", autocast=torch.float16, **settings,
    )  # fmt: skip
    assert made.scaling is not None
    made.scaling.scaler.set_growth_interval(3)
    return made


def advance(trainer: Trainer, stop: int = EPOCHS * 4) -> list[list[Any]]:
    found = []
    for share in trainer.stream(trainer.source(DATA), trainer.step_number, stop):
        result = trainer.step(share)
        found.append([result.loss.hex(), result.loss_scale, result.skipped])
    return found


def plain_loop() -> tuple[nn.Module, torch.optim.Optimizer, list[list[Any]]]:
    model, optimizer, schedule = parts()
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    found, step = [], 0
    for epoch in range(EPOCHS):
        order = torch.from_numpy(epoch_order(44, SEED, epoch).copy())
        for examples in torch.split(order, BATCH):
            optimizer.zero_grad()
            seed_everything(key("grain", SEED, step, 0))
            with torch.autocast("cpu", dtype=torch.float16):
                value = loss(model, (DATA[0][examples], DATA[1][examples]))
            scale = scaler.get_scale()
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            scaler.step(optimizer)
            scaler.update()
            skipped = scaler.get_scale() < scale
            if not skipped:
                schedule.step()
            found.append([float(value.detach()).hex(), scale, skipped])
            step += 1
    return model, optimizer, found


def test_one_grain_a_batch_equals_a_plain_loop() -> None:
    with start(seed=SEED) as session:
        ours = make(session, BATCH)
        found = advance(ours)
        model, optimizer, expected = plain_loop()
        assert found == expected
        for name, value in model.state_dict().items():
            assert torch.equal(ours.model.state_dict()[name], value), name
        assert ours.optimizer.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    scales = [scale for _, scale, _ in found]
    assert any(skipped for *_, skipped in found)
    assert any(b > a for a, b in itertools.pairwise(scales))


def body(folder: str) -> None:
    """The body of every worker."""
    with start(seed=SEED) as session:
        trainer = make(session, 2)
        found = json.dumps([advance(trainer), trainer.digest()])
        Path(folder, f"worker-{session.worker}.json").write_text(found)


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    with start(seed=SEED) as session:
        trainer = make(session, 2)
        return [advance(trainer), trainer.digest()]


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_same_at_every_worker_count(num_workers: int, alone: list[Any], tmp_path: Path) -> None:
    assert any(skipped for *_, skipped in alone[0])
    launch(body, (str(tmp_path),), num_workers)
    for worker in range(num_workers):
        assert json.loads((tmp_path / f"worker-{worker}.json").read_text()) == alone


@pytest.mark.parametrize("stop", [1, 6])
def test_resumed_with_its_scale(stop: int, alone: list[Any], tmp_path: Path) -> None:
    with start(seed=SEED) as session:
        first = make(session, 2)
        before = advance(first, stop)
        first.save(tmp_path)
        again = make(session, 2)
        assert again.resume(tmp_path)
        assert [before + advance(again), again.digest()] == alone


def test_the_noise_scale_does_not_see_the_scale() -> None:
    def noise(dtype: torch.dtype) -> Any:
        with start(seed=SEED) as session:
            model, optimizer, _ = parts()
            trainer = session.prepare(
                model, optimizer, loss, batch_size=BATCH, grain_size=2, autocast=dtype
            )
            if trainer.scaling is not None:
                trainer.scaling.scaler.load_state_dict(
                    trainer.scaling.state_dict() | {"scale": 256.0}
                )
            (share, *_) = trainer.batches(DATA, 0)
            return trainer.step(share).noise

    half, brain = noise(torch.float16), noise(torch.bfloat16)
    assert half.variance == pytest.approx(brain.variance, rel=0.2)


def test_refused_with_a_lag_and_ended_when_nothing_helps() -> None:
    with start(seed=SEED) as session:
        trainer = make(session, 2)
        assert trainer.scaling is not None
        (share, *_) = trainer.batches(DATA, 0)
        late = Choice(synchronisation=Synchronisation(kind="stale", lag=1))
        with pytest.raises(UserError, match=r"which a lag leaves open; use torch.bfloat16"):
            trainer.advance(share, late)
        trainer.scaling.load_state_dict(trainer.scaling.state_dict() | {"scale": 2.0**-25})
        with pytest.raises(Diverged, match="scale of the loss"):
            trainer.step(share)


def test_refused_with_a_loss_of_the_whole_batch() -> None:
    model, optimizer, _ = parts()
    with (
        start(seed=SEED) as session,
        pytest.raises(UserError, match=r"float16, .* make one of the whole batch"),
    ):
        session.prepare(
            model, optimizer, batch_size=BATCH, autocast=torch.float16,
            encode=lambda model, batch: model(batch[0]),
            batch_loss=lambda encoded, batch: encoded.mean(),
        )  # fmt: skip
