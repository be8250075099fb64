"""A step kept as a change comes back bit for bit; one that does not is not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samepath
from samepath.engine.elastic import ring, step_memory
from samepath.engine.elastic.recover import recover
from samepath.engine.elastic.step_memory import WHOLE_EVERY, StepMemory, newest
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.strategies import Choice

RUN = "b" * 32
STEPS = 2 * WHOLE_EVERY + 5
pytestmark = pytest.mark.usefixtures("memory")
DATA = torch.randn(4 * STEPS, 3, 4, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def session() -> Iterator[Session]:
    with samepath.start() as session:
        yield session


class Clamped(nn.Module):
    """Weights that somebody else changes than the optimizer, behind autograd's back."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.inner = nn.Linear(48, 5)
        self.limit = limit

    def forward(self, images: Tensor) -> Tensor:
        self.inner.weight.data.clamp_(-self.limit, self.limit)
        found: Tensor = self.inner(images.flatten(1))
        return found


class Extra(nn.Module):
    """State that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(48, 5)
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.inner(images.flatten(1))
        return found / self.calls

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = int(state)


class WritesIntoGradients(torch.optim.Adam):
    """As old optimizers do with weight decay."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=0.1)
        return super().step(closure)


class Rounding(torch.optim.Optimizer):
    """With a state of another dtype than its parameter: numbers of one byte, or exact ones."""

    dtype = torch.int8

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    for name in ("one", "two", "three"):  # so that changes are worth it
                        state[name] = torch.zeros_like(parameter, dtype=self.dtype)
                parameter -= group["lr"] * parameter.grad + 0.01 * state["one"].to(parameter.dtype)
                state["one"].add_(parameter.grad.sign().to(self.dtype))


class Exact(Rounding):
    dtype = torch.float64


class Langevin(torch.optim.Adam):
    """With noise: random numbers that belong to the step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)


class TimesDrifting(torch.optim.Adam):
    """An optimizer whose update cannot be made again: it depends on what is in no state."""

    calls = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        TimesDrifting.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - 1e-4 * TimesDrifting.calls)
        return super().step(closure)


def convolutions() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(128, 3),
    )  # fmt: skip
    for weights in model.parameters():
        if weights.dim() == 4:
            weights.data = weights.data.contiguous(memory_format=torch.channels_last)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 48, bias=False), nn.Linear(48, 48))
    model[2].weight = model[1].weight
    return model


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 7), nn.Linear(7, 3))
    model[1].requires_grad_(False)
    return model


def loss(model: nn.Module, images: Tensor) -> Tensor:
    found: Tensor = model(images).square().mean()
    return found


Make = Callable[[], nn.Module]


def trainer(session: Session, make: Make, optimizer: Any = torch.optim.Adam) -> Trainer:
    torch.manual_seed(3)
    model = make()
    optimizer = optimizer(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    return session.prepare(
        model, optimizer, loss, batch_size=4, grain_size=2, schedule=schedule,
        schedule_every="step", clip_norm=0.5, name="",
    )  # fmt: skip


def watch(trainer: Trainer, keepers: list[StepMemory]) -> None:
    """Have the workers of a machine, each with its share, keep one trainer's updates."""

    @contextmanager
    def around_update(choice: Choice) -> Iterator[None]:
        with ExitStack() as stack:
            for keeper in keepers:
                stack.enter_context(keeper.around_update(trainer, choice))
            yield

    trainer.around_update = around_update


def train(
    trainer: Trainer,
    keepers: list[StepMemory],
    *,
    choice: Choice = Choice(),  # noqa: B008
    between: Callable[[int], None] = lambda step: None,
    stop: int = STEPS,
) -> dict[int, str]:
    """Train, and keep every step; the digest after each."""
    watch(trainer, keepers)
    digests = {}
    for share in trainer.batches(DATA, 0):
        trainer.advance(share, choice)
        step = trainer.step_number
        for keeper in keepers:
            keeper.keep(trainer, {"step": step}, is_one_update=True)
        digests[step] = trainer.digest()
        between(step)
        if step == stop:
            break
    return digests


def keepers(tmp_path: Path, parts: int = 1) -> list[StepMemory]:
    return [StepMemory(RUN, tmp_path, pytest.fail, part=p, parts=parts) for p in range(parts)]


