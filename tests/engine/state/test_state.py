"""The state of a trainer: there and back, and a digest that stands for all of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler as rates

from samepath.engine.comm.collective import Alone
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.checkpoint import load, save
from samepath.engine.state.state import State, digest, load_state, state_of
from samepath.engine.step.settings import Settings
from samepath.errors import CheckpointDamaged, UserError

Optimize = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[torch.optim.Optimizer], rates.LRScheduler]


class Odd(nn.Module):
    """Tied weights, buffers of every kind, and layers that only some steps use, the last first."""

    empty: Tensor
    scalar: Tensor
    hidden: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.late = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.early = nn.Linear(4, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("scalar", torch.tensor(0.0))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("short", torch.ones(2, dtype=torch.bfloat16))
        self.calls = 0

    def forward(self, words: Tensor) -> Tensor:
        vectors = self.norm(self.embed(words))
        vectors = self.early(vectors) if self.calls % 2 == 0 else self.late(vectors)
        with torch.no_grad():
            self.scalar += vectors.mean()
            self.hidden += vectors.std()
        scores: Tensor = self.out(vectors) * self.temperature
        return scores


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch), batch)


OPTIMIZERS: dict[str, Optimize] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "groups": lambda p: torch.optim.Adam(
        cast(Any, [{"params": p[:2], "lr": 0.1}, {"params": p[2:], "betas": (0.8, 0.9)}]), lr=0.01
    ),
}
SCHEDULES: dict[str, Schedule] = {
    "step": lambda o: rates.StepLR(o, 2, gamma=0.5),
    "lambda": lambda o: rates.LambdaLR(o, lambda step: 0.9**step),
    "cosine": lambda o: rates.CosineAnnealingLR(o, 10),
    "one cycle": lambda o: rates.OneCycleLR(o, 0.1, total_steps=20),
    "warm-up": lambda o: rates.SequentialLR(
        o, [rates.LinearLR(o, 0.1, total_iters=3), rates.ExponentialLR(o, 0.9)], milestones=[3]
    ),
}


def make(optimizer: Optimize, schedule: Schedule | None = None) -> Trainer:
    torch.manual_seed(1)
    model = Odd()
    made = optimizer(list(model.parameters()))
    settings = Settings(batch_size=4, grain_size=4, schedule_every="step")
    planned = None if schedule is None else schedule(made)
    return Trainer(Alone(torch.device("cpu")), model, made, loss, settings, planned)


def train(trainer: Trainer, stop: int) -> None:
    data = torch.arange(20) % 6
    source = trainer.source(data)
    assert isinstance(trainer.model, Odd)
    for share in trainer.stream(source, trainer.step_number, stop):
        trainer.model.calls = trainer.step_number  # alternates, starting with `early`
        trainer.step(share)


def through_disk(trainer: Trainer, folder: Path) -> State:
    save(folder, state_of(trainer), {})
    return load(folder / f"step-{trainer.step_number:08d}").state


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("stop", [0, 1, 2, 5])
def test_there_and_back(name: str, stop: int, tmp_path: Path) -> None:
    """At once, and after further steps; `late` first gets its state after `early` has."""
    trainer = make(OPTIMIZERS[name])
    train(trainer, stop)
    again = make(OPTIMIZERS[name])
    load_state(again, through_disk(trainer, tmp_path))
    assert again.step_number == stop
    assert digest(state_of(again)) == digest(state_of(trainer))
    train(trainer, 8)
    train(again, 8)
    assert digest(state_of(again)) == digest(state_of(trainer))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str, tmp_path: Path) -> None:
    trainer = make(OPTIMIZERS["momentum"], SCHEDULES[name])
    train(trainer, 2)
    again = make(OPTIMIZERS["momentum"], SCHEDULES[name])
    load_state(again, through_disk(trainer, tmp_path))
    rates = [trainer.optimizer.param_groups[0]["lr"]]
    for stop in (3, 4, 7):
        train(trainer, stop)
        train(again, stop)
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        assert again.optimizer.param_groups[0]["lr"] == rates[-1]
        assert digest(state_of(again)) == digest(state_of(trainer))
    assert len(set(rates)) > 2, "the rate has moved"


def test_what_is_in_it(tmp_path: Path) -> None:
    """Tied weights stay tied; odd buffers come back."""
    trainer = make(OPTIMIZERS["adam"])
    train(trainer, 3)
    state = through_disk(trainer, tmp_path)
    again = make(OPTIMIZERS["adam"])
    load_state(again, state)
    ours, theirs = trainer.model, again.model
    assert isinstance(ours, Odd)
    assert isinstance(theirs, Odd)
    assert theirs.out.weight is theirs.embed.weight
    assert torch.equal(theirs.hidden, ours.hidden)
    assert theirs.hidden.abs().sum() > 0
    assert theirs.scalar == ours.scalar != 0
    assert theirs.empty.shape == (0, 3)
    for buffer, expected in zip(theirs.buffers(), ours.buffers(), strict=True):
        assert buffer.dtype == expected.dtype
        assert torch.equal(buffer, expected)


def test_memory_layouts_come_back(tmp_path: Path) -> None:
    """Channels-last weights and their momentum keep their strides: kernels choose by them."""

    def made() -> Trainer:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(model.parameters())
        return Trainer(
            Alone(torch.device("cpu")), model, optimizer,
            lambda model, batch: model(batch).square().mean(),
            Settings(batch_size=2, grain_size=2),
        )  # fmt: skip

    trainer, again = made(), made()
    data = torch.randn(4, 3, 3, 3)
    for share in trainer.batches(data, 0):
        trainer.step(share)
    load_state(again, through_disk(trainer, tmp_path))
    for ours, theirs in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        assert ours.stride() == theirs.stride()
        mine, loaded = trainer.optimizer.state[ours], again.optimizer.state[theirs]
        assert mine["exp_avg"].stride() == loaded["exp_avg"].stride()
        assert torch.equal(mine["exp_avg"], loaded["exp_avg"])


# ---- the digest


@pytest.fixture
def state() -> State:
    trainer = make(OPTIMIZERS["adam"], SCHEDULES["step"])
    train(trainer, 3)
    return state_of(trainer).clone()


def test_every_byte_of_every_tensor_counts(state: State) -> None:
    before = digest(state)
    for name, tensor in state.tensors.items():
        for place in range(tensor.numel() * tensor.element_size()):
            flat = tensor.reshape(-1).view(torch.uint8)
            changed = flat.clone()
            changed[place] ^= 1
            other = changed.view(tensor.dtype).reshape(tensor.shape)
            assert digest(replace(state, tensors=state.tensors | {name: other})) != before, name
    assert digest(state) == before


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "sign of zero": lambda t: torch.where(t == 0, -t, t),
    "dtype": lambda t: t.view(torch.int32),
    "shape": lambda t: t.reshape(-1),
    "transposed": lambda t: t.T.contiguous().reshape(t.shape),
}
EARLY, LATE = "model/early.weight", "model/late.weight"


@pytest.mark.parametrize("what", CHANGES)
def test_values_that_look_alike_count(what: str, state: State) -> None:
    tensor = state.tensors[EARLY].clone()
    tensor[0, 0] = 0.0
    before, after = (
        replace(state, tensors=state.tensors | {EARLY: each})
        for each in (tensor, CHANGES[what](tensor))
    )
    assert digest(before) != digest(after)


def test_names_count(state: State) -> None:
    early, late = state.tensors[EARLY], state.tensors[LATE]
    swapped = state.tensors | {EARLY: late, LATE: early}
    renamed = {n: t for n, t in state.tensors.items() if n != EARLY} | {"model/other": early}
    for tensors in (swapped, renamed):
        assert digest(replace(state, tensors=tensors)) != digest(state)


def test_numbers_count() -> None:
    """Learning rate, other settings of the optimizer, and the schedule's place."""
    found = set()
    for rate, decay, steps in [(0.1, 0.0, 0), (0.2, 0.0, 0), (0.1, 0.5, 0), (0.1, 0.0, 1)]:
        optimizer = functools.partial(torch.optim.SGD, lr=rate, weight_decay=decay)
        trainer = make(optimizer, SCHEDULES["step"])
        for _ in range(steps):
            trainer.optimizer.step()
            assert trainer.schedule is not None
            trainer.schedule.step()
        found.add(digest(state_of(trainer)))
    assert len(found) == 4


