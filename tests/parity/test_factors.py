"""Gradients as factors, with real processes: every parity case and construct with factors wherever
a layer can, at 1 (in this process), 2, 3 and 5 workers, over both links, and against a plain loop.
"""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, run
from constructs import (
    BATCH,
    CONSTRUCTS,
    Construct,
    Training,
    classify,
    first,
    plain_loop,
    train,
    training,
)
from launches import Everything, Found, launch_at
from torch import Tensor, nn

from samepath.data import seed_everything
from samepath.engine.comm.tensors import same_bits
from samepath.engine.run.session import Link, Session, start
from samepath.engine.step.factors import Factors
from samepath.strategies.choice import Choice, Synchronisation

SETTINGS: list[tuple[int, Link]] = [(2, "auto"), (3, "auto"), (5, "auto"), (3, "network")]


class Ragged(nn.Module):
    """Layers that meet other numbers of rows in every grain, and sometimes none."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.some, self.head = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        chosen = inputs[:, 0] > 0.5
        found = self.each(inputs)
        if chosen.any():
            found = found.index_add(0, chosen.nonzero()[:, 0], self.some(inputs[chosen]))
        scores: Tensor = self.head(found.tanh() + self.each(inputs[:, None, :] * 2).sum(1))
        return scores


def ragged() -> Training:
    return training(Ragged())


def late_penalty() -> Training:
    """A penalty that begins in the third step, in some grains only."""
    steps = [0]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        found = classify(model, batch)
        if steps[0] >= 2 and bool(batch[0][0, 1] > 0):
            found = found + 0.01 * first(model).weight.square().sum()  # type: ignore[arg-type]
        return found

    return training(loss=loss, before_step=lambda step: steps.__setitem__(0, step))


def stale(session: Session) -> dict[str, Any]:
    """Three batches on their way at once."""
    made = training()
    trainer = forced(session).prepare(
        made.model, made.optimizer, made.loss, batch_size=BATCH, grain_size=2
    )
    choice = Choice(synchronisation=Synchronisation(kind="stale", lag=2))
    results = [
        r
        for e in range(3)
        for s in trainer.batches(made.data, e)
        for r in trainer.advance(s, choice)
    ]
    return {"losses": [r.loss.hex() for r in results], "digest": trainer.digest(), "between": ""}


OWN = [
    Construct(name=make.__name__, verdict="same bits", words="", make=make)
    for make in (ragged, late_penalty)
]
SAME = [c for c in CONSTRUCTS.values() if c.verdict == "same bits"] + OWN


def forced(session: Session) -> Session:
    session.prepare = partial(session.prepare, factors="always")  # type: ignore[method-assign]
    return session


def everything(session: Session) -> Found:
    """Train every case and construct."""
    warnings.simplefilter("ignore")
    found = {f"case {name}": run(make, forced(session)) for name, make in CASES.items()}
    seed_everything(1)
    found["stale"] = stale(session)
    return found | {c.name: train(c, forced(session)) for c in SAME}


def run_all(link: Link, folder: str) -> None:
    """The body of every worker."""
    with start(seed=7, link=link) as session:
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(everything(session)))


@pytest.fixture(scope="module")
def alone() -> Found:
    with warnings.catch_warnings(), start(seed=7) as session:
        return everything(session)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return launch_at(SETTINGS, run_all, tmp_path_factory)


@pytest.mark.parametrize(
    "name", [*(f"case {name}" for name in CASES), *(c.name for c in SAME), "stale"]
)
def test_same_bits(name: str, alone: Found, found: Everything) -> None:
    parts = ("losses", "digests") if name.startswith("case ") else ("losses", "digest", "between")
    assert "refused" not in alone[name], alone[name]
    for (num_workers, link), workers in found.items():
        for worker in workers:
            for part in parts:
                assert worker[name][part] == alone[name][part], f"{num_workers} workers, {link}"


@pytest.mark.parametrize("construct", [c for c in SAME if c.plain], ids=lambda c: c.name)
def test_one_grain_is_a_plain_loop(construct: Construct) -> None:
    plain = plain_loop(construct)["tensors"]
    models = []

    def keep() -> object:
        models.append(construct.make())
        return models[-1]

    with warnings.catch_warnings(), start(seed=7) as session:
        warnings.simplefilter("ignore")
        kept = Construct(**{**vars(construct), "make": keep})
        result = train(kept, forced(session), grain_size=BATCH)
    assert "digest" in result, result
    model = models[0].model
    ours = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in plain.items():
        assert same_bits(value.detach(), ours[name].detach()), name


def test_the_rule_goes_by_shapes_alone() -> None:
    """Rows of the whole batch against the matrix: a large layer, and two that are too small."""
    large, small = nn.Linear(2048, 500), nn.Linear(64, 10)
    model = nn.Sequential(large, nn.Linear(500, 64), small)
    parameters = dict(model.named_parameters())
    factors = Factors(model, parameters, "auto", 32)
    assert [list(parameters)[number] for number in factors.weights] == ["0.weight"]
    with factors.of_grain(4, 32):
        assert factors.wants(0, torch.zeros(4, 2048))
        assert factors.wants(0, torch.zeros(4, 6, 2048))  # 192 rows of 2,548 against 1,024,000
        assert not factors.wants(0, torch.zeros(4, 7, 2048))
        with torch.no_grad():
            assert not factors.wants(0, torch.zeros(4, 2048))
    assert Factors(model, parameters, "never", 32).weights == []
    assert len(Factors(model, parameters, "always", 32).weights) == 3


def test_norms_of_grains_are_those_of_the_matrices() -> None:
    """The noise scale from rows, from matrices and from both."""
    for make in (training, late_penalty, ragged, CONSTRUCTS["parameter_penalty"].make):
        noises = []
        for use in ("never", "always"):
            with start(seed=7) as session:
                seed_everything(1)
                made = make()
                trainer = session.prepare(
                    made.model,
                    made.optimizer,
                    made.loss,
                    batch_size=BATCH,
                    grain_size=2,
                    factors=use,
                )
                found = []
                for share in trainer.batches(made.data, 0):
                    made.before_step(trainer.step_number)
                    found.append(trainer.step(share).noise)
                noises.append([x for n in found if n is not None for x in (n.signal, n.variance)])
        assert len(noises[0]) == 6
        assert noises[0] == pytest.approx(noises[1], rel=1e-4)
