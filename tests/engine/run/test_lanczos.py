"""Lanczos' iteration on matrices whose eigenvalues are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from samepath.engine.run import lanczos
from samepath.engine.run.lanczos import Eigenpairs, top_eigenpairs


def normal(*shape: int) -> Tensor:
    made = torch.Generator().manual_seed(4)
    return torch.randn(shape, generator=made, dtype=torch.float64)


def matrix_with(values: list[float]) -> Tensor:
    turn: Tensor = torch.linalg.qr(normal(len(values), len(values))).Q
    return turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T


def pairs_of(matrix: Tensor, num: int, **how: Any) -> Eigenpairs:
    return top_eigenpairs(lambda v: [matrix @ v[0]], [normal(len(matrix))], num, **how)


def test_restarts_find_the_same_and_residuals_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowded spectrum on both sides of zero, in a basis much smaller than is needed; also where
    vectors come in several tensors."""
    monkeypatch.setattr(lanczos, "MOST_BASIS", 1)
    values = [*(10.0 / n for n in range(1, 101)), *(-7.0 / n for n in range(1, 101))]
    matrix = matrix_with(values)

    def product(vector: list[Tensor]) -> list[Tensor]:
        image = matrix @ torch.cat([part.flatten() for part in vector])
        return [image[:60].reshape(3, 20).clone(), image[60:].clone()]

    one = pairs_of(matrix, 6, relative=1e-9)
    two = top_eigenpairs(product, [normal(3, 20), normal(140)], 6, relative=1e-9)
    assert [part.shape for part in two.vectors] == [(6, 3, 20), (6, 140)]
    for pairs in (one, two):
        assert pairs.num_products > 2 * 6 + 10, "it has been restarted"
        assert max(pairs.residuals) <= pairs.tolerance
        assert np.allclose(pairs.values, sorted(values, key=abs, reverse=True)[:6], rtol=1e-6)
        vectors = torch.cat([part.flatten(1) for part in pairs.vectors], dim=1)
        for value, residual, vector in zip(pairs.values, pairs.residuals, vectors, strict=True):
            true = float((matrix @ vector - value * vector).norm())
            assert true == pytest.approx(residual, rel=1e-3, abs=1e-12)
            assert float(vector.norm()) == pytest.approx(1.0)


def test_products_that_run_out_are_said() -> None:
    told: list[tuple[int, int]] = []
    matrix = matrix_with([1.0 / n for n in range(1, 201)])
    pairs = pairs_of(matrix, 10, most_products=12, tell=lambda *now: told.append(now))
    assert pairs.num_products == 12
    assert len(pairs.values) == 10
    assert max(pairs.residuals) > pairs.tolerance
    assert told[-1] == (sum(residual <= pairs.tolerance for residual in pairs.residuals), 10)


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
    (rows,) = pairs.vectors
    assert torch.allclose(rows @ rows.T, torch.eye(len(rows), dtype=torch.float64), atol=1e-9)


def test_products_that_are_not_numbers_end_it() -> None:
    with pytest.raises(FloatingPointError):
        top_eigenpairs(lambda vector: [vector[0] * math.nan], [normal(9)], 2)
