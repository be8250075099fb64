"""New nodules from a run: a density over the codes of the training nodules, and samples from it.

In: a run of DeepDensity and what the user asked for. Out: nodules of a category at any resolution,
as an .npz or a folder of NIfTI files, with seeds and provenance, a judgement against held-out real
nodules, and two figures. A nodule's code is all its mixture is made from (the heads' outputs), its
mass, and its size in millimetres where known.

Guaranteed: nodule i of a seed and category is the same whatever the count and the resolution; all
files are written or none; existing files are never overwritten.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.data.formats.images import simpleitk, write_nifti
from samepath.engine.checks.fingerprints import versions
from samepath.engine.state.checkpoint import Epoch
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.errors import UserError
from samepath.files import folder_aside
from samepath.keys import key
from samepath.recipe import Recipe
from samepath.recipes.nodules.deepdensity import DeepDensity, Mixture, evaluate_density
from samepath.recipes.nodules.judgement import MEASURES, Judgement, judge, measure, table
from samepath.recipes.nodules.pictures import reconstruct
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
NIFTI = ".nii.gz"
MAX_SIDE = 512
NUM_DRAWN = 36
MIN_HELD_OUT = 20
"""Held-out nodules of a category without which there is nothing to judge by."""


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
        self.kernels_: dict[str, Kernel] = {}
        for name in names[counts >= MIN_EXAMPLES]:
            codes_of = whitened[category == name]
            scores = [_score(codes_of[:, : self.num_leading_], width) for width in _WIDTHS]
            width = _WIDTHS[int(np.argmax(scores))]
            self.kernels_[str(name)] = Kernel(codes_of, *_mean_and_factor(codes_of), width)
        if not self.kernels_:
            raise UserError(
                f"the training nodules are too few to learn from: {len(codes)} in {len(names)} "
                f"categories; at least {MIN_EXAMPLES} of one are needed"
            )
        return self

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
    """Each nodule's random key, made from the seed, the category asked for and its number."""
    side_mm: NDArray[np.float64] | None
    """The cube's side, where the training nodules' sizes are known."""
    mixture: Mapping[str, NDArray[np.float32]]
    """Each nodule's Gaussians, as in `Mixture`, and `mass`."""
    density: Mapping[str, Any]
    """Sizes and kernel widths of the codes' density, for the record."""


