"""The loss of a sample: its products, eigenvalues and trace are those of the explicit Hessian."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from explicit_hessian import explicit_hessian
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from samepath import start
from samepath.data import as_source
from samepath.engine.run.lanczos import top_eigenpairs
from samepath.engine.run.measure import choose_sample, trained
from samepath.engine.run.session import Session
from samepath.errors import UserError
from samepath.insight.curvature.hessian import (
    SampleLoss,
    estimate_trace,
    flatten,
    refuse_undifferentiable,
    unflatten,
)

Data = tuple[Tensor, Tensor]
SAMPLE = choose_sample(30, 12, 4, seed=0)
GRAINS = [torch.from_numpy(SAMPLE.grain(number).copy()) for number in range(3)]


@pytest.fixture
def session() -> Iterator[Session]:
    with start(seed=3) as session:
        yield session


def classify(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def examples(count: int = 30, dtype: torch.dtype = torch.float64) -> Data:
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 5, generator=made, dtype=torch.float64)
    return inputs.to(dtype), inputs[:, :3].argmax(1)


def rows_of(data: Data, rows: Tensor) -> Data:
    return data[0][rows], data[1][rows]


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """With what differs between training and evaluation, and after some use of it."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3)
    ).to(dtype)
    model(torch.randn(20, 5, dtype=dtype) * 2.0 + 1.0)
    return model


def sample_loss(session: Session, model: nn.Module, data: Data, **also: Any) -> SampleLoss:
    loss, source = also.pop("loss", classify), as_source(data, seed=0)
    return SampleLoss(session.collective, model, loss, source, SAMPLE, **also)


