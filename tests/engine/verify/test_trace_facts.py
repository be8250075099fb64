"""Fingerprints of a state tell apart whatever its digest does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from samepath.engine.state.state import State, digest, state_of
from samepath.engine.verify.trace import state_fingerprints

Change = Callable[[Any], None]


def count(trainer: Any) -> None:
    trainer.optimizer.state[trainer.model[0].weight]["count"] = 7


def move_schedule(trainer: Any) -> None:
    trainer.schedule.last_epoch += 1


def decay(trainer: Any) -> None:
    trainer.optimizer.param_groups[0]["weight_decay"] = 0.5


def negate_zero(trainer: Any) -> None:
    trainer.model[1].running_mean.neg_()


def fill_unsaved(trainer: Any) -> None:
    trainer.model.unsaved.fill_(2.0)


def state() -> tuple[Any, State]:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.register_buffer("unsaved", torch.zeros(2), persistent=False)

    class Trained:
        step_number = 3
        pending = ()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    trainer: Any = Trained()
    trainer.model = model
    return trainer, state_of(trainer)


@pytest.mark.parametrize("change", [count, move_schedule, decay, negate_zero, fill_unsaved])
def test_what_changes_the_digest_changes_a_fingerprint(change: Change) -> None:
    trainer, before = state()
    known, facts = digest(before), state_fingerprints(before)
    change(trainer)
    after = state_of(trainer)
    assert digest(after) != known
    assert state_fingerprints(after) != facts


def test_the_same_state_has_the_same_fingerprints() -> None:
    trainer, before = state()
    trainer.step_number += 1  # no part of the digest either
    assert digest(state_of(trainer)) == digest(before)
    assert state_fingerprints(state_of(trainer)) == state_fingerprints(before)
