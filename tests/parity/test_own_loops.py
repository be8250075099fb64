"""Loops of one's own: several trainers, folds, resuming, at 1, 2, 3 and 5 workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from samepath import Session, start
from samepath.engine.launch.launch import launch
from samepath.engine.run.trainer import Trainer
from samepath.errors import SamepathError, UserError

Body = Callable[[Session], Any]


def at(body: Body, num_workers: int, folder: Path) -> list[Any]:
    """What a body returns, as JSON, on each of so many workers."""
    launch(_run, (body, folder), num_workers)
    paths = [folder / f"worker-{worker}.json" for worker in range(num_workers)]
    return [json.loads(path.read_text()) for path in paths]


def _run(body: Body, folder: Path) -> None:
    with start(seed=3) as session:
        found = body(session)
        (folder / f"worker-{session.worker}.json").write_text(json.dumps(found))


def same_everywhere(body: Body, folder: Path, counts: tuple[int, ...] = (1, 2, 3, 5)) -> Any:
    """What a body returns on every worker at every count, which is one thing."""
    (expected,) = at(body, counts[0], folder)
    for count in counts[1:]:
        assert at(body, count, folder) == [expected] * count
    return expected


def vectors(number: int = 60) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(5)
    inputs = torch.randn(number, 6, generator=made)
    return inputs, inputs.abs().argmax(1)


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 6))


# ---- several trainers


def gan(session: Session) -> list[str]:
    """Noise is drawn in the losses; both models have batch norm, and are parts of one module."""
    both = nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)),
            "critic": nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)),
        }
    )
    generator: Any = both["generator"]
    critic: Any = both["critic"]

    def fake(both: Any, number: int) -> Tensor:
        made: Tensor = both["generator"](torch.randn(number, 3))
        return made

    def critic_loss(both: Any, batch: Tensor) -> Tensor:
        with torch.no_grad():
            made = fake(both, len(batch))
        return F.softplus(-both["critic"](batch)).mean() + F.softplus(both["critic"](made)).mean()

    def generator_loss(both: Any, batch: Tensor) -> Tensor:
        return F.softplus(-both["critic"](fake(both, len(batch)))).mean()

    trainers = [
        session.prepare(
            both, torch.optim.Adam(part.parameters()), loss, batch_size=20, grain_size=4
        )
        for part, loss in ((critic, critic_loss), (generator, generator_loss))
    ]
    for epoch in range(2):
        for batch in trainers[0].batches(vectors()[0], epoch):
            for trainer in trainers:
                trainer.step(batch)
    for norm in (generator[1], critic[1]):
        assert int(norm.num_batches_tracked) > 0
    return [trainer.digest() for trainer in trainers]


def test_a_gan_with_batch_norm_and_noise(tmp_path: Path) -> None:
    assert len(set(same_everywhere(gan, tmp_path))) == 2


def mean_teacher(session: Session) -> list[str]:
    """A teacher that follows its student between steps; saved and resumed with it."""
    pair = nn.ModuleDict({"student": dropping(), "teacher": dropping().requires_grad_(False)})
    student: Any = pair["student"]
    teacher: Any = pair["teacher"]

    def loss(pair: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        agrees = F.mse_loss(pair["student"](batch[0]), pair["teacher"](batch[0]))
        return classify(pair["student"], batch) + agrees

    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    trainer = session.prepare(pair, optimizer, loss, batch_size=20, grain_size=4)
    before = teacher[0].weight.clone()
    for batch in trainer.batches(vectors(), 0):
        trainer.step(batch)
        with torch.no_grad():
            for follows, leads in zip(teacher.parameters(), student.parameters(), strict=True):
                follows.lerp_(leads, 0.1)
    assert not torch.equal(teacher[0].weight, before)
    return [trainer.digest()]


def test_a_teacher_that_follows_its_student(tmp_path: Path) -> None:
    same_everywhere(mean_teacher, tmp_path, (1, 2, 3))


def test_batch_norm_of_a_model_that_is_not_the_trainers_is_refused() -> None:
    outside = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        unused: Tensor = outside(batch[0]).sum().detach()
        return classify(model, batch) + 0 * unused

    _refuses_outside(loss)


OUTSIDE = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))


def global_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    unused: Tensor = OUTSIDE(batch[0]).sum().detach()
    return classify(model, batch) + 0 * unused


def test_a_global_one_is_refused_too() -> None:
    _refuses_outside(global_loss)


def _refuses_outside(loss: Callable[..., Tensor]) -> None:
    with start() as session:
        model = dropping()
        trainer = session.prepare(model, torch.optim.SGD(model.parameters()), loss, batch_size=20)
        with pytest.raises(UserError, match="num_batches_tracked' of a module that is"):
            trainer.step(next(trainer.batches(vectors(), 0)))


def drawn(trainer: Trainer) -> list[float]:
    """Numbers that a step draws in its first grain, and between steps."""
    found: list[float] = []

    def note(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        found.append(float(torch.rand(())))
        return classify(model, batch)

    trainer.grain_loss = note
    trainer.step(next(trainer.batches(vectors(), 0)))
    return [found[0], float(torch.rand(()))]


def test_trainers_meet_random_numbers_of_their_own() -> None:
    def prepare(session: Session, **given: Any) -> Trainer:
        model = dropping()
        optimizer = torch.optim.SGD(model.parameters())
        return session.prepare(model, optimizer, classify, batch_size=20, **given)

    with start(seed=3) as session:
        first, second, named = prepare(session), prepare(session), prepare(session, name="fold")
        numbers = [drawn(trainer) for trainer in (first, second, named)]
    with start(seed=3) as session:
        again = [drawn(prepare(session, name="fold")), drawn(prepare(session, name=""))]
    assert len({number for pair in numbers for number in pair}) == 6
    assert again == [numbers[2], numbers[0]], "a name decides, not the place"


def folds(session: Session) -> list[float]:
    """Folds of one's own, with models, splits and scales drawn without a seed between steps."""
    inputs, labels = vectors()
    found = []
    for _ in range(3):
        order = torch.randperm(len(inputs))
        model = dropping()
        trainer = session.prepare(
            model,
            torch.optim.SGD(model.parameters(), lr=float(torch.rand(()))),
            classify,
            batch_size=16,
            grain_size=3,
        )
        train, valid = order[:40], order[40:]
        for epoch in range(2):
            for batch in trainer.batches((inputs[train], labels[train]), epoch):
                trainer.step(batch)
        found.append(trainer.evaluate((inputs[valid], labels[valid]))["loss"])
    return found


