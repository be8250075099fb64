"""Lanczos' iteration: the eigenvalues of a symmetric matrix that are largest in size, from
products with vectors alone.

In: a product, a start vector; a vector is a list of tensors, shaped as the parameters are, or one
flat tensor. Out: eigenpairs, with a bound on how far a true eigenvalue is from each. Every vector
is orthogonalised against all before it; a full basis is restarted from its best vectors (Wu and
Simon 2000, SIAM J. Matrix Anal. Appl. 22). Far ahead of power iteration after as many products.
Guaranteed: the same bits for the same products; it ends after `most_products`; a matrix of low rank
(a loss without curvature, even) is no trouble. ARPACK has state of its own in that last case, and
its bits depend on the threads of whichever BLAS it was built with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from samepath.keys import key

Vector: TypeAlias = list[Tensor]
BASIS_BYTES = 256 << 20
"""A larger basis needs fewer products. Beyond what is necessary it may take so much memory."""
MOST_BASIS = 160


@dataclass(frozen=True, kw_only=True)
class Eigenpairs:
    """Eigenvalues with their vectors, the largest in size first."""

    values: list[float]
    residuals: list[float]
    """|H v - l v| of each."""
    vectors: Vector
    """Vectors of length 1, each tensor with a row for every eigenvalue."""
    tolerance: float
    """What residuals were to get below."""
    num_products: int


def top_eigenpairs(
    product: Callable[[Vector], Vector],
    start: Vector,
    num: int,
    *,
    relative: float = 1e-4,
    most_products: int = 1000,
    tell: Callable[[int, int], None] = lambda done, expected: None,
) -> Eigenpairs:
    """Find as many eigenpairs as asked for, with residuals below `relative` of the largest
    eigenvalue unless products run out. FloatingPointError where a product is not finite. `tell`
    hears how many have converged of how many. A product's result is overwritten."""
    dimension = sum(part.numel() for part in start)
    num = min(num, dimension, most_products)
    affordable = BASIS_BYTES // sum(part.nbytes for part in start)
    size = min(dimension, most_products, max(2 * num + 10, min(MOST_BASIS, affordable)))
    room = [part.new_empty(size, *part.shape) for part in start]
    basis = [[part[row] for part in room] for row in range(size)]
    inside = np.zeros((size, size))  # the matrix as the basis sees it
    image, beside = start, squared_norm(start) ** 0.5
    held = done = 0
    while True:
        torch._foreach_copy_(basis[held], torch._foreach_div(image, beside))
        image = product(basis[held])
        inside[held, held] = _dot(basis[held], image)
        held, done = held + 1, done + 1
        _orthogonalise(image, basis[:held])  # three would do if products were exact
        beside = squared_norm(image) ** 0.5
        if not math.isfinite(inside[held - 1, held - 1] + beside):
            raise FloatingPointError("a product with the matrix is not finite")
        # Nothing leads out of the basis: what it holds is exact, and a new direction is needed
        rounding = 1e2 * torch.finfo(start[0].dtype).eps * np.abs(inside).max()
        closed = held == dimension or beside <= rounding
        link = np.zeros(held)  # between the basis and the next vector
        link[-1] = 0.0 if closed else beside
        if held >= num:
            values, vectors = np.linalg.eigh(inside[:held, :held])
            order = np.argsort(-np.abs(values), kind="stable")
            values, vectors = values[order], vectors[:, order]
            residuals = np.abs(link[-1] * vectors[-1])
            tolerance = relative * abs(float(values[0]))
            tell(int((residuals[:num] <= tolerance).sum()), num)
            if residuals[:num].max() <= tolerance or done == most_products:
                return Eigenpairs(
                    values=values[:num].tolist(),
                    residuals=residuals[:num].tolist(),
                    vectors=[_combine(vectors[:, :num], part[:held]) for part in room],
                    tolerance=tolerance,
                    num_products=done,
                )
            if held == size:
                held = min((size + num) // 2, size - 1)
                link = link[-1] * vectors[-1, :held]
                for part in room:
                    part[:held] = _combine(vectors[:, :held], part)
                inside[:] = 0.0
                np.fill_diagonal(inside[:held, :held], values)
        inside[:held, held] = inside[held, :held] = link
        if closed:
            random = torch.Generator().manual_seed(key("lanczos", done))
            image = [torch.randn(p.shape, generator=random, dtype=p.dtype).to(p) for p in start]
            for _ in range(2):
                _orthogonalise(image, basis[:held])
            beside = squared_norm(image) ** 0.5


def squared_norm(tensors: Iterable[Tensor]) -> float:
    return float(nn.utils.get_total_norm(tensors)) ** 2


def _dot(left: Vector, right: Vector) -> float:
    return sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))


def _orthogonalise(vector: Vector, basis: Iterable[Vector]) -> None:
    for known in basis:
        torch._foreach_add_(vector, known, alpha=-_dot(known, vector))


def _combine(columns: np.ndarray[tuple[int, int], np.dtype[np.float64]], rows: Tensor) -> Tensor:
    found: Tensor = torch.tensordot(torch.from_numpy(columns.T.copy()).to(rows), rows, 1)
    return found