def test_nothing_else_counts(state: State) -> None:
    """Memory layout, sharing of memory, the order of names and the step number do not."""
    before = digest(state)
    tensors: dict[str, Tensor] = {}
    for name, tensor in reversed(state.tensors.items()):
        strided = torch.stack([tensor, tensor], dim=-1)[..., 0]
        assert strided.numel() < 2 or not strided.is_contiguous()
        tensors[name] = strided
    assert digest(replace(state, tensors=tensors)) == before
    assert digest(replace(state, structure=state.structure | {"step": 99})) == before
    assert digest(State(state.tensors, json.loads(json.dumps(state.structure)))) == before


# ---- what cannot be


def test_a_state_of_another_model() -> None:
    trainer = make(OPTIMIZERS["sgd"])
    found = state_of(trainer)
    other = nn.Linear(2, 2)
    optimizer, settings = torch.optim.SGD(other.parameters()), Settings(batch_size=1, grain_size=1)
    stranger = Trainer(Alone(torch.device("cpu")), other, optimizer, loss, settings)
    with pytest.raises(CheckpointDamaged, match="does not fit"):
        load_state(stranger, found)


def test_state_that_would_need_pickle() -> None:
    trainer = make(OPTIMIZERS["sgd"])
    trainer.optimizer.param_groups[0]["mine"] = object()
    with pytest.raises(UserError, match=r"groups/0/mine holds a object.*without pickle"):
        state_of(trainer)


def test_exact_numbers() -> None:
    """Floats, infinities and whole numbers go through JSON unchanged, with their types."""
    values: list[Any] = [
        0.1, 1e-300, float("inf"), -0.0, 2**70, True, None, "x", (1, 2), [3], {4: 5}
    ]  # fmt: skip
    trainer, again = make(OPTIMIZERS["sgd"]), make(OPTIMIZERS["sgd"])
    trainer.optimizer.param_groups[0]["mine"] = values
    found = state_of(trainer)
    load_state(again, State(found.tensors, json.loads(json.dumps(found.structure))))
    back = again.optimizer.param_groups[0]["mine"]
    assert repr(back) == repr(values)