def test_folds_without_seeds(tmp_path: Path) -> None:
    assert len(set(same_everywhere(folds, tmp_path, (1, 2, 5)))) == 3


# ---- saving and going on


class Counting(torch.optim.SGD):
    """Keeps a counter and a mean outside its state, as optimizers of one's own do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.calls, self.means = 0, {"gradient": torch.zeros(())}

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        (weight, *_), mean = self.param_groups[0]["params"], self.means["gradient"]
        mean.mul_(0.9).add_(weight.grad.mean())
        self.param_groups[0]["lr"] = 0.1 / self.calls + 0.01 * float(mean)
        return super().step(closure)


def prepared(session: Session, **given: Any) -> Trainer:
    torch.manual_seed(1)
    model = dropping()
    optimizer = given.pop("optimizer", torch.optim.SGD)(model.parameters())
    if "schedule" in given:
        given["schedule"] = given["schedule"](optimizer)
    return session.prepare(model, optimizer, classify, batch_size=20, **given)


def go(trainer: Trainer, steps: int, after_step: Callable[[], None] = lambda: None) -> Trainer:
    for epoch in range(9):
        for batch in trainer.batches(vectors(), epoch):
            if trainer.step_number >= steps:
                return trainer
            trainer.step(batch)
            after_step()
    return trainer


def test_attributes_of_an_optimizer_are_resumed(tmp_path: Path) -> None:
    with start() as session:
        straight = go(prepared(session, optimizer=Counting, name="a"), 7)
        go(prepared(session, optimizer=Counting, name="a"), 4).save(tmp_path)
        resumed = prepared(session, optimizer=Counting, name="another")
        assert resumed.resume(tmp_path)
        optimizer = resumed.optimizer
        assert isinstance(optimizer, Counting)
        assert optimizer.calls == 4
        assert go(resumed, 7).digest() == straight.digest(), "dropout too goes on by the old name"
        assert optimizer.calls == 7


def test_a_schedule_stepped_by_hand_is_resumed_or_refused(tmp_path: Path) -> None:
    def halve(optimizer: torch.optim.Optimizer) -> StepLR:
        return StepLR(optimizer, 2, 0.5)

    with start() as session:
        unknown = prepared(session)
        schedule = halve(unknown.optimizer)
        for use in (unknown.save, unknown.resume):
            with pytest.raises(UserError, match=r"give it to prepare\(schedule="):
                use(tmp_path / "unknown")
        assert not (tmp_path / "unknown").exists()

        made = {"schedule": halve, "schedule_every": "epoch", "name": "a"}

        def trained(trainer: Trainer, steps: int) -> Trainer:
            schedule = trainer.schedule
            assert schedule is not None
            return go(trainer, steps, schedule.step)

        straight = trained(prepared(session, **made), 7)
        trained(prepared(session, **made), 3).save(tmp_path)
        resumed = prepared(session, **made)
        assert resumed.resume(tmp_path)
        assert trained(resumed, 7).digest() == straight.digest()
        assert straight.optimizer.param_groups[0]["lr"] == 1e-3 * 0.5**3
        assert schedule.last_epoch == 0


# ---- what cannot work is said in a line


def detached(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return classify(model, batch).detach()


def backward_inside(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = classify(model, batch)
    loss.backward()
    return loss


def backward_and_detached(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return backward_inside(model, batch).detach()


WRONG = {
    detached: "the loss of a whole batch has no gradient",
    backward_inside: "ran a backward pass of its own",
    backward_and_detached: "ran a backward pass of its own",
}


def wrong(session: Session) -> list[str]:
    said = []
    for loss in WRONG:
        torch.manual_seed(1)  # a step that was refused leaves generators as they are
        model = dropping()
        trainer = session.prepare(model, torch.optim.SGD(model.parameters()), loss, batch_size=20)
        with pytest.raises(UserError) as error:
            trainer.step(next(trainer.batches(vectors(), 0)))
        said.append(str(error.value))
    return said


@pytest.mark.parametrize("num_workers", [1, 2])
def test_wrong_losses_are_named(num_workers: int, tmp_path: Path) -> None:
    for said in at(wrong, num_workers, tmp_path):
        for words, text in zip(WRONG.values(), said, strict=True):
            assert words in text
            assert "\n" not in text


def test_a_misspelt_setting_is_named() -> None:
    with start() as session, pytest.raises(SamepathError, match="did you mean 'grain_size'"):
        prepared(session, grainsize=4)
