"""What an own loop may be told: the same as a recipe, and the same again when it is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import samepath
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.errors import UserError
from samepath.recipe import Recipe

DATA = torch.arange(52.0).view(13, 4) / 52


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    found: Tensor = model(batch).square().mean()
    return found


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with samepath.start(seed=3) as started:
        yield started


def prepare(session: Session, **settings: Any) -> Trainer:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_hand = {"batch_size": 6, "grain_size": 2}
    if kind := settings.pop("schedule", None):
        settings["schedule"] = kind(optimizer)
    return session.prepare(model, optimizer, loss, **(by_hand | settings))


NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"schedule_every": "batch"}, "schedule_every is 'batch'; use 'step' or 'epoch'"),
    "ascent": ({"clip_norm": -1.0}, "clip_norm is -1.0; it must be a number above 0"),
    "no norm": ({"clip_norm": 0}, "clip_norm is 0; it must"),
    "a text": ({"clip_norm": "1"}, "clip_norm is '1'; it must be a number"),
    "loaders": ({"loader_workers": -1}, "loader_workers is -1; it must be a whole number"),
    "batch": ({"batch_size": 0}, "batch_size is 0; it must be a whole number, at least 1"),
    "half a batch": ({"batch_size": 6.5}, "batch_size is 6.5"),
    "grain": ({"grain_size": 0}, "grain_size is 0; it must be a whole number, at least 1"),
    "both": (
        {"max_workers": 2},
        "grain_size is 2, but max_workers is 2, which is a grain_size of 3; give one of the two",
    ),
    "more than examples": (
        {"max_workers": 7, "grain_size": None},
        "max_workers is 7, and a batch has 6 examples; give a number from 1 to 6",
    ),
    "no worker": ({"max_workers": 0}, "max_workers is 0; it must be a whole number, at least 1"),
    "half a worker": ({"max_workers": 1.5}, "max_workers is 1.5; it must be a whole number"),
    "drop_last": ({"drop_last": "yes"}, "drop_last is 'yes'; use True or False"),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_refused_in_own_loops_and_recipes(what: str, session: Session) -> None:
    settings, says = NONSENSE[what]
    with pytest.raises(UserError, match=says):
        prepare(session, **settings)
    sane: dict[str, Any] = {"batch_size": 6, "grain_size": 2}
    with pytest.raises(UserError, match=says):
        Recipe(
            model=lambda: nn.Linear(4, 2),
            train=DATA,
            loss=loss,
            optimizer=torch.optim.SGD,
            epochs=1,
            **(sane | settings),
        )


@pytest.mark.parametrize(
    ("batch", "given", "size"),
    [
        (6, {"max_workers": 3}, 2),
        (6, {"max_workers": 1}, 6),
        (7, {"max_workers": 4}, 2),
        (9, {"max_workers": 4}, 2),
        (128, {"max_workers": np.int64(4)}, 32),
        (128, {}, 16),
        (6, {}, 1),
        (128, {"grain_size": 128}, 128),
    ],
)
def test_the_grain_of_the_most_workers(
    batch: int, given: dict[str, Any], size: int, session: Session
) -> None:
    trainer = prepare(session, batch_size=batch, **{"grain_size": None, **given})
    assert trainer.settings.grain_size == size
    found = Recipe(
        model=lambda: nn.Linear(4, 2),
        train=DATA,
        loss=loss,
        optimizer=torch.optim.SGD,
        epochs=1,
        batch_size=batch,
        **given,
    )
    assert found.grain_size == size
    assert replace(found, epochs=2).grain_size == size


def test_the_most_workers_is_the_grain_on_resume(session: Session, tmp_path: Path) -> None:
    trainer = prepare(session)
    train(trainer, 0)
    trainer.save(tmp_path)
    again = prepare(session, grain_size=None, max_workers=3)
    assert again.resume(tmp_path)
    assert again.digest() == trainer.digest()
    with pytest.raises(UserError, match=r"cannot resume: grain_size \(was 2, now 3\)"):
        prepare(session, grain_size=None, max_workers=2).resume(tmp_path)


def test_names_that_there_are_none_of(session: Session) -> None:
    with pytest.raises(UserError, match=r"no setting 'clip_nrom'; did you mean 'clip_norm'\?"):
        prepare(session, clip_nrom=1.0)
    with pytest.raises(UserError, match=r"no setting 'scheduler'; did you mean 'schedule'\?"):
        prepare(session, scheduler=None)
    with pytest.raises(UserError, match=r"no setting 'xyz'; there are: schedule, .*collate"):
        prepare(session, xyz=1.0)
    with pytest.raises(UserError, match=r"samepath\.start\(seed=\.\.\.\)"):
        prepare(session, seed=1)


def test_whole_numbers_of_numpy_are_whole_numbers(session: Session) -> None:
    trainer = prepare(session, batch_size=np.int64(6), loader_workers=np.int32(0))
    assert type(trainer.settings.batch_size) is int
    assert type(trainer.settings.loader_workers) is int


def test_plateau_by_step_is_refused(session: Session) -> None:
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(UserError, match=r"ReduceLROnPlateau.*use schedule_every='epoch'"):
        prepare(session, schedule=plateau, schedule_every="step")
    prepare(session, schedule=plateau).end_epoch(1.0)


def train(trainer: Trainer, epoch: int) -> int:
    return len([trainer.step(batch) for batch in trainer.batches(DATA, epoch)])


OTHERS: dict[str, Any] = {
    "batch_size": 4,
    "grain_size": 3,
    "exact": False,
    "clip_norm": 1.5,
    "autocast": torch.bfloat16,
    "schedule_every": "step",
    "drop_last": True,
}


@pytest.mark.parametrize("name", OTHERS)
def test_resume_with_other_settings(name: str, session: Session, tmp_path: Path) -> None:
    trainer = prepare(session)
    train(trainer, 0)
    trainer.save(tmp_path)
    with pytest.raises(UserError, match=rf"cannot resume: {name} \(was .*, now .*\) would change"):
        prepare(session, **{name: OTHERS[name]}).resume(tmp_path)
    again = prepare(session, loader_workers=1, follow_speed=False)
    assert again.resume(tmp_path)
    assert again.digest() == trainer.digest()


def test_resume_with_another_seed(session: Session, tmp_path: Path) -> None:
    prepare(session).save(tmp_path)
    other = Session(session.collective, seed=4)
    with pytest.raises(UserError, match=r"cannot resume: seed \(was 3, now 4\)"):
        prepare(other).resume(tmp_path)


def test_drop_last_leaves_the_short_batch_out(session: Session) -> None:
    """13 examples in batches of 6 leave one over."""
    assert train(prepare(session), 0) == 3
    assert train(prepare(session, drop_last=True), 0) == 2
