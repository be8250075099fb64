"""Gradients as factors, with real processes: every parity case and construct with factors wherever
a layer can, at 1 (in this process), 2, 3 and 5 workers, over both links, and against a plain loop.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, run
from constructs import (
    BATCH,
    CONSTRUCTS,
    Batch,
    Construct,
    Training,
    bits_of,
    classify,
    plain_loop,
    train,
    training,
)
from launches import Everything, Found, launch_at
from torch import Tensor, nn

from samepath.data import seed_everything
from samepath.engine.run.session import Link, Session, start
from samepath.engine.step.factors import Factors
from samepath.strategies.choice import Choice, Synchronisation

SETTINGS: list[tuple[int, Link]] = [(2, "auto"), (5, "auto"), (3, "network")]


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

    def loss(model: Any, batch: Batch) -> Tensor:
        found = classify(model, batch)
        if steps[0] >= 2 and bool(batch[0][0, 1] > 0):
            found = found + 0.01 * model[0].weight.square().sum()
        return found

    return training(loss=loss, before_step=lambda step: steps.__setitem__(0, step))


OWN = [
    Construct(name=make.__name__, verdict="same bits", words="", make=make)
    for make in (ragged, late_penalty)
]
SAME = [c for c in CONSTRUCTS.values() if c.verdict == "same bits" and c.name != "compiled"] + OWN
"""Compiled layers have no factors, and take every process longer than all the others."""
NAMES = [*(f"case {name}" for name in CASES), *(construct.name for construct in SAME), "stale"]


def using(make: Callable[[], Training], factors: str = "always") -> Callable[[], Training]:
    def made() -> Training:
        found = make()
        return replace(found, settings={**found.settings, "factors": factors})

    return made


def stale(session: Session) -> dict[str, Any]:
    """Three batches on their way at once."""
    seed_everything(1)
    made = using(training)()
    trainer = made.prepare(session)
    choice = Choice(synchronisation=Synchronisation(kind="stale", lag=2))
    shares = (share for epoch in range(3) for share in trainer.batches(made.data, epoch))
    losses = [result.loss.hex() for share in shares for result in trainer.advance(share, choice)]
    return {"losses": losses, "digest": trainer.digest(), "between": ""}


def everything(session: Session) -> Found:
    """Train every case and construct."""
    warnings.simplefilter("ignore")
    found = {f"case {name}": run(using(make), session) for name, make in CASES.items()}
    found |= {c.name: train(replace(c, make=using(c.make)).begin(), session) for c in SAME}
    return found | {"stale": stale(session)}


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


@pytest.mark.parametrize("name", NAMES)
def test_same_bits(name: str, alone: Found, found: Everything) -> None:
    assert "refused" not in alone[name], alone[name]
    parts = ("losses", "digests") if name.startswith("case ") else ("losses", "digest", "between")
    for (num_workers, link), workers in found.items():
        for worker in workers:
            for part in parts:
                assert worker[name][part] == alone[name][part], f"{num_workers} workers, {link}"


@pytest.mark.parametrize("construct", [c for c in SAME if c.plain], ids=lambda c: c.name)
def test_one_grain_is_a_plain_loop(construct: Construct) -> None:
    plain = construct.begin()
    before = bits_of(plain)
    plain_loop(plain)
    ours = replace(construct, make=using(construct.make)).begin()
    with warnings.catch_warnings(), start(seed=7) as session:
        warnings.simplefilter("ignore")
        result = train(ours, session, grain_size=BATCH)
    assert "digest" in result, result
    assert bits_of(ours) == bits_of(plain) != before


def test_the_rule_goes_by_shapes_alone() -> None:
    """Rows of the whole batch against the matrix: a large layer, and two that are too small."""
    model = nn.Sequential(nn.Linear(2048, 500), nn.Linear(500, 64), nn.Linear(64, 10))
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


def test_layers_that_cannot_take_the_tree() -> None:
    class Other(nn.Linear):
        pass

    hooked = nn.Linear(4, 4)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    compiled = nn.Linear(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of torch.jit
        compiled.compile()
        wrapped: Any = torch.compile(nn.Linear(4, 4))
    model = nn.Sequential(Other(4, 4), hooked, frozen, compiled, nn.Linear(4, 4), wrapped)
    factors = Factors(model, dict(model.named_parameters()), "always", 2)
    assert factors.weights == [2, 8]
    seen: list[Tensor] = []
    with factors.of_grain(2, 2):
        loss = model[4](model[1](torch.ones(2, 4))).sum()
        hooked.weight.register_hook(seen.append)  # also one that comes after the forward pass
        with factors.collecting():
            loss.backward()
    assert hooked.weight.grad is not None
    assert torch.equal(seen[0], hooked.weight.grad)
    assert model[4].weight.grad is None
    (key,) = factors.grain(1.0)
    assert key.weight == 8


@pytest.mark.parametrize(
    "make", [training, late_penalty, ragged, CONSTRUCTS["parameter_penalty"].make]
)
def test_norms_of_grains_are_those_of_the_matrices(make: Callable[[], Training]) -> None:
    """The noise scale from rows, from matrices and from both."""
    noises: list[list[float]] = []
    for factors in ("never", "always"):
        with start(seed=7) as session:
            seed_everything(1)
            made = using(make, factors)()
            trainer = made.prepare(session)
            found = []
            for share in trainer.batches(made.data, 0):
                made.before_step(trainer.step_number)
                found.append(trainer.step(share).noise)
        noises.append([x for n in found if n is not None for x in (n.signal, n.variance)])
    assert len(noises[0]) == 6
    assert noises[0] == pytest.approx(noises[1], rel=1e-4)