class Generator:
    """Learns the density of a run's codes once, then generates nodules."""

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
        self._has_categories = found is not None
        self.category = np.full(len(recipe.train), "all") if found is None else found
        self._sizes = side_mm(recipe.train_facts)
        codes = encode(model, recipe.train)
        if self._sizes is not None:
            codes = np.column_stack([codes, np.log(self._sizes)])
        self.density = CodeDensity().fit(codes, self.category)

    def generate(self, count: int, category: str | None, *, side: int, seed: int) -> Generated:
        """Generate nodules of a category, or of all in their training shares."""
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
        if not self._has_categories:
            raise UserError(
                f"--category {category}: the training data says nothing of categories; leave it "
                "out, or give the data a malignancy, label or category for each nodule"
            )
        names, counts = np.unique(self.category, return_counts=True)
        known = ", ".join(f"{name} ({count})" for name, count in zip(names, counts, strict=True))
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
    num_planes = max(1, min(side, _CHUNK // (side * side * num_components)))
    num_rows = max(1, _CHUNK // (side**3 * num_components))
    starts = itertools.product(range(0, num_nodules, num_rows), range(0, side, num_planes))
    for row, plane in starts:
        rows, planes = slice(row, row + num_rows), slice(plane, plane + num_planes)
        part = Mixture(*(values[rows] for values in mixture))
        values = evaluate_density(part, side, planes) * mass[rows, None]
        volumes[rows, planes] = values.clamp_(0.0, 1.0).unflatten(1, (-1, side, side)).numpy()
    return volumes


def side_mm(facts: Mapping[str, NDArray[Any]]) -> Floats | None:
    """The cubes' sides in millimetres, where the facts tell."""
    for name, factor in (("side_mm", 1.0), ("extent_mm", CUBE_SIDE)):
        if name in facts:
            with suppress(ValueError):
                sides = factor * np.asarray(facts[name]).astype(np.float64)
                if np.isfinite(sides).all() and sides.min() > 0:
                    return sides
            raise UserError(
                f"the fact {name} must be a number above 0 for every nodule; correct it"
            )
    return None


# ---- the command


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """What the user asked `samepath generate` for."""

    run: Path
    out: Path
    """name.npz: one file. Anything else: a folder of .nii.gz files."""
    count: int = 100
    category: str | None = None
    """None: all categories, in their shares of the training nodules."""
    side: int | None = None
    """Voxels along a side; the training volumes' when not given."""
    seed: int = 0
    epoch: Epoch | None = None
    """Use the weights kept after so many epochs, or the best; the newest when not given."""
    judge: bool = True
    tell: Callable[[str], None] = lambda text: None
    """Called with a line when a stage begins."""


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """Files and judgement of what was generated."""

    out: Path
    files: list[Path]
    """`provenance.json` and the figures."""
    generated: Generated
    judgement: Judgement | None
    why_not_judged: str | None

    @property
    def table(self) -> list[list[str]]:
        return [] if self.judgement is None else table(self.judgement)


def generate(request: GenerateRequest) -> GenerateResult:
    """Generate nodules and judge them."""
    out = _refuse(request)
    run = reopen(request.run)
    model, digest = run.model(request.epoch)
    request.tell("learning the density of the training nodules' codes")
    generator = Generator(model, run.recipe)
    side = request.side or generator.model.side
    request.tell(f"generating {request.count} nodules")
    made = generator.generate(request.count, request.category, side=side, seed=request.seed)
    native = made
    if side != generator.model.side:  # judged at the resolution the real ones have
        native = generator.generate(
            request.count, request.category, side=generator.model.side, seed=request.seed
        )
    provenance = {
        "made_by": "samepath generate",
        "run": str(request.run.resolve()),
        "epoch": request.epoch,
        "weights_digest": digest,
        "recipe": run.config["recipe"],
        "data": run.config.get("data"),
        "count": request.count,
        "category": request.category or "all",
        "seed": request.seed,
        "side": side,
        "density": made.density,
        "versions": versions(),
    }
    with folder_aside(out) as aside:
        files, verdict, why_not = _judge(request, run, generator, native.volumes, aside)
        if verdict is not None:
            provenance["judgement"] = verdict.as_dict()
        (aside / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
        _write(request, made, provenance, aside)
        placed = _place(aside, out)
    return GenerateResult(
        out=out,
        files=[placed[name] for name in ["provenance.json", *files]],
        generated=made,
        judgement=verdict,
        why_not_judged=why_not,
    )


def _refuse(request: GenerateRequest) -> Path:
    """Raise for what can be found wrong before a model is loaded; return where to write."""
    if request.count < 1:
        raise UserError(f"--count {request.count}: give at least 1")
    if request.side is not None and not 4 <= request.side <= MAX_SIDE:
        raise UserError(f"--side {request.side}: give 4 to {MAX_SIDE} voxels")
    out = request.out
    if out.name.endswith(NIFTI):  # what to put into the folder, not its name
        out = out.with_name(out.name.removesuffix(NIFTI))
    if out.suffix != ".npz":
        simpleitk()  # says what to install where it is missing
    for path in [out, *(_beside(out, name) for name in _BESIDE if out.suffix == ".npz")]:
        if path.exists():
            raise UserError(f"--out {request.out}: {path} exists; give another name")
    return out


_BESIDE = ("provenance.json", "nodules.png", "measures.png")


def _beside(out: Path, name: str) -> Path:
    """The path of a file that belongs to new.npz, such as new.provenance.json."""
    return out.with_name(f"{out.stem}.{name}")


def _place(aside: Path, out: Path) -> dict[str, Path]:
    """Move what was written to where it belongs; each file's new path."""
    names = [path.name for path in aside.iterdir()]
    if out.suffix != ".npz":
        aside.rename(out)
        return {name: out / name for name in names}
    placed = {name: out if name == "nodules.npz" else _beside(out, name) for name in names}
    for name, path in sorted(placed.items(), key=lambda item: item[1] == out):  # the data last
        (aside / name).rename(path)
    return placed


def _judge(
    request: GenerateRequest,
    run: ReopenedRun,
    generator: Generator,
    volumes: NDArray[np.float32],
    folder: Path,
) -> tuple[list[str], Judgement | None, str | None]:
    """Draw and judge: the figures' names, the judgement, or why there is none."""
    from samepath.report.nodules import draw_measures, draw_real_and_generated

    train, valid = run.recipe.train, run.recipe.valid
    assert isinstance(train, Tensor)
    if not isinstance(valid, Tensor):
        return [], None, "the recipe has no validation volumes to compare with"
    kinds = categories(run.recipe.valid_facts)
    if request.category is not None and kinds is not None:
        valid = valid[kinds == request.category]
    if len(valid) < MIN_HELD_OUT:
        what = request.category or "validation"
        return [], None, f"{len(valid)} held-out {what} nodules are too few to judge by"
    held_out = as_images(valid).squeeze(1).numpy()
    title = f"Real and generated nodules ({request.category or 'all categories'})"
    spread = np.linspace(0, len(held_out) - 1, min(NUM_DRAWN, len(held_out))).astype(np.int64)
    draw_real_and_generated(held_out[spread], volumes, folder / "nodules.png", title=title)
    if not request.judge:
        return ["nodules.png"], None, "not asked for"
    if len(volumes) < MIN_HELD_OUT:
        return ["nodules.png"], None, f"{len(volumes)} generated nodules are too few to judge"
    request.tell("judging them against held-out real nodules")
    made, real = (
        dict(zip(MEASURES, measure(of).T.astype(np.float64), strict=True))
        for of in (volumes, held_out)
    )
    draw_measures(made, real, folder / "measures.png", labels=("generated", "real, held out"))
    training = as_images(train).squeeze(1).numpy()
    is_alike = np.isin(generator.category, request.category or generator.category)
    reconstructed = reconstruct(generator.model, valid).clip(0.0, 1.0)
    verdict = judge(volumes, held_out, training, reconstructed, alike=training[is_alike])
    return ["nodules.png", "measures.png"], verdict, None


def _write(
    request: GenerateRequest, made: Generated, provenance: dict[str, Any], folder: Path
) -> None:
    """Write the nodules, as one .npz or as NIfTI files with a table of facts."""
    facts: dict[str, NDArray[Any]] = {"category": made.category, "key": made.keys}
    if made.side_mm is not None:
        facts["side_mm"] = made.side_mm
    if request.out.suffix == ".npz":
        arrays: dict[str, Any] = {"volumes": made.volumes, **facts, **made.mixture}
        arrays["provenance"] = np.array(json.dumps(provenance))
        np.savez_compressed(folder / "nodules.npz", **arrays)
        return
    digits = len(str(len(made.volumes) - 1))
    names = [f"nodule-{number:0{digits}d}{NIFTI}" for number in range(len(made.volumes))]
    sides = np.ones(len(names)) if made.side_mm is None else made.side_mm / made.volumes.shape[1]
    for name, volume, spacing in zip(names, made.volumes, sides, strict=True):
        write_nifti(folder / name, volume, float(spacing))
    with (folder / "facts.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", *facts])
        rows.writerows(zip(names, *(values.tolist() for values in facts.values()), strict=True))
