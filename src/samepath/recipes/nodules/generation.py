"""New nodules: a density over the codes of the training nodules, and samples from it.

In: a trained DeepDensity and the volumes it was trained on, with what is known of them. Out:
`Generated` nodules of a category, at any resolution. A nodule's code is all its mixture is made
from (the heads' outputs), its mass, and its size in millimetres where known.

Guaranteed: nodule i of a seed and category is the same whatever the count and the resolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.errors import UserError
from samepath.keys import key
from samepath.recipe import Recipe
from samepath.recipes.nodules.deepdensity import DeepDensity, Mixture, evaluate_density
from samepath.recipes.nodules.recipe import as_images, categories

Floats = NDArray[np.float64]

CUBE_SIDE = 1.25
"""An LIDC cube's side in nodule extents."""
MIN_EXAMPLES = 20
"""Fewer training nodules of a category say too little about it."""
_VARIANCE = 0.998
_LEADING_VARIANCE = 0.9
_WIDTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_RIDGE = 1e-3  # in units of the components' variance
_CHUNK = 1 << 26  # numbers of an intermediate array


class CodeDensity:
    """A kernel density per category over the codes' principal components.

    A sample is a training code drawn towards the category's mean and moved by a Gaussian with the
    category's covariance, mean + sqrt(1 - h^2) (code - mean) + h noise: the spread stays what it
    is at every h (the smoothed bootstrap; Silverman and Young 1987). At h = 0 it copies, at h = 1
    it knows nothing but mean and covariance. h is what predicts left-out codes best (log-likelihood
    of three folds) on the leading components, those with 90% of the variance.
    """

    def fit(self, codes: Floats, category: NDArray[np.str_]) -> CodeDensity:
        """Learn from training codes (N, D) and their categories."""
        from sklearn.decomposition import PCA

        self.pca_ = PCA(_VARIANCE, whiten=True, svd_solver="full").fit(codes)
        kept = np.cumsum(self.pca_.explained_variance_ratio_)
        self.num_leading_ = int(np.searchsorted(kept, _LEADING_VARIANCE)) + 1
        whitened = self.pca_.transform(codes)
        names, counts = np.unique(category, return_counts=True)
        self.kernels_ = {
            str(name): self._kernel(whitened[category == name])
            for name, count in zip(names, counts, strict=True)
            if count >= MIN_EXAMPLES
        }
        if not self.kernels_:
            raise UserError(
                f"the training nodules are too few to learn from: {len(codes)} in {len(names)} "
                f"categories; at least {MIN_EXAMPLES} of one are needed"
            )
        return self

    def _kernel(self, codes: Floats) -> Kernel:
        leading = codes[:, : self.num_leading_]
        scores = [_score(leading, width) for width in _WIDTHS]
        mean, factor = _mean_and_factor(codes)
        return Kernel(codes, mean, factor, _WIDTHS[int(np.argmax(scores))])

    def sample(self, category: str | None, keys: NDArray[np.uint64]) -> tuple[Floats, list[str]]:
        """A code for every key, and its category (drawn by its share of the training nodules
        when None is asked for)."""
        chosen = [category] if category else list(self.kernels_)
        ends = np.cumsum([len(self.kernels_[name].codes) for name in chosen])
        whitened, names = [], []
        for word in keys:
            random = np.random.Generator(np.random.Philox(key=int(word)))
            row = int(random.integers(ends[-1]))
            number = int(np.searchsorted(ends, row, side="right"))
            kernel = self.kernels_[chosen[number]]
            noise = kernel.factor @ random.standard_normal(len(kernel.mean))
            away = kernel.codes[row - ends[number]] - kernel.mean  # counted from the end
            h = kernel.width
            whitened.append(kernel.mean + math.sqrt(1.0 - h * h) * away + h * noise)
            names.append(chosen[number])
        codes: Floats = self.pca_.inverse_transform(np.array(whitened))
        return codes, names


class Kernel(NamedTuple):
    """One category's density."""

    codes: Floats
    mean: Floats
    factor: Floats
    """The covariance's lower-triangular factor."""
    width: float


def _mean_and_factor(codes: Floats) -> tuple[Floats, Floats]:
    covariance = np.atleast_2d(np.cov(codes.T)) + _RIDGE * np.eye(codes.shape[1])
    factor: Floats = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
    return codes.mean(0), factor


def _score(codes: Floats, width: float) -> float:
    """Mean log-likelihood of left-out codes, up to a constant that does not depend on the width."""
    from scipy.linalg import solve_triangular
    from scipy.special import logsumexp
    from sklearn.model_selection import KFold

    scores = []
    for seen, left_out in KFold(3, shuffle=True, random_state=0).split(codes):
        mean, factor = _mean_and_factor(codes[seen])
        centres = math.sqrt(1.0 - width * width) * (codes[seen] - mean)
        points, centres = (
            solve_triangular(factor, rows.T, lower=True).T / width
            for rows in (codes[left_out] - mean, centres)
        )
        squares = (points**2).sum(1)[:, None] + (centres**2).sum(1) - 2.0 * points @ centres.T
        density = logsumexp(-0.5 * squares, axis=1) - math.log(len(seen))
        scores.append(density.mean() - codes.shape[1] * math.log(width))
    return float(np.mean(scores))


