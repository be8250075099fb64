"""The Hessian's eigenvalues and trace: true to the explicit Hessian."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from explicit_hessian import hessian_by_double_backward, hessian_forward_over_reverse
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from samepath import start
from samepath.data import as_source
from samepath.engine.run import lanczos
from samepath.engine.run.lanczos import Eigenpairs, top_eigenpairs
from samepath.engine.run.measure import choose_sample, trained
from samepath.engine.run.session import Session
from samepath.errors import UserError
from samepath.insight.curvature.hessian import SampleLoss, estimate_trace, flatten
from samepath.insight.curvature.second_derivatives import refuse_undifferentiable
from samepath.plan import Batch

Data = tuple[Tensor, Tensor]


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


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """With what differs between training and evaluation, and after some use of it."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3)
    ).to(dtype)
    model(torch.randn(20, 5, dtype=dtype) * 2.0 + 1.0)
    return model


def sample_loss(session: Session, model: nn.Module, data: Data, **also: Any) -> SampleLoss:
    sample = choose_sample(len(data[0]), 12, 4, seed=0)
    source = as_source(data, seed=0)
    return SampleLoss(session.collective, model, classify, source, sample, **also)


def sampled(data: Data) -> Data:
    rows = torch.from_numpy(choose_sample(len(data[0]), 12, 4, seed=0).examples.copy())
    return data[0][rows], data[1][rows]