def come_back(trainer: Trainer, tmp_path: Path, tell: Any = pytest.fail) -> int:
    found = recover(trainer, RUN, tmp_path / "none", tell)
    assert found is not None
    assert not found.from_disk
    assert found.progress == {"step": trainer.step_number}
    return trainer.step_number


def num_changes() -> int:
    trail = newest(RUN)
    assert trail is not None
    return len(trail.changes)


def check(
    session: Session, tmp_path: Path, digests: dict[int, str], step: int, make: Make | None = None
) -> None:
    """A new trainer comes to that step."""
    again = trainer(session, make or convolutions)
    assert come_back(again, tmp_path) == step
    assert again.digest() == digests[step]


@pytest.mark.parametrize(
    ("make", "parts"), [(convolutions, 1), (convolutions, 3), (tied, 2), (half_frozen, 2)]
)
def test_every_step_comes_back(make: Make, parts: int, tmp_path: Path, session: Session) -> None:
    choice = Choice(learning_rate=0.7, schedule_steps=2)
    digests = train(trainer(session, make), [], choice=choice)

    def between(step: int) -> None:
        check(session, tmp_path, digests, step, make)
        assert num_changes() == (step - 1) % WHOLE_EVERY

    those = keepers(tmp_path, parts)
    assert train(trainer(session, make), those, choice=choice, between=between) == digests


@pytest.mark.parametrize(
    ("make", "optimizer", "changes"),
    [
        (convolutions, torch.optim.Adam, 4),
        (convolutions, WritesIntoGradients, 4),  # the gradient is kept before the optimizer has it
        (convolutions, Rounding, 0),  # torch gives loaded state the dtype of its parameter
        (convolutions, Exact, 4),
        (convolutions, Langevin, 4),  # the same random numbers again
        (Extra, torch.optim.Adam, 0),  # state of another kind
        (convolutions, torch.optim.SGD, 0),  # a gradient as large as the state
    ],
)
@pytest.mark.filterwarnings("ignore:whether the loss is a mean")  # of Extra, which counts its calls
def test_from_there_on_it_is_the_same_run(
    make: Make, optimizer: Any, changes: int, tmp_path: Path, session: Session, memory: Path
) -> None:
    expected = train(trainer(session, make, optimizer), [], stop=8)
    train(trainer(session, make, optimizer), keepers(tmp_path), stop=5)
    again = trainer(session, make, optimizer)
    assert come_back(again, tmp_path) == 5
    assert num_changes() == changes
    assert again.digest() == expected[5]
    assert len(list(memory.iterdir())) == (3 if changes else 2)  # whole, changes, notes
    assert train(again, [], stop=8)[8] == expected[8]


def test_weights_changed_behind_the_optimizer(tmp_path: Path, session: Session) -> None:
    """Steps that cannot be made again are computed again, not made wrongly."""

    def make() -> nn.Module:
        return Clamped(0.3)  # in the beginning none is as large

    digests = train(trainer(session, make), keepers(tmp_path), stop=WHOLE_EVERY)
    again = trainer(session, make)
    said: list[str] = []
    assert come_back(again, tmp_path, said.append) == 1
    assert again.digest() == digests[1]
    assert len(said) == 1
    assert f"going on from step 1, not {WHOLE_EVERY}" in said[0]


def test_nothing_to_go_on_from_leaves_a_new_trainer(tmp_path: Path, session: Session) -> None:
    """Worker 0 says that what was logged did not reach the disk."""
    train(trainer(session, convolutions), keepers(tmp_path), stop=4)
    again = trainer(session, convolutions)
    new = again.digest()
    assert recover(again, RUN, tmp_path / "none", pytest.fail, is_on_disk=lambda _: False) is None
    assert (again.step_number, again.digest()) == (0, new)


def test_parameters_are_unfrozen(tmp_path: Path, session: Session, memory: Path) -> None:
    first = trainer(session, half_frozen)

    def between(step: int) -> None:
        if step == 4:
            first.model.requires_grad_(True)

    digests = train(first, keepers(tmp_path), between=between, stop=7)
    check(session, tmp_path, digests, 7, half_frozen)
    assert num_changes() == 2  # a whole one at step 5, with moments that there were not before
    assert len(list(memory.iterdir())) == 3


