"""DeepDensity: an autoencoder whose code is a Gaussian mixture (Cunha et al. 2018, section V).

In: images (B, channels, side, ..., side) with values in [0, 1], in one, two or three dimensions.
Out: their reconstruction from a mixture of K Gaussians over the domain [-1, 1]^n, of the same
shape. The paper's images have one channel.

Guaranteed whatever finite numbers the heads put out, in float32: covariances are positive definite
with a condition number of at most `max_condition`, and the density and its gradient are finite. The
module keeps no state but its parameters (no buffers), and needs no operation without a
deterministic GPU kernel.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath.errors import UserError

MAX_SIGMA = 1.0
"""Half the domain's side: what a sigmoid can reach (eq. 12)."""

MAX_PARTIAL_CORRELATION = 0.9
"""Bounds correlations away from +-1, where a covariance becomes singular."""

_KERNELS = (7, 5, 3)  # section VI
_STRIDES = (2, 2, 1)


class Mixture(NamedTuple):
    """The parameters of B mixtures of K Gaussians in n dimensions (eqs. 10 to 13)."""

    log_alpha: Tensor
    """(B, K): logarithms of the weights, which sum to one (eq. 8)."""
    mu: Tensor
    """(B, K, n): means, in the order of the image's axes."""
    sigma: Tensor
    """(B, K, n): standard deviations along the axes."""
    partial: Tensor
    """(B, K, n(n-1)/2): partial correlations of axes (1,0), (2,0), (2,1), each pair given the
    axes before its second."""


