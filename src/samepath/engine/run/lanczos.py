"""Lanczos' iteration: the eigenvalues of a symmetric matrix that are largest in size, from
products with vectors alone.

In: a product, a start vector. Out: eigenvalues, with a bound on how far a true one is from each.
Two forms, for two uses of the Hessian. `top_eigenvalue`: one eigenvalue from a dozen rough
products (differences of gradients) between two epochs; vectors are lists of tensors, shaped as the
parameters are. `top_eigenpairs`: many eigenpairs from exact products; vectors are flat,
thick-restarted (Wu and Simon 2000, SIAM J. Matrix Anal. Appl. 22), each orthogonalised twice
against all before it.
Guaranteed: the same bits for the same products; both end after `most_products`; a matrix of low
rank (a loss without curvature, even) is no trouble. ARPACK has state of its own in that last case,
and its bits depend on the threads of whichever BLAS it was built with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from samepath.keys import key

BASIS_BYTES = 256 << 20
"""A larger basis needs fewer products. Beyond what is necessary it may take so much memory."""
MOST_BASIS = 160
LOOK_EVERY = 4
"""Products between two looks at what has converged."""


def top_eigenvalue(
    product: Callable[[list[Tensor]], list[Tensor]],
    start: list[Tensor],
    *,
    relative: float,
    most_products: int,
) -> tuple[float, int]:
    """The size of the eigenvalue largest in size (NaN if a product is not finite), and how many
    products it took: as many as bring the bound below `relative` of it, or the most allowed. Far
    ahead of power iteration after as many products. `start` is scaled in place."""
    torch._foreach_div_(start, squared_norm(start) ** 0.5)
    vector = start
    basis: list[list[Tensor]] = []
    diagonal: list[float] = []
    beside: list[float] = []
    value = 0.0
    while len(diagonal) < most_products:
        image = product(vector)
        diagonal.append(_dot(vector, image))
        basis.append(vector)
        for known in basis:  # three would do if products were exact
            torch._foreach_add_(image, known, alpha=-_dot(known, image))
        beside.append(squared_norm(image) ** 0.5)
        if not math.isfinite(diagonal[-1] + beside[-1]):
            return math.nan, len(diagonal)
        inner = np.array(beside[:-1])
        matrix = np.diag(diagonal) + np.diag(inner, 1) + np.diag(inner, -1)
        values, vectors = np.linalg.eigh(matrix)
        top = int(np.argmax(np.abs(values)))
        value, distance = abs(float(values[top])), beside[-1] * abs(float(vectors[-1, top]))
        if distance <= relative * value:
            break
        vector = list(torch._foreach_div(image, beside[-1]))
    return value, len(diagonal)


def squared_norm(tensors: Iterable[Tensor]) -> float:
    return float(nn.utils.get_total_norm(tensors)) ** 2


def _dot(left: list[Tensor], right: list[Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))


@dataclass(frozen=True, kw_only=True)
class Eigenpairs:
    """Eigenvalues with their vectors, the largest in size first."""

    values: list[float]
    residuals: list[float]
    """|H v - l v| of each."""
    vectors: Tensor
    """One in each row, of length 1."""
    tolerance: float
    """What residuals were to get below."""
    num_products: int

    @property
    def converged(self) -> bool:
        """Whether all did, before the products ran out."""
        return max(self.residuals) <= self.tolerance


def top_eigenpairs(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    num: int,
    *,
    relative: float = 1e-4,
    most_products: int = 1000,
    tell: Callable[[int, int], None] = lambda done, expected: None,
) -> Eigenpairs:
    """Find as many eigenpairs as asked for, with residuals below `relative` of the largest
    eigenvalue unless products run out. `tell` hears how many have been made and are expected in
    all."""
    dimension = len(start)
    num = min(num, dimension, most_products)
    affordable = BASIS_BYTES // (dimension * start.element_size())
    size = min(dimension, max(2 * num + 10, min(MOST_BASIS, affordable)))
    basis = start.new_empty(size, dimension)
    inside = torch.zeros(size, size, dtype=torch.float64)  # the matrix as the basis sees it
    vector = start / start.norm()
    forecast = _Forecast(num, most_products)
    held = done = 0
    while True:
        basis[held] = vector
        image = product(vector)
        held, done = held + 1, done + 1
        known = basis[:held]
        column, image = _without(known, image)
        inside[:held, held - 1] = inside[held - 1, :held] = column.double()
        scale = float(inside[:held, :held].abs().max())
        if not math.isfinite(scale):
            raise FloatingPointError("a product with the Hessian is not finite")
        beside = float(image.norm())
        # Nothing leads out of the basis: what it holds is exact, and a new direction is needed
        closed = held == dimension or beside <= 1e2 * torch.finfo(start.dtype).eps * scale
        if held == size or done == most_products or (held >= num and not done % LOOK_EVERY):
            values, vectors = torch.linalg.eigh(inside[:held, :held])
            order = values.abs().argsort(descending=True, stable=True)
            values, vectors = values[order], vectors[:, order]
            residuals = torch.zeros_like(values) if closed else beside * vectors[-1].abs()
            tolerance, worst = relative * float(values[0].abs()), float(residuals[:num].max())
            tell(done, forecast(done, worst, tolerance))
            if worst <= tolerance or done == most_products:
                return Eigenpairs(
                    values=values[:num].tolist(),
                    residuals=residuals[:num].tolist(),
                    vectors=vectors[:, :num].T.to(basis) @ known,
                    tolerance=tolerance,
                    num_products=done,
                )
            if held == size:
                held = min((size + num) // 2, size - 1)
                basis[:held] = vectors[:, :held].T.to(basis) @ known
                inside.zero_()
                inside[:held, :held] = torch.diag(values[:held])
        if closed:
            image = _fresh(known, done)
        vector = image / image.norm()


def _without(basis: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """A vector's coordinates in a basis, and what is left of it."""
    once = basis @ vector
    left = vector - once @ basis
    twice = basis @ left  # what rounding left of it
    return once + twice, left - twice @ basis


def _fresh(basis: Tensor, number: int) -> Tensor:
    """A direction that is not in the basis."""
    generator = torch.Generator().manual_seed(key("lanczos", number))
    vector = torch.randn(basis.shape[1], generator=generator, dtype=torch.float64).to(basis)
    _, left = _without(basis, vector)
    _, left = _without(basis, left / left.norm())
    return left


class _Forecast:
    """How many products there will be, if residuals go on to shrink as they did."""

    def __init__(self, num: int, most: int) -> None:
        self._most = most
        self._guess = 4 * num
        self._first: tuple[int, float] | None = None

    def __call__(self, done: int, worst: float, tolerance: float) -> int:
        if worst > tolerance > 0.0:
            began, before = self._first = self._first or (done, worst)
            shrunk = math.log(before / worst)
            if shrunk > 0.0:
                left = math.log(worst / tolerance) * (done - began) / shrunk
                return min(self._most, done + math.ceil(left))
            return min(self._most, max(self._guess, done + 1))
        return done
