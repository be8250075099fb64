"""What is written down about a run, and that writing it down changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath.engine.comm.collective import Alone
from samepath.engine.comm.tensors import fingerprint
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.state import digest, state_of
from samepath.engine.verify.trace import Grains, GrainWatch, state_fingerprints


def test_fingerprints_stand_for_bits() -> None:
    base = {"x": (torch.arange(6.0), [1, None, "a"]), "y": np.arange(3)}
    assert fingerprint(base) == fingerprint(copy.deepcopy(base))
    different = [
        base | {"x": (torch.arange(6.0).double(), [1, None, "a"])},
        base | {"x": (torch.arange(6.0).reshape(2, 3), [1, None, "a"])},
        base | {"x": (torch.arange(6.0), [2, None, "a"])},
        base | {"x": (torch.arange(6.0), [1, None], "a")},
        base | {"y": np.arange(3) + 1},
    ]
    assert len({fingerprint(value) for value in [base, *different]}) == 6
    assert fingerprint(torch.tensor([0.0])) != fingerprint(torch.tensor([-0.0]))
    rows = torch.arange(6.0).reshape(2, 3)
    assert fingerprint(rows.t()) == fingerprint(rows.t().contiguous())
    assert fingerprint(rows.to_sparse()) == fingerprint(rows)
    assert fingerprint(object()) == fingerprint(object())


class Net(nn.Module):
    """A module called twice, a batch norm, an in-place operation, and code between modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.twice = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.head = nn.Linear(4, 3)
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.twice(self.twice(self.norm(inputs)))
        scores: Tensor = self.head(F.dropout(hidden, 0.3))
        return scores


DATA = torch.randn(30, 4, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 3


def prepare() -> Trainer:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    return Session(Alone(torch.device("cpu")), seed=0, launcher="alone").prepare(
        model,
        optimizer,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        batch_size=12,
        grain_size=2,
        schedule=torch.optim.lr_scheduler.StepLR(optimizer, 1),
    )


def train(watch_step: int | None) -> tuple[str, Grains]:
    """Three steps of six grains; the digest, and what was seen."""
    seen: Grains = {}
    trainer = prepare()
    if watch_step is not None:
        GrainWatch(trainer, watch_step, seen)
    for share in trainer.batches(DATA, 0):
        trainer.step(share)
    trainer.evaluate(DATA)
    return digest(state_of(trainer)), seen


def test_looking_changes_no_bits() -> None:
    unseen, _ = train(None)
    assert train(2)[0] == unseen


def test_one_step_is_seen_with_everything_in_order() -> None:
    _, seen = train(2)
    assert sorted(seen) == [f"train {grain}" for grain in range(6)]
    events = [event[:3] for event in seen["train 0"]]
    assert events[:4] == [
        ("loaded", "", None),
        ("weight", "", None),
        ("input", "", None),
        ("input", "norm", ""),
    ]
    assert events.count(("output", "twice.0", "twice")) == 2
    assert events.index(("loss", "", None)) < events.index(("backward", "head", None))
    assert events.index(("backward", "head", None)) < events.index(
        ("gradient", "head.weight", None)
    )
    assert events.count(("gradient", "twice.0.weight", None)) == 1, "both uses, added"
    assert ("buffer", "norm.running_mean", None) in events


def test_validation_after_the_step_is_seen() -> None:
    _, seen = train(3)
    assert {grain.split()[0] for grain in seen} == {"train", "valid"}
    assert seen["valid 0"][-1].point == "metrics"


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a count of the optimizer": lambda t: t.optimizer.state[t.model.head.weight].update(count=7),
    "the schedule": lambda t: setattr(t.schedule, "last_epoch", 9),
    "a setting": lambda t: t.optimizer.param_groups[0].update(weight_decay=0.5),
    "the sign of zero": lambda t: t.model.norm.running_mean.neg_(),
    "a buffer that is not saved": lambda t: t.model.unsaved.fill_(2.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_the_digest_changes_a_fingerprint(change: Callable[[Any], Any]) -> None:
    trainer = prepare()
    known, facts = digest(state_of(trainer)), state_fingerprints(state_of(trainer))
    trainer.step_number += 1  # no part of either
    assert (digest(state_of(trainer)), state_fingerprints(state_of(trainer))) == (known, facts)
    change(trainer)
    assert digest(state_of(trainer)) != known
    assert state_fingerprints(state_of(trainer)) != facts