class DeepDensity(nn.Module):
    """Convolutional encoder, parallel dense heads, and the mixture's density.

    The paper leaves the encoder's down-sampling and the size of its code open. Here the first two
    convolutions step by two. Pooling after them instead makes both do 2^n times the work, learnt
    no faster per epoch when tried, and its 3-d backward is not deterministic on GPU. The third
    keeps its grid, and the code is all it gives, filters * (side / 4)^n numbers: fine detail, the
    slow part of this training, needs to know where it is.
    """

    def __init__(
        self,
        num_dims: int = 3,
        *,
        side: int = 16,
        num_filters: int = 32,
        num_components: int = 50,
        num_channels: int = 1,
    ) -> None:
        """Build the model; weights come from torch's global generator.

        `side` is the images' size along every axis, a multiple of four. Of several channels the
        first is the mixture's density, and in each other one a component has a shade, from 0 to 1,
        of what it has in the first.
        """
        super().__init__()
        if num_dims not in (1, 2, 3):
            raise UserError(f"num_dims is {num_dims}; DeepDensity knows 1, 2 and 3 dimensions")
        if side < 4 or side % 4:
            raise UserError(f"side is {side}; it must be a multiple of 4 (two halvings)")
        self.num_dims = num_dims
        self.side = side
        self.num_components = num_components
        self.num_shades = num_channels - 1

        layers: list[nn.Module] = []
        num_inputs = num_channels
        for kernel, stride in zip(_KERNELS, _STRIDES, strict=True):
            convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[num_dims - 1](
                num_inputs, num_filters, kernel, stride=stride, padding=kernel // 2
            )
            layers += [convolution, nn.ReLU(inplace=True)]
            num_inputs = num_filters
        self.encoder = nn.Sequential(*layers, nn.Flatten())

        code_size = num_filters * (side // 4) ** num_dims
        num_pairs = num_dims * (num_dims - 1) // 2
        self.head_shapes = [(), (num_dims,), (num_dims,), (num_pairs,), (self.num_shades,)]
        # The parallel dense heads are one product: their rows side by side in one matrix
        per_component = 1 + 2 * num_dims + num_pairs + self.num_shades
        self.heads = nn.Linear(code_size, per_component * num_components)
        assert num_channels > 1 or (
            self.num_outputs == (num_dims**2 + 3 * num_dims + 2) * num_components // 2
        )

    @property
    def num_outputs(self) -> int:
        """Numbers the heads estimate: (n^2 + 3n + 2) K / 2 (section V), and K for each shade."""
        return self.heads.out_features

    def encode(self, images: Tensor) -> Tensor:
        """The heads' unbounded outputs for (B, channels, side, ...) images: (B, num_outputs)."""
        outputs: Tensor = self.heads(self.encoder(images))
        return outputs

    def decode(self, outputs: Tensor) -> Mixture:
        """The mixtures that heads' outputs (B, num_outputs) stand for."""
        alpha, mu, sigma, rho, _ = self._parts(outputs)
        return make_mixture(alpha, mu, sigma, rho, min_sigma=min_sigma(self.side))

    def shades(self, outputs: Tensor) -> Tensor:
        """(B, K, channels - 1): the components' shades that heads' outputs stand for."""
        return torch.sigmoid(self._parts(outputs)[-1])

    def _parts(self, outputs: Tensor) -> list[Tensor]:
        shapes = [(self.num_components, *shape) for shape in self.head_shapes]
        parts = outputs.split([math.prod(shape) for shape in shapes], dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]

    def mixture(self, images: Tensor) -> Mixture:
        """Estimate the mixtures of (B, 1, side, ...) images."""
        return self.decode(self.encode(images))

    def forward(self, images: Tensor) -> Tensor:
        """Reconstruct (B, channels, side, ...) images in [0, 1] as mass times density.

        Eq. 8 makes the mixture a probability density: it integrates to one over space, whatever
        it is shown. What it describes is therefore the image divided by its own integral (its
        mass), and the reconstruction multiplies that mass back in. So the mixture says where the
        image is and its mass, a number of the input, how much; no output is added to the paper's
        and the loss stays in units of the image.
        """
        voxel = (2.0 / self.side) ** self.num_dims
        mass = images[:, 0].flatten(1).sum(1) * voxel
        if self.num_shades:
            outputs = self.encode(images)
            densities = evaluate_shaded(self.decode(outputs), self.shades(outputs), self.side)
            return (densities * mass[:, None, None]).view_as(images)
        density = evaluate_density(self.mixture(images), self.side)
        return (density * mass[:, None]).view_as(images)


def mean_squared_log_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean of (log(1 + prediction) - log(1 + target))^2, the paper's loss (section VI)."""
    return F.mse_loss(torch.log1p(prediction), torch.log1p(target))


def min_sigma(side: int) -> float:
    """Half a voxel: a narrower Gaussian would fall between the voxels' centres."""
    return 1.0 / side


def max_condition(num_dims: int, side: int) -> float:
    """Largest condition number a covariance can have.

    Covariance = D C D with D the standard deviations, C the correlations: condition numbers
    multiply. C has trace n, so its largest eigenvalue is below n and the others' product below
    (n / (n-1))^(n-1); and det C is the product of 1 - p^2 over the partial correlations p.
    """
    n = num_dims
    determinant = (1.0 - MAX_PARTIAL_CORRELATION**2) ** (n * (n - 1) // 2)
    of_correlations = n * (n / (n - 1)) ** (n - 1) / determinant if n > 1 else 1.0
    return (MAX_SIGMA / min_sigma(side)) ** 2 * of_correlations


def make_mixture(
    alpha: Tensor, mu: Tensor, sigma: Tensor, rho: Tensor, *, min_sigma: float
) -> Mixture:
    """Turn the heads' unbounded outputs, shaped as in `Mixture`, into a mixture.

    Activations are the paper's (eqs. 10 to 13), with two differences. Standard deviations are
    kept above `min_sigma`. The sigmoid of a correlation is stretched to (-0.9, 0.9) (the paper's
    knows no negative ones) and read as a partial correlation: three free numbers in (-1, 1) need
    not be the correlations of anything, three partial correlations always are.
    """
    return Mixture(
        log_alpha=F.log_softmax(alpha, dim=-1),
        mu=torch.tanh(mu),
        sigma=min_sigma + (MAX_SIGMA - min_sigma) * torch.sigmoid(sigma),
        partial=MAX_PARTIAL_CORRELATION * (2.0 * torch.sigmoid(rho) - 1.0),
    )


def covariances(mixture: Mixture) -> Tensor:
    """(B, K, n, n) covariance matrices (eq. 6), for looking at; the density needs none."""
    num_dims = mixture.mu.shape[-1]
    zero = torch.zeros_like(mixture.log_alpha)
    rows = _correlation_factor(mixture.partial, num_dims)
    factor = torch.stack(
        [torch.stack(row + [zero] * (num_dims - len(row)), dim=-1) for row in rows], dim=-2
    )
    scaled = mixture.sigma[..., None] * factor
    return scaled @ scaled.transpose(-1, -2)


def evaluate_density(mixture: Mixture, side: int, planes: slice = slice(None)) -> Tensor:
    """Evaluate mixtures (eq. 7) at the centres of the voxels of [-1, 1]^n: (B, side^n).

    `planes` limits it to a part of the first axis, for images too large to be made at once.

    A Gaussian's logarithm is a polynomial of degree two in the coordinates. So the logarithms of
    all components at all voxels are one product of monomials (V x M) and coefficients (M x B K),
    M = 10 in three dimensions; nothing of size B K V n is ever made.

    The expanded square cancels where Gaussians are narrow: in float32 the error is within 1e-5
    of a mixture's peak for ordinary parameters, 1e-2 for all that `make_mixture` can return.
    """
    density: Tensor
    density, _ = _SumOfExponentials.apply(  # type: ignore[no-untyped-call]
        _log_density_coefficients(mixture), _monomials(side, mixture.mu, planes)
    )
    return density


def evaluate_shaded(mixture: Mixture, shades: Tensor, side: int) -> Tensor:
    """Evaluate mixtures whose components have shades (B, K, S): (B, 1 + S, side^n).

    The first channel is the density, each other one the same sum with every component weighed by
    its shade: one matrix product more, nothing of size B K V S.
    """
    weights = torch.cat([torch.ones_like(shades[..., :1]), shades], dim=-1)
    densities: Tensor
    densities, _ = _WeighedExponentials.apply(  # type: ignore[no-untyped-call]
        _log_density_coefficients(mixture), weights, _monomials(side, mixture.mu)
    )
    return densities


class _SumOfExponentials(torch.autograd.Function):
    """sum_k exp(c_bk . m_v) for coefficients c (B, K, M) and monomials m (M, V): (B, V).

    The gradient for c is one product of what exp left with the monomials times the incoming
    gradient. autograd's own way makes and reads two more arrays of B K V numbers.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(coefficients: Tensor, monomials: Tensor) -> tuple[Tensor, Tensor]:
        # Laid out (B, V, K), and from a contiguous left factor: five times as fast as otherwise.
        terms = (monomials.mT.contiguous() @ coefficients.mT).exp_()
        return terms.sum(-1), terms

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        coefficients, monomials, terms = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted: terms need a graph
            terms = (monomials.mT @ coefficients.mT).exp()
        return ((gradient[:, None] * monomials) @ terms).mT, None


class _WeighedExponentials(torch.autograd.Function):
    """sum_k w_bkc exp(c_bk . m_v) for weights w (B, K, C): (B, C, V).

    Both gradients come out of one product of what exp left with the monomials times the incoming
    gradient: the weights' is its part of the first monomial, which is one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(coefficients: Tensor, weights: Tensor, monomials: Tensor) -> tuple[Tensor, Tensor]:
        terms = (monomials.mT.contiguous() @ coefficients.mT).exp_()
        return (terms @ weights).mT, terms

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor | None, _: None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        if gradient is None:
            return None, None, None
        coefficients, weights, monomials, terms = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted: terms need a graph
            terms = (monomials.mT @ coefficients.mT).exp()
        rows = (gradient[..., None, :] * monomials).flatten(-3, -2)  # (B, C M, V)
        products = (rows @ terms).unflatten(-2, (gradient.shape[-2], -1))  # (B, C, M, K)
        of_coefficients = (products * weights.mT[..., None, :]).sum(-3).mT
        return of_coefficients, products[..., 0, :].mT, None


def _correlation_factor(partial: Tensor, num_dims: int) -> list[list[Tensor]]:
    """Rows of the lower-triangular L with correlation matrix L L^T.

    Row i is a unit vector: its entry j takes the partial correlation's share of what entries
    before it left (Lewandowski, Kurowicka and Joe 2009, section 2). Entries on the diagonal are
    at least (1 - 0.9^2)^((n-1)/2).
    """
    pairs = iter(partial.unbind(-1))
    rows: list[list[Tensor]] = []
    for axis in range(num_dims):
        left = torch.ones_like(partial[..., 0]) if partial.shape[-1] else partial.new_ones(1, 1)
        row: list[Tensor] = []
        for _ in range(axis):
            share = next(pairs)
            row.append(share * left)
            left = left * torch.sqrt(1.0 - share * share)
        rows.append([*row, left])
    return rows


def _log_density_coefficients(mixture: Mixture) -> Tensor:
    """(B, K, M) coefficients of log(alpha N(x, mu, Sigma)), in the order of `_monomials`.

    Let y = L^-1 D^-1 (x - mu), D the standard deviations. The exponent of eq. 5 is -|y|^2 / 2 and
    the determinant of Sigma that of (D L)^2; eq. 5 as printed forgets it and the n of (2 pi)^n.
    Each y_i is a linear form in (1, x_1, ..., x_n), found from (x_i - mu_i) / sigma_i by taking
    away what each earlier y_j explains, p_ij y_j, and dividing by what that leaves, sqrt(1 - p^2).
    """
    num_dims = mixture.mu.shape[-1]
    inverse_sigma = 1.0 / mixture.sigma
    scaled = torch.cat(
        [-(mixture.mu * inverse_sigma)[..., None], torch.diag_embed(inverse_sigma)], dim=-1
    )  # (B, K, n, n + 1)
    left = 1.0 - mixture.partial * mixture.partial
    shares = iter(mixture.partial[..., None].unbind(-2))
    scales = iter(left.rsqrt()[..., None].unbind(-2))
    forms: list[Tensor] = []
    for form in scaled.unbind(-2):
        for earlier in forms.copy():
            form = (form - next(shares) * earlier) * next(scales)
        forms.append(form)
    stacked = torch.stack(forms, dim=-2)
    squares = (stacked.mT @ stacked).flatten(-2)  # sum of y_i^2, over ordered pairs of (1, x)
    constant = mixture.log_alpha - 0.5 * num_dims * math.log(2.0 * math.pi)
    constant = constant - mixture.sigma.log().sum(-1) - 0.5 * left.log().sum(-1)
    quadratic = squares @ _pairs(num_dims, squares)
    return quadratic + F.pad(constant[..., None], (0, quadratic.shape[-1] - 1))


def _pairs(num_dims: int, like: Tensor) -> Tensor:
    """Turns products of ordered pairs of (1, x_1, ..., x_n) into -1/2 times unordered ones."""
    size = range(num_dims + 1)
    columns = [(i, j) for i in size for j in size[i:]]
    rows = [[-0.5 * ((i, j) in (pair, pair[::-1])) for i in size for j in size] for pair in columns]
    return torch.tensor(rows, dtype=like.dtype, device=like.device).T


def _monomials(side: int, like: Tensor, planes: slice = slice(None)) -> Tensor:
    """(M, side^n): 1, x_i, x_i x_j (i <= j) at the voxels' centres, for means `like` (B, K, n).

    Made on every call, at a thousandth of a step's cost: kept, it would be a float buffer, and
    those are merged between grains.
    """
    num_dims = like.shape[-1]
    centres = (torch.arange(side, device=like.device, dtype=like.dtype) + 0.5) * (2.0 / side) - 1.0
    axes = torch.meshgrid(centres[planes], *[centres] * (num_dims - 1), indexing="ij")
    coordinates = [axis.flatten() for axis in axes]
    products = [
        coordinates[i] * coordinates[j] for i in range(num_dims) for j in range(i, num_dims)
    ]
    return torch.stack([torch.ones_like(coordinates[0]), *coordinates, *products])