def normal(length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.Generator().manual_seed(4)
    return torch.randn(length, generator=made, dtype=torch.float64).to(dtype)


def by_size(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix)
    return values[values.abs().argsort(descending=True)]


# ---- products


def test_products_are_those_of_the_explicit_hessian(session: Session) -> None:
    """In evaluation mode, over three grains, on the sample and nothing else."""
    model, data = network(), examples()
    loss = sample_loss(session, model, data)
    whole = hessian_by_double_backward(model.eval(), lambda: classify(model, sampled(data)))
    vector = normal(len(whole))
    assert torch.allclose(loss.product(vector), whole @ vector, rtol=1e-9, atol=1e-12)
    assert loss.loss_at(loss.weights) == pytest.approx(classify(model, sampled(data)).item())
    elsewhere = hessian_by_double_backward(
        model, lambda: classify(model, (data[0][:12], data[1][:12]))
    )
    assert not torch.allclose(whole @ vector, elsewhere @ vector, rtol=0.1)
    in_training = hessian_by_double_backward(model.train(), lambda: classify(model, sampled(data)))
    assert not torch.allclose(whole @ vector, in_training @ vector, rtol=0.1)


def test_a_loss_elsewhere_leaves_the_model_where_it_is(session: Session) -> None:
    model = network()
    loss = sample_loss(session, model, examples())
    here = loss.loss_at(loss.weights)
    assert loss.loss_at(2.0 * loss.weights) != here
    assert torch.equal(flatten(trained(model)), loss.weights)
    assert loss.loss_at(loss.weights) == here


def test_a_recipes_weight_counts_as_in_training(session: Session) -> None:
    """Grains count by their labels of class 0; one that has none does not count at all."""
    inputs, labels = examples(12)
    sample = choose_sample(12, 12, 4, seed=0)
    labels[torch.from_numpy(sample.grain(1).copy())] = 1
    data, model = (inputs, labels), network()

    def weight(batch: Data) -> float:
        return float((batch[1] == 0).sum())

    loss = sample_loss(session, model, data, weight=weight)
    grains = [torch.from_numpy(sample.grain(number).copy()) for number in range(3)]
    weights = [weight((inputs[rows], labels[rows])) for rows in grains]
    assert weights[1] == 0.0
    assert weights[0] != weights[2]

    def value() -> Tensor:
        terms = [
            share * classify(model, (inputs[rows], labels[rows]))
            for share, rows in zip(weights, grains, strict=True)
        ]
        return torch.stack(terms).sum() / sum(weights)

    whole = hessian_by_double_backward(model.eval(), value)
    vector = normal(len(whole))
    assert torch.allclose(loss.product(vector), whole @ vector, rtol=1e-9, atol=1e-12)
    assert loss.loss_at(loss.weights) == pytest.approx(value().item())
    with pytest.raises(UserError, match="not all 0"):
        sample_loss(session, model, data, weight=lambda batch: 0.0)


def test_parameters_that_curve_nothing_have_zeros(session: Session) -> None:
    """One the loss does not use, one in which it is linear; frozen ones are left out."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(5, 3, dtype=torch.float64)
            self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.linear = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.frozen = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)

        def forward(self, inputs: Tensor) -> Tensor:
            found: Tensor = self.used(inputs) * self.frozen[0]
            return found

    model = Partly()

    def loss(model: nn.Module, batch: Data) -> Tensor:
        assert isinstance(model, Partly)
        return classify(model, batch) + model.linear.sum()

    data = examples(8)
    found = SampleLoss(
        session.collective, model, loss, as_source(data, seed=0), choose_sample(8, 8, 4, 0)
    )
    product = found.product(torch.ones(22, dtype=torch.float64))
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parts = dict(zip(names, product.split([p.numel() for p in trained(model)]), strict=True))
    assert not parts["unused"].any()
    assert not parts["linear"].any()
    assert parts["used.weight"].any()


# ---- eigenvalues


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-8), (torch.float32, 1e-4)])
def test_eigenvalues_and_trace_of_a_network(
    dtype: torch.dtype, close: float, session: Session
) -> None:
    model, data = network(dtype), examples(dtype=dtype)
    loss = sample_loss(session, model, data)
    exact_model, exact_data = network().eval(), examples()
    exact_model.load_state_dict({n: t.double() for n, t in model.state_dict().items()})
    whole = hessian_by_double_backward(
        exact_model, lambda: classify(exact_model, sampled(exact_data))
    )
    pairs = top_eigenpairs(loss.product, normal(len(whole), dtype), 20, relative=close)
    expected = by_size(whole)[:20]
    assert np.allclose(pairs.values, expected, rtol=close, atol=close * float(expected[0]))
    assert pairs.num_products < len(whole)
    trace = estimate_trace(loss.product, pairs)
    assert 0.0 < trace.standard_error < 0.2 * float(whole.trace())
    assert abs(trace.value - float(whole.trace())) < 3.0 * trace.standard_error


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own use
def test_eigenvalues_are_those_of_torchs_own_hessian(session: Session) -> None:
    """Forward over reverse: nothing of it is in our products, gradients of gradients."""
    model, data = network(torch.float32), examples(dtype=torch.float32)
    loss = sample_loss(session, model, data)
    whole = hessian_forward_over_reverse(model.eval(), lambda: classify(model, sampled(data)))
    pairs = top_eigenpairs(loss.product, normal(len(loss.weights), torch.float32), 10)
    assert np.allclose(pairs.values, by_size(whole.double())[:10], rtol=1e-4, atol=1e-5)


def matrix_with(values: list[float]) -> Tensor:
    turn: Tensor = torch.linalg.qr(normal(len(values) ** 2).reshape(len(values), -1)).Q
    return turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T


def pairs_of(matrix: Tensor, num: int, **how: Any) -> Eigenpairs:
    return top_eigenpairs(lambda vector: matrix @ vector, normal(len(matrix)), num, **how)


def test_restarts_find_the_same_and_residuals_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowded spectrum on both sides of zero, in a basis much smaller than is needed."""
    monkeypatch.setattr(lanczos, "MOST_BASIS", 1)
    values = [*(10.0 / n for n in range(1, 101)), *(-7.0 / n for n in range(1, 101))]
    matrix = matrix_with(values)
    pairs = pairs_of(matrix, 6, relative=1e-6)
    assert pairs.num_products > 2 * 6 + 10, "it has been restarted"
    assert pairs.converged
    assert np.allclose(pairs.values, sorted(values, key=abs, reverse=True)[:6], rtol=1e-6)
    for value, residual, vector in zip(pairs.values, pairs.residuals, pairs.vectors, strict=True):
        true = float((matrix @ vector - value * vector).norm())
        assert true == pytest.approx(residual, rel=1e-3, abs=1e-12)
        assert float(vector.norm()) == pytest.approx(1.0)


def test_products_that_run_out_are_said() -> None:
    told: list[tuple[int, int]] = []
    matrix = matrix_with([1.0 / n for n in range(1, 201)])
    pairs = pairs_of(matrix, 10, most_products=12, tell=lambda *now: told.append(now))
    assert pairs.num_products == 12
    assert len(pairs.values) == 10
    assert not pairs.converged
    assert told[-1] == (12, 12)


@pytest.mark.parametrize(
    ("values", "num", "expected"),
    [
        ([0.0] * 30, 4, [0.0] * 4),
        ([3.0, 1.0, -5.0], 20, [-5.0, 3.0, 1.0]),
        ([2.0, -1.0] + [0.0] * 40, 5, [2.0, -1.0, 0.0, 0.0, 0.0]),
        ([4.0] * 30, 3, [4.0] * 3),
        ([7.0], 1, [7.0]),
    ],
)
def test_few_directions_are_no_trouble(
    values: list[float], num: int, expected: list[float]
) -> None:
    """No curvature at all, fewer parameters than eigenvalues, low rank, one eigenvalue for all."""
    pairs = pairs_of(matrix_with(values), num)
    assert np.allclose(pairs.values, expected, atol=1e-9)
    assert torch.allclose(
        pairs.vectors @ pairs.vectors.T, torch.eye(len(expected), dtype=torch.float64), atol=1e-9
    )


def test_products_that_are_not_numbers_end_it() -> None:
    with pytest.raises(FloatingPointError):
        top_eigenpairs(lambda vector: vector * math.nan, normal(9), 2)


# ---- trace


def test_the_traces_error_is_what_it_says() -> None:
    """Over many seeds as wide as the truth spreads; and far smaller for what is known already."""
    matrix = matrix_with([50.0, -20.0, *(1.0 / n for n in range(1, 59))])
    few, many = pairs_of(matrix, 1, relative=1e-9), pairs_of(matrix, 10, relative=1e-9)
    truth = float(matrix.trace())

    def estimates(known: Eigenpairs) -> list[tuple[float, float]]:
        made = [estimate_trace(lambda v: matrix @ v, known, seed=seed) for seed in range(60)]
        return [(found.value - truth, found.standard_error) for found in made]

    errors = estimates(many)
    covered = sum(abs(error) < 2.0 * said for error, said in errors)
    assert 0.85 * 60 <= covered < 60
    assert np.mean([said for _, said in errors]) < 0.1 * np.mean([s for _, s in estimates(few)])
    everything = estimate_trace(lambda v: matrix @ v, pairs_of(matrix, 60))
    assert everything.value == pytest.approx(truth)
    assert everything.standard_error == 0.0


# ---- models that cannot be differentiated twice


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        result: Tensor = gradient * (1.0 - inputs.tanh().square())
        return result


class Tanh(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = Once.apply(inputs)  # type: ignore[no-untyped-call]
        return found


class Block(nn.Module):
    """Fails in its own forward, not in a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, *, x: Tensor) -> Tensor:
        found: Tensor = Once.apply(self.inner(x))  # type: ignore[no-untyped-call]
        return found


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True))
        self.block = Block()
        self.head = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(self.block(x=self.features(inputs)))
        return found


class Constant(torch.autograd.Function):
    """Its backward is taken for a constant, and nobody complains."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.slope = 1.0 - inputs.tanh().square()
        return inputs.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result: Tensor = gradient.detach() * ctx.slope
        return result


class Silent(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = Constant.apply(inputs)  # type: ignore[no-untyped-call]
        return found


def refusal(model: nn.Module, loss: Any = classify) -> str:
    torch.manual_seed(0)
    with pytest.raises(UserError) as error:
        refuse_undifferentiable(model, loss, examples(6, torch.float32), "runs/a")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_layer_that_fails_is_named() -> None:
    layers = nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5), Tanh()), nn.Linear(5, 3))
    assert "runs/a: " in refusal(layers)
    assert "the layer 1.1 (Tanh) has none (trying to differentiate twice" in refusal(layers)
    assert "the layer block (Block) has none" in refusal(Named())
    silent = nn.Sequential(nn.Linear(5, 5), Silent(), nn.Linear(5, 3))
    assert "the layer 1 (Silent) has none (second derivatives are not" in refusal(silent)

    def loss(model: nn.Module, batch: Data) -> Tensor:
        found: Tensor = Once.apply(classify(model, batch))  # type: ignore[no-untyped-call]
        return found

    assert "the recipe's loss(), outside the model's layers, has none" in refusal(
        nn.Linear(5, 3), loss
    )


def test_attention_is_differentiated_twice() -> None:
    """torch's fused kernel, which it would choose, cannot be."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(5, 24), nn.Linear(8, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            queries, keys, values = self.mix(inputs)[None].chunk(3, dim=-1)
            mixed = F.scaled_dot_product_attention(queries, keys, values)
            found: Tensor = self.head(mixed[0])
            return found

    torch.manual_seed(0)
    refuse_undifferentiable(Attends(), classify, examples(6, torch.float32), "runs/a")


def test_the_sample_is_whole_grains_chosen_by_the_seed() -> None:
    def rows(sample: Batch) -> list[int]:
        return [int(row) for row in sample.examples]

    sample = choose_sample(100, 50, 8, seed=1)
    assert (len(rows(sample)), sample.num_grains) == (48, 6)
    assert rows(choose_sample(100, 30, 8, seed=1)) == rows(sample)[:24]
    assert rows(choose_sample(100, 50, 8, seed=2)) != rows(sample)
    assert len(rows(choose_sample(5, 50, 8, seed=1))) == 5
    assert len(rows(choose_sample(100, 3, 8, seed=1))) == 8
