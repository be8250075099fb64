"""Against plain PyTorch: bits with one grain per batch, a tolerance with smaller grains.

The reference is a loop anyone would write; it shares nothing with the engine but the order of
examples and, where dropout is on, the key that the engine seeds a grain with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath import start
from samepath.data import seed_everything
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.keys import key
from samepath.plan import epoch_order

Data = tuple[Tensor, Tensor]
SEED = 7
EPOCHS = 3
Loss = Callable[[nn.Module, Data], Tensor]
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


class Net(nn.Module):
    """Batch norm, dropout, a layer no example uses, and a parameter whose gradient is -0.0."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Flatten(),
        )
        self.head = nn.Linear(6 * 16, 4)
        self.unused = nn.Linear(3, 3)
        self.nothing = nn.Parameter(torch.zeros(3))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(images))
        return scores


def classify_images(model: nn.Module, batch: Data) -> Tensor:
    assert isinstance(model, Net)
    return F.cross_entropy(model(batch[0]), batch[1]) + model.nothing.sum() * -0.0


def images() -> Data:
    """37 examples: batches of 10 leave a last one of 7."""
    made = torch.Generator().manual_seed(1)
    return torch.randn(37, 1, 6, 6, generator=made), torch.randint(0, 4, (37,), generator=made)


