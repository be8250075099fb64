"""The loss along directions: lines and planes through the weights.

In: the loss at any weights, directions. Out: the loss at the points of a line or a square.
Random directions are filter-normalised (Li et al. 2018, section 4): each filter of a direction is
as long as the weights' own, and biases and the parameters of norms do not move. So rescaling a
filter, which batch norm or the next layer undoes, changes nothing of the picture. Eigenvectors of
the Hessian have length 1: their distance is a distance in the space of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samepath.insight.curvature.hessian import flatten, mean_and_error
from samepath.keys import key

LossAt = Callable[[Tensor], float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Losses at weights + place x direction."""

    places: list[float]
    losses: list[float]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """losses[row][column] at weights + places[column] x first + places[row] x second."""

    places: list[float]
    losses: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class Rise:
    """How much the loss rises at a distance, on the mean over random directions, both ways."""

    distance: float
    mean: float
    standard_error: float
    num_directions: int


def filter_normalised(parameters: Sequence[Tensor], *words: int | str) -> Tensor:
    """A random direction, as one vector; the words choose which."""
    generator = torch.Generator().manual_seed(key("direction", *words))
    # A model of vectors alone has no filters: then each number is one
    only_vectors = all(parameter.ndim < 2 for parameter in parameters)
    parts = []
    for parameter in parameters:
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.ndim < 2 and not only_vectors:
            parts.append(torch.zeros_like(parameter))
            continue
        filters = noise.reshape(len(noise) if noise.ndim else 1, -1)
        lengths = parameter.detach().reshape(filters.shape).double().cpu().norm(dim=1)
        scaled = filters * (lengths / filters.norm(dim=1))[:, None]
        parts.append(scaled.reshape(parameter.shape).to(parameter))
    return flatten(parts)


def places(radius: float, num: int) -> list[float]:
    """So many places from -radius to radius, zero among them exactly."""
    half = num // 2
    return [radius * step / half for step in range(-half, half + 1)]


def line(loss_at: LossAt, home: Tensor, direction: Tensor, radius: float, num: int) -> Line:
    where = places(radius, num)
    return Line(places=where, losses=[loss_at(home + x * direction) for x in where])


def plane(
    loss_at: LossAt, home: Tensor, first: Tensor, second: Tensor, radius: float, num: int
) -> Plane:
    where = places(radius, num)
    rows = [[loss_at(home + x * first + y * second) for x in where] for y in where]
    return Plane(places=where, losses=rows)


def rise(
    loss_at: LossAt, home: Tensor, directions: Iterable[Tensor], distance: float, at_home: float
) -> Rise:
    """The mean rise; both ways along each direction count as one sample."""
    found = [
        (loss_at(home + distance * d) + loss_at(home - distance * d)) / 2.0 - at_home
        for d in directions
    ]
    mean, error = mean_and_error(found)
    return Rise(distance=distance, mean=mean, standard_error=error, num_directions=len(found))
