"""What is written down about a run, and that writing it down changes nothing."""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath.engine.comm.collective import Alone
from samepath.engine.comm.tensors import fingerprint
from samepath.engine.run.session import Session
from samepath.engine.state.state import digest, state_of
from samepath.engine.verify.trace import Grains, GrainWatch


def test_fingerprints_stand_for_bits() -> None:
    base = {"x": (torch.arange(6.0), [1, None, "a"]), "y": np.arange(3)}
    assert fingerprint(base) == fingerprint(copy.deepcopy(base))
    different = [
        {"x": (torch.arange(6.0).double(), [1, None, "a"]), "y": np.arange(3)},
        {"x": (torch.arange(6.0).reshape(2, 3), [1, None, "a"]), "y": np.arange(3)},
        {"x": (torch.arange(6.0), [2, None, "a"]), "y": np.arange(3)},
        {"x": (torch.arange(6.0), [1, None], "a"), "y": np.arange(3)},
        {"x": (torch.arange(6.0), [1, None, "a"]), "y": np.arange(3) + 1},
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

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.twice(self.twice(self.norm(inputs)))
        scores: Tensor = self.head(F.dropout(hidden, 0.3))
        return scores


def train(watch_step: int | None) -> tuple[str, Grains]:
    """Three steps of six grains; the digest, and what was seen."""
    seen: Grains = {}
    torch.manual_seed(0)
    model = Net()
    data = torch.randn(30, 4), torch.arange(30) % 3
    trainer = Session(Alone(torch.device("cpu")), seed=0, launcher="alone").prepare(
        model,
        torch.optim.Adam(model.parameters()),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        batch_size=12,
        grain_size=2,
    )
    if watch_step is not None:
        GrainWatch(trainer, watch_step, seen)
    for share in trainer.batches(data, 0):
        trainer.step(share)
    trainer.evaluate(data)
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