def classify(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to train, for both loops."""

    optimizer: Callable[[Any], torch.optim.Optimizer]
    schedule: MakeSchedule | None = None
    schedule_every: str = "epoch"
    clip_norm: float | None = None
    dropout: float = 0.0


def _one_cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4 * EPOCHS)


def _halve(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


CASES = {
    "momentum": Case(optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": Case(optimizer=lambda p: torch.optim.Adam(p, lr=0.01)),
    "adamw": Case(optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True)),
    "clipping": Case(optimizer=lambda p: torch.optim.Adam(p, lr=0.01), clip_norm=0.1),
    "schedule": Case(
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        schedule=_halve,
    ),
    "schedule_per_step": Case(
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        schedule=_one_cycle,
        schedule_every="step",
    ),
    "dropout": Case(
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
        schedule=_halve,
        clip_norm=0.5,
        dropout=0.3,
    ),
}


def plain_loop(
    case: Case, model: nn.Module, data: Data, loss: Loss, batch_size: int
) -> torch.optim.Optimizer:
    """Plain PyTorch."""
    optimizer = case.optimizer(model.parameters())
    schedule = None if case.schedule is None else case.schedule(optimizer)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.from_numpy(epoch_order(len(data[0]), SEED, epoch).copy())
        for examples in torch.split(order, batch_size):
            if case.dropout:
                seed_everything(key("grain", SEED, step, 0))
            optimizer.zero_grad()
            loss(model, (data[0][examples], data[1][examples])).backward()
            if case.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
            optimizer.step()
            if schedule is not None and case.schedule_every == "step":
                schedule.step()
            step += 1
        if schedule is not None and case.schedule_every == "epoch":
            schedule.step()
    return optimizer


def engine_loop(
    session: Session, case: Case, model: nn.Module, data: Data, loss: Loss, **settings: Any
) -> Trainer:
    """The same through the engine."""
    optimizer = case.optimizer(model.parameters())
    trainer = session.prepare(
        model,
        optimizer,
        loss,
        schedule=None if case.schedule is None else case.schedule(optimizer),
        schedule_every=case.schedule_every,
        clip_norm=case.clip_norm,
        **settings,
    )
    for epoch in range(EPOCHS):
        for share in trainer.batches(data, epoch):
            trainer.step(share)
        trainer.end_epoch()
    return trainer


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, buffers and optimizer state by name."""
    found = dict(model.state_dict())
    for index, state in optimizer.state_dict()["state"].items():
        found |= {
            f"optimizer {index} {name}": value
            for name, value in state.items()
            if isinstance(value, Tensor)
        }
    return found


def raw(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    """What must be the same: the bytes, so that 0.0 is not -0.0."""
    return tensor.dtype, tensor.shape, tensor.detach().contiguous().numpy().tobytes()


@pytest.fixture
def session() -> Iterator[Session]:
    with start(seed=SEED) as session:
        yield session


@pytest.mark.parametrize("name", CASES)
def test_one_grain_per_batch_is_a_plain_loop_bit_for_bit(name: str, session: Session) -> None:
    case = CASES[name]
    torch.manual_seed(3)
    ours, plain = Net(case.dropout), Net(case.dropout)
    plain.load_state_dict(ours.state_dict())
    initial = {key: value.clone() for key, value in ours.state_dict().items()}

    optimizer = plain_loop(case, plain, images(), classify_images, 10)
    trainer = engine_loop(
        session, case, ours, images(), classify_images, batch_size=10, grain_size=10
    )

    expected, found = tensors_of(plain, optimizer), tensors_of(ours, trainer.optimizer)
    assert found.keys() == expected.keys()
    for key_, value in expected.items():
        assert raw(found[key_]) == raw(value), key_
    assert trainer.optimizer.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    changed = {key for key, value in ours.state_dict().items() if not value.equal(initial[key])}
    assert changed == initial.keys() - {"nothing", "unused.weight", "unused.bias"}


def test_the_sign_of_zero_is_compared(session: Session) -> None:
    """The momentum of `nothing` is -0.0 in the plain loop: the comparison above sees it."""
    model = Net(0.0)
    optimizer = plain_loop(CASES["momentum"], model, images(), classify_images, 10)
    momentum = optimizer.state[model.nothing]["momentum_buffer"]
    assert momentum.signbit().all()
    assert momentum.eq(0).all()
    assert raw(momentum) != raw(momentum.abs())


# ---- smaller grains, and shares instead of grains: the same up to the order of additions


def vectors() -> Data:
    """42 examples: batches of 10 leave a last one of 2, too few for three workers."""
    made = torch.Generator().manual_seed(2)
    inputs = torch.randn(42, 8, generator=made, dtype=torch.float64)
    return inputs, torch.randint(0, 4, (42,), generator=made)


def some_invalid() -> Data:
    """Some labels do not count: six of the first batch, a quarter of the others."""
    inputs, labels = vectors()
    labels[1::4] = -1
    labels[torch.from_numpy(epoch_order(42, SEED, 0)[:6].copy())] = -1
    for epoch in range(EPOCHS):  # a batch of none would have no mean to compare
        order = torch.from_numpy(epoch_order(42, SEED, epoch).copy())
        assert all((labels[examples] >= 0).any() for examples in torch.split(order, 10))
    return inputs, labels


def classify_valid(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=-1)


def num_valid(batch: Data) -> float:
    return float((batch[1] >= 0).sum())


def dense() -> nn.Module:
    """A model whose examples do not interact."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4)).double()


WEIGHTED: dict[bool, tuple[Callable[[], Data], Loss, dict[str, Any]]] = {
    False: (vectors, classify, {}),
    True: (some_invalid, classify_valid, {"weight": num_valid}),
}
MOMENTUM = Case(
    optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), schedule=_halve, clip_norm=1.0
)


def weights_of(model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.detach().numpy() for name, value in model.named_parameters()}


def plain_weights(*, weighted: bool) -> dict[str, np.ndarray[Any, Any]]:
    data, loss, _ = WEIGHTED[weighted]
    model = dense()
    plain_loop(MOMENTUM, model, data(), loss, 10)
    return weights_of(model)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grain_size", [1, 3, 4])
def test_small_grains_differ_from_a_plain_loop_by_rounding_only(
    grain_size: int, weighted: bool, session: Session
) -> None:
    data, loss, settings = WEIGHTED[weighted]
    model = dense()
    engine_loop(
        session, MOMENTUM, model, data(), loss, batch_size=10, grain_size=grain_size, **settings
    )
    expected = plain_weights(weighted=weighted)
    for name, value in weights_of(model).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-13, err_msg=name)


def run_inexact(folder: str) -> None:
    """The body of every worker."""
    with start(seed=SEED) as session:
        for weighted, (data, loss, settings) in WEIGHTED.items():
            model = dense()
            engine_loop(
                session, MOMENTUM, model, data(), loss,
                batch_size=10, grain_size=5, exact=False, **settings,
            )  # fmt: skip
            np.savez(Path(folder, f"{session.worker}-{weighted}"), **weights_of(model))  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_inexact_is_a_plain_loop_up_to_rounding(num_workers: int, tmp_path: Path) -> None:
    """Ten examples on three workers are shares of 3, 3 and 4; two are shares of 1, 1 and none."""
    launch(run_inexact, (str(tmp_path),), num_workers)
    for weighted in WEIGHTED:
        expected = plain_weights(weighted=weighted)
        workers = [np.load(tmp_path / f"{w}-{weighted}.npz") for w in range(num_workers)]
        for name, value in expected.items():
            for worker in workers:
                np.testing.assert_array_equal(worker[name], workers[0][name])
            np.testing.assert_allclose(workers[0][name], value, rtol=1e-10, atol=1e-13)
            if num_workers == 1:
                np.testing.assert_array_equal(workers[0][name], value)