def normal(length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.Generator().manual_seed(4)
    return torch.randn(length, generator=made, dtype=torch.float64).to(dtype)


def test_products_are_those_of_the_explicit_hessian(session: Session) -> None:
    """In evaluation mode, over three grains, on the sample and nothing else; a loss elsewhere
    leaves the model where it is."""
    model, data = network(), examples()
    loss = sample_loss(session, model, data)
    sampled = rows_of(data, torch.cat(GRAINS))
    whole = explicit_hessian(model, lambda m: classify(m, sampled))
    vector = normal(len(whole))
    assert torch.allclose(loss.product(vector), whole @ vector, rtol=1e-9, atol=1e-12)
    here = loss.loss_at(loss.weights)
    assert here == pytest.approx(classify(model, sampled).item())
    assert loss.loss_at(2.0 * loss.weights) != here
    assert torch.equal(flatten(trained(model)), loss.weights)
    elsewhere = explicit_hessian(model, lambda m: classify(m, rows_of(data, torch.arange(12))))
    in_training = explicit_hessian(model.train(), lambda m: classify(m, sampled))
    for other in (elsewhere, in_training):
        assert not torch.allclose(whole @ vector, other @ vector, rtol=0.1)


def test_a_recipes_weight_counts_as_in_training(session: Session) -> None:
    """Grains count by their labels of class 0; one that has none does not count at all."""
    inputs, labels = examples()
    labels[GRAINS[1]] = 1
    model, grains = network(), [rows_of((inputs, labels), rows) for rows in GRAINS]

    def weight(batch: Data) -> float:
        return float((batch[1] == 0).sum())

    def value(model: nn.Module) -> Tensor:
        terms = [weight(grain) * classify(model, grain) for grain in grains]
        return torch.stack(terms).sum() / sum(map(weight, grains))

    assert weight(grains[0]) != weight(grains[2]) != weight(grains[1]) == 0.0
    loss = sample_loss(session, model, (inputs, labels), weight=weight)
    whole = explicit_hessian(model, value)
    vector = normal(len(whole))
    assert torch.allclose(loss.product(vector), whole @ vector, rtol=1e-9, atol=1e-12)
    assert loss.loss_at(loss.weights) == pytest.approx(value(model).item())
    with pytest.raises(UserError, match="not all 0"):
        sample_loss(session, model, (inputs, labels), weight=lambda batch: 0.0)


class Partly(nn.Module):
    """A parameter the loss does not use, one in which it is linear, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(5, 3, dtype=torch.float64)
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.linear = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.used(inputs) * self.frozen[0]
        return found


def test_parameters_that_curve_nothing_have_zeros(session: Session) -> None:
    model = Partly()

    def loss(_: nn.Module, batch: Data) -> Tensor:
        return classify(model, batch) + model.linear.sum()

    product = sample_loss(session, model, examples(), loss=loss).product(normal(22))
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parts = dict(zip(names, unflatten(product, trained(model)), strict=True))
    assert {name for name, part in parts.items() if part.any()} == {"used.weight", "used.bias"}


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-8), (torch.float32, 1e-4)])
def test_eigenvalues_and_trace_of_a_network(
    dtype: torch.dtype, close: float, session: Session
) -> None:
    model, data = network(dtype), rows_of(examples(), torch.cat(GRAINS))
    loss = sample_loss(session, model, examples(dtype=dtype))
    exact = network().eval()
    exact.load_state_dict({n: t.double() for n, t in model.state_dict().items()})
    whole = explicit_hessian(exact, lambda m: classify(m, data))
    pairs = top_eigenpairs(
        lambda v: [loss.product(*v)], [normal(len(whole), dtype)], 20, relative=close
    )
    values = torch.linalg.eigvalsh(whole)
    expected = values[values.abs().argsort(descending=True)][:20]
    assert np.allclose(pairs.values, expected, rtol=close, atol=close * float(expected[0]))
    assert pairs.num_products < len(whole)
    trace, error, _ = estimate_trace(loss.product, pairs.values, *pairs.vectors)
    assert 0.0 < error < 0.2 * float(whole.trace())
    assert abs(trace - float(whole.trace())) < 3.0 * error


def test_the_traces_error_is_what_it_says() -> None:
    """Over many seeds as wide as the truth spreads; and far smaller for what is known already."""
    values = torch.tensor([50.0, -20.0, *(1.0 / n for n in range(1, 59))], dtype=torch.float64)
    turn = torch.linalg.qr(normal(60 * 60).reshape(60, 60)).Q
    matrix = turn @ torch.diag(values) @ turn.T

    def estimates(num: int, seeds: int = 60) -> list[tuple[float, float]]:
        known = values[:num].tolist(), turn.T[:num]
        made = [estimate_trace(lambda v: matrix @ v, *known, seed=seed) for seed in range(seeds)]
        return [(found - float(values.sum()), said) for found, said, _ in made]

    errors = estimates(10)
    covered = sum(abs(error) < 2.0 * said for error, said in errors)
    assert 0.85 * 60 <= covered < 60
    assert np.mean([said for _, said in errors]) < 0.1 * np.mean([s for _, s in estimates(1)])
    assert estimates(60, seeds=1)[0] == pytest.approx((0.0, 0.0), abs=1e-9)


def test_flat_and_back() -> None:
    tensors = [torch.arange(6.0).reshape(2, 3), torch.arange(2.0, dtype=torch.float64)]
    vector = flatten(tensors)
    assert vector.dtype == torch.float64
    for one, other in zip(tensors, unflatten(vector, tensors), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
        assert other.data_ptr() % 64 == 0


# ---- models that cannot be differentiated twice


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.slope = 1.0 - inputs.tanh().square()
        return inputs.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result: Tensor = gradient * ctx.slope
        return result


class Constant(Once):
    """Its backward is taken for a constant, and torch does not complain."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result: Tensor = gradient.detach() * ctx.slope
        return result


class Tanh(nn.Module):
    """May have a part of its own, which is not to blame."""

    def __init__(self, function: type[Once] = Once, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.function.apply(x if self.inner is None else self.inner(x))  # type: ignore[no-untyped-call]
        return found


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True))
        self.block = Tanh(inner=nn.Linear(5, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(self.block(x=self.features(inputs)))
        return found


def once(model: nn.Module, batch: Data) -> Tensor:
    found: Tensor = Once.apply(classify(model, batch))  # type: ignore[no-untyped-call]
    return found


def layers(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)  # parameters are made when tests are collected
    return nn.Sequential(nn.Linear(5, 5), *between, nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("model", "loss", "says"),
    [
        (
            layers(nn.Sequential(nn.Linear(5, 5), Tanh())),
            classify,
            r"runs/a: .* the layer 1\.1 \(Tanh\) has none \(trying to differentiate twice",
        ),
        (Named(), classify, r"the layer block \(Tanh\) has none"),
        (
            layers(Tanh(Constant)),
            classify,
            r"the layer 1 \(Tanh\) has none \(second derivatives are not",
        ),
        (nn.Linear(5, 3), once, r"the recipe's loss\(\), outside the model's layers, has none"),
    ],
)
def test_the_layer_that_fails_is_named(model: nn.Module, loss: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        refuse_undifferentiable(model, loss, examples(6, torch.float32), "runs/a")
    assert "\n" not in str(error.value)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(5, 24), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        queries, keys, values = self.mix(inputs)[None].chunk(3, dim=-1)
        found: Tensor = self.head(F.scaled_dot_product_attention(queries, keys, values)[0])
        return found


def test_attention_is_differentiated_twice() -> None:
    """torch's fused kernel, which it would choose, cannot be."""
    refuse_undifferentiable(Attends(), classify, examples(6, torch.float32), "runs/a")
