"""DeepDensity: the covariance, the density and its gradient, stability, and that it learns."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from samepath.recipes.nodules import deepdensity
from samepath.recipes.nodules.deepdensity import DeepDensity, Mixture

SIDE = 8
Heads = tuple[Tensor, Tensor, Tensor, Tensor]


def random_heads(num_dims: int, seed: int, spread: float, num_components: int = 5) -> Heads:
    """What the heads might put out for two images: float64, any size."""
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> Tensor:
        shape = (2, num_components, size)
        return spread * torch.randn(shape, generator=generator, dtype=torch.float64)

    num_pairs = num_dims * (num_dims - 1) // 2
    return draw(1).squeeze(-1), draw(num_dims), draw(num_dims), draw(num_pairs)


def mixture_of(heads: Heads, side: int = SIDE) -> Mixture:
    return deepdensity.make_mixture(*heads, min_sigma=deepdensity.min_sigma(side))


def naive_density(mixture: Mixture, side: int) -> Tensor:
    """Eqs. 5 and 7 as written, with a (B, K, V, n) array and matrix inverses."""
    num_dims = mixture.mu.shape[-1]
    centres = torch.linspace(-1 + 1 / side, 1 - 1 / side, side, dtype=mixture.mu.dtype)
    grid = torch.cartesian_prod(*[centres] * num_dims).view(-1, num_dims)
    covariance = deepdensity.covariances(mixture)
    offset = grid - mixture.mu[:, :, None]
    exponent = -0.5 * torch.einsum("bkvi,bkij,bkvj->bkv", offset, covariance.inverse(), offset)
    scale = ((2 * math.pi) ** num_dims * covariance.det()).sqrt()
    return (mixture.log_alpha.exp()[..., None] * exponent.exp() / scale[..., None]).sum(1)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@given(seed=st.integers(0, 2**31), spread=st.sampled_from([0.1, 1.0, 10.0, 1e3, 1e30]))
@settings(max_examples=25, deadline=None)
def test_covariance_is_positive_definite_with_bounded_condition(
    num_dims: int, seed: int, spread: float
) -> None:
    covariance = deepdensity.covariances(mixture_of(random_heads(num_dims, seed, spread)))
    eigenvalues = torch.linalg.eigvalsh(covariance)
    assert (eigenvalues > 0).all()
    condition = eigenvalues[..., -1] / eigenvalues[..., 0]
    assert condition.max() <= deepdensity.max_condition(num_dims, SIDE) * (1 + 1e-9)


def test_bound_holds_at_every_corner_of_the_parameters() -> None:
    corners = torch.tensor([-1e4, 0.0, 1e4], dtype=torch.float64)
    raw = torch.cartesian_prod(*[corners] * 6)[None]
    mixture = mixture_of((raw[..., 0], raw[..., :3], raw[..., :3], raw[..., 3:]))
    eigenvalues = torch.linalg.eigvalsh(deepdensity.covariances(mixture))
    condition = eigenvalues[..., -1] / eigenvalues[..., 0]
    assert condition.min() >= 1
    assert condition.max() <= deepdensity.max_condition(3, SIDE)


def test_standard_deviations_and_partial_correlations_are_what_they_are_called() -> None:
    mixture = mixture_of(random_heads(3, seed=0, spread=2.0))
    covariance = deepdensity.covariances(mixture)
    torch.testing.assert_close(covariance.diagonal(dim1=-2, dim2=-1), mixture.sigma**2)
    correlation = covariance / (mixture.sigma[..., :, None] * mixture.sigma[..., None, :])
    r10, r20, r21 = correlation[..., 1, 0], correlation[..., 2, 0], correlation[..., 2, 1]
    given_axis_0 = (r21 - r20 * r10) / ((1 - r20**2) * (1 - r10**2)).sqrt()
    torch.testing.assert_close(torch.stack([r10, r20, given_axis_0], -1), mixture.partial)
    assert (mixture.partial > 0).any(), "either sign"
    assert (mixture.partial < 0).any()


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_density_and_gradient_equal_the_formula(num_dims: int) -> None:
    heads = random_heads(num_dims, seed=num_dims, spread=1.0)
    cotangent = torch.linspace(-1, 1, SIDE**num_dims, dtype=torch.float64)
    results = []
    for density in (deepdensity.evaluate_density, naive_density):
        leaves = tuple(head.clone().requires_grad_() for head in heads)
        value = density(mixture_of(leaves), SIDE)  # type: ignore[arg-type]
        used = leaves if num_dims > 1 else leaves[:3]
        results.append((value, *torch.autograd.grad((value * cotangent).sum(), used)))
    for one_product, formula in zip(*results, strict=True):
        torch.testing.assert_close(one_product, formula)


@pytest.mark.parametrize("spread", [1.0, 10.0, 1e3])
def test_float32_error_is_a_small_part_of_the_peak(spread: float) -> None:
    for seed in range(5):
        heads = random_heads(3, seed, spread)
        single = Mixture(*(parameter.float() for parameter in mixture_of(heads, side=16)))
        exact = deepdensity.evaluate_density(Mixture(*(p.double() for p in single)), 16)
        error = (deepdensity.evaluate_density(single, 16) - exact).abs().amax(1)
        peak = exact.amax(1).clamp_min(0.01)  # a mixture outside the domain has no peak
        assert (error / peak).max() < (1e-5 if spread == 1.0 else 1e-2)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_gradient_equals_finite_differences(num_dims: int) -> None:
    heads = [h.requires_grad_() for h in random_heads(num_dims, 3, 1.0, num_components=2)]

    def density(*heads: Tensor) -> Tensor:
        return deepdensity.evaluate_density(mixture_of(heads, side=4), 4)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(density, heads)
    assert torch.autograd.gradgradcheck(density, heads)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_density_integrates_to_one(num_dims: int) -> None:
    alpha, mu, sigma, rho = random_heads(num_dims, seed=1, spread=0.3)
    mixture = mixture_of((alpha, 0.1 * mu, sigma - 2.5, rho), side=16)
    voxel = (2 / 32) ** num_dims
    total = deepdensity.evaluate_density(mixture, 32).sum(1) * voxel
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0.01, atol=0)


@pytest.mark.parametrize("spread", [1.0, 1e2, 1e4, 1e30])
def test_values_and_gradients_are_finite_in_float32(spread: float) -> None:
    heads = [h.float().requires_grad_() for h in random_heads(3, 0, spread)]
    density = deepdensity.evaluate_density(mixture_of(heads), SIDE)  # type: ignore[arg-type]
    loss = deepdensity.mean_squared_log_error(density, torch.rand_like(density))
    torch.autograd.backward(loss)
    assert density.isfinite().all()
    assert loss.isfinite()
    assert all(head.grad is not None and head.grad.isfinite().all() for head in heads)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e6])
def test_model_is_finite_on_constant_images(value: float) -> None:
    model = DeepDensity(num_filters=4, num_components=4)
    images = torch.full((2, 1, 16, 16, 16), value)
    loss = deepdensity.mean_squared_log_error(model(images), images)
    torch.autograd.backward(loss)
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("num_dims", "expected"), [(1, 150), (2, 300), (3, 500)])
def test_number_of_outputs_is_the_papers(num_dims: int, expected: int) -> None:
    model = DeepDensity(num_dims)
    assert model.num_outputs == expected == (num_dims**2 + 3 * num_dims + 2) * 50 // 2
    images = torch.rand(2, 1, *[16] * num_dims)
    parameters = model.mixture(images)
    assert sum(p[0].numel() for p in parameters) == expected
    torch.testing.assert_close(parameters.log_alpha.exp().sum(1), torch.ones(2))
    assert model(images).shape == images.shape


def test_encoder_is_the_papers() -> None:
    model = DeepDensity()
    weights = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert weights["encoder.0.weight"] == (32, 1, 7, 7, 7)
    assert weights["encoder.2.weight"] == (32, 32, 5, 5, 5)
    assert weights["encoder.4.weight"] == (32, 32, 3, 3, 3)
    assert weights["heads.weight"] == (500, 2048)
    assert not list(model.buffers())


def test_reconstruction_carries_the_mass_of_the_image() -> None:
    torch.manual_seed(0)
    model = DeepDensity(num_filters=4, num_components=8)
    images = torch.rand(3, 1, 16, 16, 16)
    density = deepdensity.evaluate_density(model.mixture(images), 16)
    mass = images.sum((1, 2, 3, 4)) / 8**3
    torch.testing.assert_close(model(images).flatten(1), density * mass[:, None])


def test_loss_is_the_mean_squared_log_error() -> None:
    prediction, target = torch.rand(2, 5), torch.rand(2, 5)
    expected = ((1 + prediction).log() - (1 + target).log()).square().mean()
    torch.testing.assert_close(deepdensity.mean_squared_log_error(prediction, target), expected)


@pytest.mark.parametrize(
    ("num_dims", "side", "message"), [(4, 16, "num_dims is 4"), (3, 10, "side is 10")]
)
def test_wrong_sizes_are_named(num_dims: int, side: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeepDensity(num_dims, side=side)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_it_learns_a_blob(num_dims: int) -> None:
    torch.manual_seed(0)
    model = DeepDensity(num_dims, side=SIDE, num_filters=8, num_components=6)
    centre = torch.rand(16, num_dims) - 0.5
    centres = torch.linspace(-1 + 1 / SIDE, 1 - 1 / SIDE, SIDE)
    grid = torch.cartesian_prod(*[centres] * num_dims).view(-1, num_dims)
    distance = (grid - centre[:, None]).square().sum(-1)
    images = (distance < 0.25).float().view(16, 1, *[SIDE] * num_dims)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = deepdensity.mean_squared_log_error(model(images), images)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]


# ---- shades


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_shaded_densities_are_the_density_with_weights_times_shades(num_dims: int) -> None:
    """Values and gradients, against the one-channel density with the shade in its weights."""
    torch.manual_seed(0)
    model = DeepDensity(num_dims, side=SIDE, num_filters=2, num_components=4, num_channels=2)
    model = model.double()
    outputs = torch.randn(2, model.num_outputs, dtype=torch.float64, requires_grad=True)
    made = deepdensity.evaluate_shaded(model.decode(outputs), model.shades(outputs), SIDE)
    mixture, shades = model.decode(outputs), model.shades(outputs)[..., 0]
    shaded = mixture._replace(log_alpha=mixture.log_alpha + shades.log())
    expected = torch.stack([deepdensity.evaluate_density(m, SIDE) for m in (mixture, shaded)], 1)
    torch.testing.assert_close(made, expected)
    weights = torch.randn_like(made)
    gradient, of_expected = (
        torch.autograd.grad((of * weights).sum(), outputs)[0] for of in (made, expected)
    )
    torch.testing.assert_close(gradient, of_expected)
    images = torch.rand(2, 2, *[SIDE] * num_dims, dtype=torch.float64)
    assert model(images).shape == images.shape
    assert (model(images)[:, 1] <= model(images)[:, 0]).all()


def test_a_gradient_of_the_shaded_gradient_is_right() -> None:
    model = DeepDensity(1, side=4, num_filters=2, num_components=2, num_channels=2).double()
    outputs = torch.randn(1, model.num_outputs, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda given: deepdensity.evaluate_shaded(model.decode(given), model.shades(given), 4),
        (outputs,),
    )


PEAK = """
import re, torch
from pathlib import Path
from samepath.recipes.nodules.deepdensity import evaluate_shaded, make_mixture, min_sigma

def run(batch):
    sizes = [(batch, 50), *[(batch, 50, 3)] * 3, (batch, 50, 1)]
    leaves = [torch.randn(size).requires_grad_() for size in sizes]
    mixture = make_mixture(*leaves[:4], min_sigma=min_sigma(32))
    density = evaluate_shaded(mixture, leaves[4].sigmoid(), 32)
    torch.autograd.grad(density.square().mean(), leaves)

def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

torch.set_num_threads(1)
run(1)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
before = kilobytes("VmRSS")
run(8)
print(1024 * (kilobytes("VmHWM") - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_step_at_32_keeps_no_array_of_differences() -> None:
    """Forward and backward of a grain of 8 with 50 Gaussians at 32^3: less memory than one
    (B, K, V, 3) array of float32 takes, of which the formula as written has several."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 4 * 8 * 50 * 32**3 * 3
