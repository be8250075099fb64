"""What adaptive strategies look at: true to other ways of measuring it, and without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from explicit_hessian import explicit_hessian
from torch import Tensor, nn

from samepath import start
from samepath.data import Source
from samepath.engine.run.measure import CURVATURE_GRAINS, choose_sample, curvature, measure, noise
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.keys import key
from samepath.plan import Batch, epoch_order

Data = tuple[Tensor, Tensor]
SEED = 7


@pytest.fixture
def session() -> Iterator[Session]:
    with start(seed=SEED) as session:
        yield session


def classify(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def examples(count: int, dtype: torch.dtype = torch.float32) -> Data:
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 6, generator=made, dtype=torch.float64).to(dtype)
    return inputs, inputs[:, :4].argmax(1)


def dense(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4)
    ).to(dtype)


def trainer_of(session: Session, model: nn.Module, data: Data, **settings: Any) -> Trainer:
    """After an epoch of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given: dict[str, Any] = {"batch_size": 20, "grain_size": 5, "loss": classify, "name": ""}
    given |= settings
    trainer = session.prepare(model, optimizer, **given)
    for share in trainer.batches(data, 0):
        trainer.step(share)
    return trainer


# ---- curvature


def top_eigenvalue(model: nn.Module, batch: Data) -> float:
    """The eigenvalue largest in size of the explicit Hessian."""
    whole = explicit_hessian(model, lambda m: classify(m, batch))
    return float(torch.linalg.eigvalsh(whole.double()).abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_curvature_is_the_top_eigenvalue_of_the_explicit_hessian(
    dtype: torch.dtype, session: Session
) -> None:
    """Within 2%, for a smooth model (a kink, as ReLU has, is counted by differences of gradients
    and not by derivatives of them)."""
    data = examples(100, dtype)
    trainer = trainer_of(session, dense(dtype), data)
    order = epoch_order(100, key("measure", SEED), 0)[: 5 * CURVATURE_GRAINS]
    sample = torch.from_numpy(order.copy())
    expected = top_eigenvalue(trainer.model, (data[0][sample], data[1][sample]))
    assert curvature(trainer, trainer.source(data))["curvature"] == pytest.approx(
        expected, rel=0.02
    )
    elsewhere = top_eigenvalue(trainer.model, (data[0][:20], data[1][:20]))
    assert elsewhere != pytest.approx(expected, rel=0.02), "2% tells samples apart"


class Quadratic(nn.Module):
    """A loss whose Hessian is known: 3, 1 and -5 on its diagonal."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), start))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        curved = torch.tensor([3.0, 1.0, -5.0]) * self.weight.square()
        return 0.5 * curved.sum() + 0.0 * inputs.sum()


def curvature_of(session: Session, model: nn.Module, loss: Any, data: Tensor) -> float:
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    trainer = session.prepare(model, optimizer, loss, batch_size=4, grain_size=2)
    return curvature(trainer, trainer.source(data))["curvature"]


@pytest.mark.parametrize("begin", [0.5, 0.0])
def test_curvature_of_a_known_hessian(begin: float, session: Session) -> None:
    """The size counts, not the sign; weights that are all zero are no trouble."""
    found = curvature_of(session, Quadratic(begin), lambda m, b: m(b), torch.zeros(8, 1))
    assert found == pytest.approx(5.0, rel=1e-4)


def test_curvature_of_a_flat_loss_is_zero_and_one_that_overflows_is_not_a_number(
    session: Session,
) -> None:
    data, model = examples(40)[0], nn.Linear(6, 1)
    flat = curvature_of(session, model, lambda m, b: m(b).mean(), data)
    assert flat == pytest.approx(0.0, abs=1e-3)
    before = model.weight.detach().clone()
    assert np.isnan(curvature_of(session, model, lambda m, b: (1e30 * m(b)).square().mean(), data))
    assert torch.equal(model.weight, before)


# ---- noise


def nearest(model: nn.Module, batch: Tensor) -> Tensor:
    """Half the squared distance of the weights to an example: the gradient is weight - example."""
    assert isinstance(model, Centre)
    return 0.5 * (model.weight - batch).square().sum(1).mean()


class Centre(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.float64))


def centre_trainer(session: Session, width: int, grain_size: int) -> Trainer:
    model = Centre(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return session.prepare(
        model, optimizer, nearest, batch_size=8 * grain_size, grain_size=grain_size
    )


def test_noise_agrees_with_gradients_of_single_examples(session: Session) -> None:
    """The same 512 examples, their covariance and mean directly (within 5% and 2%)."""
    made = torch.Generator().manual_seed(2)
    scales = torch.rand(200, generator=made, dtype=torch.float64)
    data = 0.3 + scales * torch.randn(600, 200, generator=made, dtype=torch.float64)
    order = epoch_order(600, key("measure", SEED), 0)[:512]
    gradients = -data[torch.from_numpy(order.copy())]
    variance = float(gradients.var(0).sum())
    signal = float(gradients.mean(0).square().sum()) - variance / 512
    trainer = centre_trainer(session, 200, 32)
    found = noise(trainer, trainer.source(data))
    assert found["noise_variance"] == pytest.approx(variance, rel=0.05)
    assert found["noise_signal"] == pytest.approx(signal, rel=0.02)


def test_noise_without_signal_averages_to_none(session: Session) -> None:
    """Examples around zero: over 40 sets of data the signal's mean is near 0, and some are
    negative, which is why a strategy averages before it divides."""
    trainer = centre_trainer(session, 20, 8)
    signals = []
    for seed in range(40):
        made = torch.Generator().manual_seed(seed)
        data = torch.randn(128, 20, generator=made, dtype=torch.float64)
        signals.append(noise(trainer, trainer.source(data))["noise_signal"])
    assert min(signals) < 0 < max(signals)
    assert np.mean(signals) == pytest.approx(0.0, abs=3 * np.std(signals) / 40**0.5)


def test_noise_of_a_single_grain_is_unknown_and_taken_for_none(session: Session) -> None:
    data = torch.ones(5, 20, dtype=torch.float64)
    trainer = centre_trainer(session, 20, 4)
    found = noise(trainer, trainer.source(data))
    assert (found["noise_gradients"], found["noise_variance"]) == (1, 0.0)
    assert found["noise_signal"] == pytest.approx(20.0)


def test_measures_say_what_they_cost(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many gradients as were computed, each of so many examples."""
    data = examples(100)
    trainer = trainer_of(session, dense(), data)
    sizes: list[int] = []
    original = trainer.gradient

    def gradient(source: Source, batch: Batch) -> float:
        sizes.append(len(batch.examples))
        return original(source, batch)

    monkeypatch.setattr(trainer, "gradient", gradient)
    for name, look in (("noise", noise), ("curvature", curvature)):
        sizes.clear()
        found = look(trainer, trainer.source(data))
        assert found[f"{name}_gradients"] == len(sizes) > 0
        assert set(sizes) == {found[f"{name}_gradient_examples"]}


# ---- without a trace


def test_measuring_changes_nothing(session: Session) -> None:
    """Batch norm and dropout on, a gradient under way; and what follows is what would have."""

    def model() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4)
        )

    data = examples(50)
    digests = []
    for looks in (False, True):
        trainer = trainer_of(session, model(), data)
        if looks:
            before = trainer.digest()
            buffers = [b.clone() for b in trainer.model.buffers()]
            found = measure(trainer, trainer.source(data), ("noise", "curvature"))
            assert found.keys() >= {"noise_variance", "noise_signal", "curvature"}
            assert all(np.isfinite(value) and value for value in found.values())
            assert trainer.digest() == before
            for was, now in zip(buffers, trainer.model.buffers(), strict=True):
                assert torch.equal(was, now)
            assert all(p.grad is None for p in trainer.model.parameters())
            assert trainer.model.training
            assert measure(trainer, trainer.source(data), ("noise", "curvature")) == found
        for share in trainer.batches(data, 1):
            trainer.step(share)
        digests.append(trainer.digest())
    assert digests[0] == digests[1]


def test_the_sample_is_whole_grains_chosen_by_the_seed() -> None:
    def rows(most: int, *, of: int = 100, seed: int = 1) -> list[int]:
        return [int(row) for row in choose_sample(of, most, 8, seed=seed).examples]

    sample = rows(50)
    assert (len(sample), choose_sample(100, 50, 8, seed=1).num_grains) == (48, 6)
    assert rows(30) == sample[:24]
    assert rows(50, seed=2) != sample
    assert len(rows(50, of=5)) == 5
    assert len(rows(3)) == 8
