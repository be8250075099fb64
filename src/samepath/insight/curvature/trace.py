"""The trace of a symmetric matrix, from products with random vectors.

In: a product, the largest eigenpairs. Out: an estimate with its standard error. Those eigenpairs'
part of the trace is known, so only what is left is sampled (as in Hutch++, Meyer et al. 2021, with
Lanczos' vectors in place of a sketch's), by Hutchinson's vectors of random signs: the error is that
of the small eigenvalues alone. Guaranteed: no bias; the same bits for the same products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from samepath.insight.curvature.lanczos import Eigenpairs
from samepath.keys import key

NUM_VECTORS = 20


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The sum of all eigenvalues."""

    value: float
    standard_error: float
    num_products: int


def estimate_trace(
    product: Callable[[Tensor], Tensor],
    known: Eigenpairs,
    *,
    seed: int = 0,
    num_vectors: int = NUM_VECTORS,
    tell: Callable[[int, int], None] = lambda done, expected: None,
) -> Trace:
    """tr H = tr Q'HQ + E[z'PHPz] with P = 1 - QQ', for random signs z."""
    certain = math.fsum(known.values)
    vectors = known.vectors
    if len(vectors) == vectors.shape[1]:  # all eigenvalues there are
        return Trace(value=certain, standard_error=0.0, num_products=0)
    found = []
    for number in range(num_vectors):
        generator = torch.Generator().manual_seed(key("trace", seed, number))
        signs = torch.randint(0, 2, (vectors.shape[1],), generator=generator)
        vector = (2 * signs - 1).to(vectors)
        vector = vector - (vectors @ vector) @ vectors
        found.append(float(vector.double() @ product(vector).double()))
        tell(number + 1, num_vectors)
    mean = math.fsum(found) / num_vectors
    variance = math.fsum((value - mean) ** 2 for value in found) / (num_vectors - 1)
    return Trace(
        value=certain + mean,
        standard_error=math.sqrt(variance / num_vectors),
        num_products=num_vectors,
    )
