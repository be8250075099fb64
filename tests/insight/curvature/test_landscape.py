"""Directions, lines and planes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from samepath.engine.run.measure import trained
from samepath.insight.curvature.hessian import unflatten
from samepath.insight.curvature.landscape import filter_normalised, line, places, plane, rise


def test_each_filter_of_a_direction_is_as_long_as_the_models() -> None:
    """Biases and norms stay where they are (Li et al. 2018)."""
    torch.manual_seed(0)
    first = nn.Conv2d(2, 6, 3)
    with torch.no_grad():
        first.weight[1] *= 100.0
        first.weight[2] = 0.0
    model = nn.Sequential(first, nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, 5))
    parameters = dict(model.named_parameters())
    vector = filter_normalised(trained(model), 0, 1)
    direction = dict(zip(parameters, unflatten(vector, trained(model)), strict=True))
    for name, parameter in parameters.items():
        if parameter.ndim > 1:
            own, moved = parameter.flatten(1).norm(dim=1), direction[name].flatten(1).norm(dim=1)
            assert torch.allclose(own, moved, rtol=1e-5), name
            assert not torch.allclose(parameter, direction[name])
        else:
            assert not direction[name].any(), name
    assert torch.equal(vector, filter_normalised(trained(model), 0, 1))
    for words in ((0, 2), (1, 1)):
        assert not torch.equal(vector, filter_normalised(trained(model), *words))


def test_a_model_of_vectors_alone_is_moved_too() -> None:
    weights = [torch.tensor([1.0, -2.0, 0.0]), torch.tensor(3.0)]
    vector = filter_normalised(weights, 0)
    assert vector.abs().tolist() == pytest.approx([1.0, 2.0, 0.0, 3.0])


def bowl(weights: Tensor) -> float:
    """Steeper along its second axis."""
    return float(weights[0] ** 2 + 10.0 * weights[1] ** 2)


def test_lines_and_planes_are_where_they_say() -> None:
    home = torch.tensor([1.0, 0.0], dtype=torch.float64)
    x, y = torch.eye(2, dtype=torch.float64)
    assert places(0.6, 7)[3] == 0.0
    assert places(0.6, 7) == pytest.approx([-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6])
    assert len(places(1.0, 6)) == 7
    found = line(bowl, home, x, 2.0, 5)
    assert found.losses == [1.0, 0.0, 1.0, 4.0, 9.0]
    square = plane(bowl, home, x, y, 1.0, 3)
    assert square.losses == [[10.0, 11.0, 14.0], [0.0, 1.0, 4.0], [10.0, 11.0, 14.0]]


def test_the_rise_is_the_mean_both_ways() -> None:
    home = torch.zeros(2, dtype=torch.float64)
    directions = torch.eye(2, dtype=torch.float64)
    found = rise(bowl, home, directions, 0.5, 0.0)
    assert found.mean == pytest.approx((0.25 + 2.5) / 2.0)
    assert found.standard_error == pytest.approx((2.5 - 0.25) / 2.0)
    assert (found.distance, found.num_directions) == (0.5, 2)