@dataclass(frozen=True, kw_only=True)
class Generated:
    """New nodules, one per row, with what made them."""

    volumes: NDArray[np.float32]
    """(N, side, side, side) in [0, 1]."""
    category: NDArray[np.str_]
    keys: NDArray[np.uint64]
    """What each was drawn with: made from the seed, the category asked for and its number."""
    side_mm: NDArray[np.float64] | None
    """The cube's side, where the training nodules' sizes are known."""
    mixture: Mapping[str, NDArray[np.float32]]
    """Each nodule's Gaussians, as in `Mixture`, and `mass`."""
    density: Mapping[str, Any]
    """How the codes' density was found, for the record."""


class Generator:
    """Fits once, then generates."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        if not isinstance(model, DeepDensity) or model.num_dims != 3:
            raise UserError(
                f"the run's model is a {type(model).__name__}; nodules can be generated from "
                "DeepDensity in three dimensions (samepath train nodules)"
            )
        if not isinstance(recipe.train, Tensor):
            raise UserError("the recipe's training data is not one tensor of volumes; make it one")
        self.model = model
        found = categories(recipe.train_facts)
        self.has_categories = found is not None
        self.category = np.full(len(recipe.train), "all") if found is None else found
        self._sizes = side_mm(recipe.train_facts)
        codes = encode(model, recipe.train)
        if self._sizes is not None:
            codes = np.column_stack([codes, np.log(self._sizes)])
        self.density = CodeDensity().fit(codes, self.category)

    def generate(self, count: int, category: str | None, *, side: int, seed: int) -> Generated:
        """New nodules of a category, or of all in their training shares."""
        self._refuse(category)
        words = (category or "", seed)
        keys = np.array([key("generate", *words, i) for i in range(count)], dtype=np.uint64)
        codes, names = self.density.sample(category, keys)
        num_outputs = self.model.num_outputs
        outputs = torch.from_numpy(codes[:, :num_outputs]).float()
        mass = torch.from_numpy(8.0 * np.exp(codes[:, num_outputs])).float()
        with torch.no_grad():
            mixture = self.model.decode(outputs)
            volumes = render(mixture, mass, side)
        parts = {name: part.numpy() for name, part in mixture._asdict().items()}
        return Generated(
            volumes=volumes,
            category=np.array(names),
            keys=keys,
            side_mm=None if self._sizes is None else np.exp(codes[:, num_outputs + 1]),
            mixture={**parts, "mass": mass.numpy()},
            density={
                "training_nodules": len(self.category),
                "dimensions": int(self.density.pca_.n_components_),
                "leading_dimensions": self.density.num_leading_,
                "kernel_widths": {n: k.width for n, k in self.density.kernels_.items()},
            },
        )

    def _refuse(self, category: str | None) -> None:
        if category is None or category in self.density.kernels_:
            return
        if not self.has_categories:
            raise UserError(
                f"--category {category}: the training data says nothing of categories; leave it "
                "out, or give the data a malignancy, label or category for each nodule"
            )
        known = ", ".join(
            f"{name} ({count})"
            for name, count in zip(*np.unique(self.category, return_counts=True), strict=True)
        )
        raise UserError(
            f"--category {category}: the training nodules are {known}; choose one with at least "
            f"{MIN_EXAMPLES}"
        )


@torch.no_grad()
def encode(model: DeepDensity, volumes: Tensor) -> Floats:
    """(N, num_outputs + 1): the heads' outputs, and the logarithm of the mean intensity."""
    codes = []
    for part in volumes.split(256):
        images = as_images(part)
        mean = images.flatten(1).mean(1, dtype=torch.float64).clamp_min(1e-6)
        codes.append(torch.cat([model.encode(images).double(), mean.log()[:, None]], dim=1))
    return torch.cat(codes).numpy()


def render(mixture: Mixture, mass: Tensor, side: int) -> NDArray[np.float32]:
    """Mass times density, cut to [0, 1], as (N, side, side, side); a part at a time."""
    num_nodules, num_components = mixture.log_alpha.shape
    volumes = np.empty((num_nodules, side, side, side), np.float32)
    for rows, planes in _parts(num_nodules, side, num_components):
        part = Mixture(*(values[rows] for values in mixture))
        values = evaluate_density(part, side, planes) * mass[rows, None]
        volumes[rows, planes] = values.clamp_(0.0, 1.0).unflatten(1, (-1, side, side)).numpy()
    return volumes


def _parts(num_nodules: int, side: int, num_components: int) -> Iterator[tuple[slice, slice]]:
    """Pieces of nodules and planes small enough to be made at once."""
    num_planes = max(1, min(side, _CHUNK // (side * side * num_components)))
    num_rows = max(1, _CHUNK // (side**3 * num_components))
    for row in range(0, num_nodules, num_rows):
        for plane in range(0, side, num_planes):
            yield slice(row, row + num_rows), slice(plane, plane + num_planes)


def side_mm(facts: Mapping[str, NDArray[Any]]) -> Floats | None:
    """The cubes' sides in millimetres, where the facts tell."""
    for name, factor in (("side_mm", 1.0), ("extent_mm", CUBE_SIDE)):
        if name in facts:
            try:
                sides = factor * np.asarray(facts[name]).astype(np.float64)
            except ValueError as error:
                raise UserError(
                    f"the fact {name} is not a number for every nodule: {error}"
                ) from None
            if not (np.isfinite(sides).all() and sides.min() > 0):
                raise UserError(f"the fact {name} must be above 0 for every nodule; correct it")
            return sides
    return None