@pytest.mark.parametrize(("copied", "noted"), [(1, 0), (2, 0), (2, 1)])
def test_killed_around_the_update(
    copied: int, noted: int, tmp_path: Path, session: Session
) -> None:
    """Of step 4: it is complete where both have its gradient, and one has ended it."""
    first = trainer(session, convolutions)
    those = keepers(tmp_path, 2)
    digests = train(first, those, stop=3)
    with ExitStack() as stack:
        for keeper in those[:copied]:
            stack.enter_context(keeper.around_update(first, Choice()))
        for keeper in those[2 - noted :]:
            keeper.write(4, None, {"step": 4})
        trail = newest(RUN)
        assert trail is not None
        assert len(trail.changes) == (3 if noted else 2)
        assert trail.progress == {"step": 4 if noted else 3}
    if not noted:
        check(session, tmp_path, digests, 3)


def test_a_damaged_change_ends_the_way(tmp_path: Path, session: Session, memory: Path) -> None:
    digests = train(trainer(session, convolutions), keepers(tmp_path), stop=6)
    (file,) = memory.glob(f"*.{WHOLE_EVERY}")
    content = bytearray(file.read_bytes())
    content[5 * len(content) // WHOLE_EVERY - 1] ^= 1  # the fifth change, of step 6
    file.write_bytes(bytes(content))
    check(session, tmp_path, digests, 5)


def test_no_room_for_changes(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    make = ring.Ring

    def no_changes(*arguments: Any, places: int, **more: Any) -> Any:
        if places == WHOLE_EVERY:
            raise OSError(28, "No space left on device")
        return make(*arguments, places=places, **more)

    monkeypatch.setattr(step_memory, "Ring", no_changes)
    digests = train(trainer(session, convolutions), keepers(tmp_path), stop=5)
    check(session, tmp_path, digests, 5)
    assert len(list(memory.iterdir())) == 2  # whole, and notes


def test_a_step_that_was_not_kept_is_followed_by_a_whole_one(
    tmp_path: Path, session: Session
) -> None:
    first = trainer(session, convolutions)
    (keeper,) = keepers(tmp_path)
    train(first, [keeper], stop=3)
    train(first, [], stop=5)
    digests = train(first, [keeper], stop=6)
    check(session, tmp_path, digests, 6)
    assert num_changes() == 0


def test_a_step_that_changed_more_is_not_made_again_from_its_gradient(
    tmp_path: Path, session: Session
) -> None:
    """Killed at an epoch's end: one worker has noted the step, another has not kept its share."""
    first = trainer(session, convolutions)
    those = keepers(tmp_path, 2)
    digests = train(first, those, stop=3)
    first.step(next(first.batches(DATA, 0)))
    those[1]._changes.take_back()  # type: ignore[union-attr]  # killed before it wrote the state
    those[0].keep(first, {"step": 4}, is_one_update=False)
    check(session, tmp_path, digests, 3)


def test_nor_from_one_that_the_dead_left(tmp_path: Path, session: Session) -> None:
    """Killed between the update and its note, made again, and killed as above."""
    first = trainer(session, convolutions)
    digests = train(first, keepers(tmp_path, 2), stop=3)
    first.step(next(first.batches(DATA, 0)))
    second = trainer(session, convolutions)
    assert come_back(second, tmp_path) == 3
    those = keepers(tmp_path, 2)
    watch(second, those)
    second.step(next(second.batches(DATA, 0)))
    those[0].keep(second, {"step": 4}, is_one_update=False)
    check(session, tmp_path, digests, 3)


@pytest.mark.parametrize("steps", [2, 5])
def test_the_last_update_is_compared_too(steps: int, tmp_path: Path, session: Session) -> None:
    """With one change there is no later one whose weights would show that it came out otherwise."""
    TimesDrifting.calls = 0
    digests = train(trainer(session, convolutions, TimesDrifting), keepers(tmp_path), stop=steps)
    assert num_changes() == steps - 1
    again, told = trainer(session, convolutions, TimesDrifting), list[str]()
    assert come_back(again, tmp_path, told.append) == 1, "the newest whole state"
    assert again.digest() == digests[1]
    (line,) = told
    assert line.startswith(f"going on from step 1, not {steps}")
